"""Every block of the manual that is typed or kept in a file can be read, and what it names of the repository is there."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.unit.test_documented_examples import ROOT, TODAY, PlainLoader, blocks
from tests.unit.test_tutorials import PAGES as TUTORIALS

PAGES = [*TODAY, *sorted((ROOT / "examples").glob("*/README.md"))]
SHELLS = ("sh", "bash", "console")
_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
_COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
_PROFILES = {name for each in _COMPOSE.values() for name in each.get("profiles", ())}
_PROGRAMS = {
    *(
        "apt-get",
        "cat",
        "cd",
        "chown",
        "cp",
        "curl",
        "docker",
        "echo",
        "export",
        "git",
        "install",
        "journalctl",
    ),
    *("loginctl", "make", "mkdir", "mv", "pip", "pipx", "podman", "poweroff", "psql", "python3", "rm", "scp"),
    *("squidbot", "ssh", "sudo", "systemctl", "umask", "uv", "deploy/compose/make-secrets"),
}
_ASSIGNMENT = re.compile(r"\w+=")


def statements(block: str) -> Iterator[list[str]]:
    """The simple commands of a block, each as its words; the text of a here-document is none."""
    text = re.sub(r"(<<'(\w+)')[^\n]*\n.*?^\2$", r"", block, flags=re.DOTALL | re.MULTILINE)
    text = text.replace("\\\n", " ")
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for token in [*lexer, ";"]:
            if set(token) <= set("();|&"):
                if words:
                    yield words
                words = []
            else:
                words.append(token)


def wrong_statement(words: list[str]) -> str:
    """What is wrong with a command of a block; "" if nothing that can be told without running it."""
    while words and (_ASSIGNMENT.match(words[0]) or words[0] == "sudo"):
        words = words[1:]
    if not words or set(words[0]) <= set("<>"):
        return ""
    name = words[0].removeprefix("/opt/squidbot/bin/")
    if name not in _PROGRAMS:
        return f"no program is called {name}"
    if name == "make" and (
        unknown := [each for each in words[1:] if each.islower() and each not in _TARGETS]
    ):
        return f"make has no {unknown[0]}"
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if found := re.fullmatch(r"\.\[([\w,]+)\]", word):
            if missing := set(found[1].split(",")) - _EXTRAS:
                return f"there is no extra {missing.pop()}"
        elif word == "--profile" and following not in _PROFILES:
            return f"compose.yaml has no profile {following}"
        elif (
            re.match(r"(deploy|examples|tests|docs)/", word)
            and "/dist/" not in word
            and not (ROOT / word).exists()
        ):
            return f"there is no {word}"
    return ""


def shell_problem(block: str) -> str:
    """What is wrong with a block for a shell."""
    read = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
    if read.returncode:
        return read.stderr
    return next(filter(None, map(wrong_statement, statements(block))), "")


def test_each_shell_block_is_one() -> None:
    wrong = {
        (page.name, block): said
        for page in PAGES
        for block in blocks(page.read_text(), *SHELLS)
        if (said := shell_problem(block))
    }
    assert wrong == {}


READERS: dict[str, Callable[[str], object]] = {
    "yaml": lambda text: yaml.load(text, PlainLoader),
    "json": json.loads,
    "toml": tomllib.loads,
    "python": ast.parse,
    "ini": lambda text: configparser.RawConfigParser(strict=False).read_string(text),
}


@pytest.mark.parametrize("kind", READERS)
def test_each_block_can_be_read(kind: str) -> None:
    for page in PAGES:
        if kind == "python" and page.name in TUTORIALS:
            continue  # parts of the examples
        for block in blocks(page.read_text(), kind):
            try:
                READERS[kind](block)
            except Exception as error:
                pytest.fail(f"{page.name}: {error}\n{block}")


def test_no_block_is_of_another_kind() -> None:
    """So none is left unread: what is said in a chat, a tree or a picture is text."""
    kinds = {kind for page in PAGES for kind in re.findall(r"^ *```(\w+)$", page.read_text(), re.MULTILINE)}
    assert kinds <= {*SHELLS, *READERS, "text"}


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("if true; do", "syntax error"),
        ("make tets", "make has no tets"),
        ("sudo pip install '.[mpc]'", "there is no extra mpc"),
        ("A=b docker compose --profile mial up", "no profile mial"),
        ("cp deploy/systemd/none.service /etc", "there is no deploy/systemd/none.service"),
        ("(umask 077; echo x >y)\nsquidbto run", "no program is called squidbto"),
        ("cat >>file <<'END'\nnot: a command\nEND\nmake test   # and not this", ""),
    ],
)
def test_a_wrong_block_is_noticed(block: str, said: str) -> None:
    """The control."""
    found = shell_problem(block)
    assert said in found
    assert bool(said) == bool(found)
