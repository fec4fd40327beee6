"""`squidbot update --check` on wheels that are built from this tree: as it is, and as a later version could be."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.command_line import fill, squidbot

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600, func_only=True)]
CONFIG = "owner: {aliases: ['@a:hs.test']}\nagents: {heartbeat: {enabled: false}}\n"
PARTS = ("gateway", "channels", "agent_core", "squidbot_api", "deploy")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("home")
    root.chmod(0o700)
    (root / "squidbot.yaml").write_text(CONFIG)
    (root / "squidbot.yaml").chmod(0o600)
    anyio.run(fill, root)
    return root


def wheel(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """A wheel of a copy of the tree with these changes: file, text, other text."""
    folder.mkdir()
    for name in PARTS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for name, text, other in changes:
        path = folder / name
        old = path.read_text()
        assert text in old
        path.write_text(old.replace(text, other, 1))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    [made] = (folder / "dist").glob("*.whl")
    return made


def attack(home: Path) -> str:
    """What a newer version must not be able to do: write in the home, read it, and connect."""
    return f"""
import socket, pathlib
for number, attempt in enumerate((
    lambda: pathlib.Path({str(home / "written")!r}).write_text("x"),
    lambda: pathlib.Path({str(home / "gateway.db")!r}).read_bytes(),
    lambda: socket.create_server(("127.0.0.1", 0)),
)):
    try:
        attempt()
    except OSError:
        continue
    raise SystemExit(f"attempt {{number}} was not refused")
"""


@pytest.fixture(scope="module")
def same(tmp_path_factory):
    return wheel(tmp_path_factory.mktemp("same") / "tree")


@pytest.fixture(scope="module")
def newer(tmp_path_factory, home):
    return wheel(
        tmp_path_factory.mktemp("newer") / "tree",
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
        ("CHANGELOG.md", "## [Unreleased]", "## [0.2.0]\n\n### The daemon\n- It counts to ten.\n\n## [0.1.0]"),
        ("gateway/store/sql/tables.py", "VERSION = 9", "VERSION = 10"),
        ("gateway/settings/settings.py", "tool_seconds: float = Field(default=60.0", "call_seconds: float = Field(default=60.0"),
        ("gateway/settings/settings.py", "steps: int = Field(default=20", "steps: int = Field(default=25"),
        ("gateway/cli/check/trial_start.py", "def main(request: str) -> int:", f"{attack(home)}\n\ndef main(request: str) -> int:"),
    )  # fmt: skip


def tried(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command; on a busy machine the newer version takes its time to load."""
    command = [sys.executable, "-m", "gateway", "update", "--check", *words, "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def content(root: Path) -> dict[str, str]:
    """The hash of each file of a home, without those that exist only while something runs."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] != "run" and path.suffix not in (".db-shm", ".db-wal")
    }  # fmt: skip


def test_a_wheel_that_changes_nothing(home, same):
    before = content(home)
    done = tried(home, str(same))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "starts on a copy of your home" in done.stdout
    assert "Other default" not in done.stdout
    assert content(home) == before


def test_a_later_version_that_does_not_take_the_data(home, newer):
    """It says what is new, what has another default and what fails; and it reaches nothing outside of its folder."""
    before = content(home)
    done = tried(home, str(newer))
    assert done.returncode == 1, done.stdout + done.stderr
    told = done.stdout
    assert "squidbot 0.2.0, tried beside 0.1.0" in told
    assert "0.2.0 - The daemon\n    - It counts to ten." in told
    assert "Other default: llm.limits.steps is 20, and would be 25" in told
    assert "New setting: llm.limits.call_seconds, 60.0 until you set it" in told
    assert "it does not start on your data" in told
    assert "10" in told.partition("it does not start on your data")[2]
    assert content(home) == before


def test_a_later_version_that_does_not_take_the_configuration(home, newer, tmp_path):
    config = tmp_path / "squidbot.yaml"
    config.write_text(f"{CONFIG}llm: {{limits: {{tool_seconds: 30}}}}\n")
    config.chmod(0o600)
    done = tried(home, str(newer), "--config", str(config))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "it does not take your configuration" in done.stdout
    assert "tool_seconds" in done.stdout


def test_the_attempts_are_not_refused_without_the_sandbox(home, tmp_path):
    """The control: here the first of them succeeds."""
    there = tmp_path / "home"
    there.mkdir()
    done = subprocess.run([sys.executable, "-c", attack(there)], capture_output=True, text=True, check=False)
    assert "attempt 0 was not refused" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("update", 2, "squidbot does not install itself"),
        ("update --check HERE/none.whl", 1, "is no wheel, no environment"),
    ],
)
def test_a_refusal(home, tmp_path, words, code, said):
    done = squidbot(home, *words.replace("HERE", str(tmp_path)).split())
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
