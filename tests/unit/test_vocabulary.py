"""
Names that operators see (log events, configuration keys, metrics, commands) are made of the glossary's words, and what
a docstring or a comment names in backticks exists.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel

from gateway.cli.commands import app
from gateway.cli.manual import commands
from gateway.observability import metrics
from gateway.settings import Settings
from gateway.settings.descriptions import plain_type

ROOT = Path(__file__).resolve().parents[2]

RETIRED = {
    "anew": "reset",
    "asides": "out of band",
    "bodies": "content",
    "brake": "circuit breaker",
    "braked": "opened",
    "buried": "dead lettered",
    "care": "maintenance, account admin",
    "chore": "housekeeping",
    "chores": "housekeeping",
    "claimant": "tier",
    "condensed": "consolidated",
    "condensing": "consolidation",
    "desk": "service",
    "evidence": "verification",
    "gap": "backfill",
    "given_up": "abandoned, dead lettered",
    "hint": "typing",
    "in_hand": "in flight",
    "lane": "dispatcher",
    "letter": "email style",
    "mark": "ack, high-water mark",
    "marks": "acks, crash suspects",
    "mended": "repaired",
    "noted": "recorded",
    "parked": "released, needs review, quarantined",
    "position": "sync token, checkpoint",
    "postponed": "deferred",
    "proven": "verified",
    "prover": "verification",
    "pulled": "opened",
    "pulse": "watchdog",
    "put_off": "deferred",
    "sacrifice": "tier",
    "sealed": "encrypted",
    "sealing": "encryption",
    "stage": "ack",
    "stages": "acks",
    "store": "queue",
    "tally": "usage",
    "told": "notified",
    "unasked": "proactive",
    "undeliverable": "dead lettered",
    "vigil": "heartbeat monitor",
    "waiting": "pending, undecryptable",
}
"""A word that was once used for something, and what docs/glossary.md calls it."""

RETIRED_IN_CODE = frozenset(
    "asides brake braked buried bury care chore chores condensed condensing cover deed deeds desk desks"
    " evidence lane lanes letters mend mended mishap mishaps parcel parcels park pulse sacrifice seal sealed sealer sealing stages tally unasked uncover"
    " vigil".split()
)
"""Words that name no class, function or argument; others of the table above are ordinary words in code."""

IN_TESTS = frozenset({"tally"})
"""Words that name files of tests in their ordinary sense."""

FIELD_WORDS = {"attachment.store_full", "squidbot_store_blocked", "store"}
"""Where a retired word has its usual meaning: what keeps files, what the disk holds."""

_LOGGERS = {"log", "_log"}
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def retired_in(names: Iterable[str]) -> dict[str, str]:
    """The names that hold a retired word, with the word to use."""
    found = {}
    for name in set(names) - FIELD_WORDS:
        words = f"_{re.sub(r'[^a-z0-9]+', '_', name.lower())}_"
        for old, use in RETIRED.items():
            if f"_{old}_" in words:
                found[name] = use
    return found


Nodes = list[ast.AST]


def nodes_of(source: str) -> Nodes:
    return list(ast.walk(ast.parse(source)))


@functools.cache
def modules() -> dict[Path, tuple[str, Nodes]]:
    """The text and the syntax of each module; to read them all takes seconds."""
    packages = ("agent_core", "channels", "gateway", "squidbot_api")
    texts = {
        path: path.read_text(encoding="utf-8")
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    }
    assert len(texts) > 300
    return {path: (text, nodes_of(text)) for path, text in texts.items()}


def events_in(nodes: Nodes) -> Iterator[str]:
    """The names of the log events that a module's calls of its logger have."""
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _LEVELS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in _LOGGERS
            and node.args
        ):
            yield from (
                each.value
                for each in ast.walk(node.args[0])
                if isinstance(each, ast.Constant) and isinstance(each.value, str)
            )


@functools.cache
def events() -> set[str]:
    return {name for _, nodes in modules().values() for name in events_in(nodes)}


def names_in(nodes: Nodes) -> Iterator[str]:
    """The names of a module's classes, functions and arguments, as words with ``_`` between them."""
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name).lower()
        elif isinstance(node, ast.arg):
            yield node.arg


def config_keys() -> set[str]:
    found: set[str] = set()
    waiting: list[Any] = [Settings]
    seen = set()
    while waiting:
        kind = plain_type(waiting.pop())
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if kind not in seen:
                seen.add(kind)
                found |= set(kind.model_fields)
                waiting += [field.annotation for field in kind.model_fields.values()]
        else:
            waiting += getattr(kind, "__args__", ())
    return found


def metric_names() -> set[str]:
    found: set[str] = set()
    for one in vars(metrics).values():
        if isinstance(one, MetricWrapperBase):
            found |= {*(family.name for family in one.describe()), *one._labelnames}
    return found


def command_names() -> set[str]:
    found = set(commands(app))
    for command in commands(app).values():
        arguments = command.assemble_argument_collection()
        found |= {name for argument in arguments for name in argument.names}
    return found


@pytest.mark.parametrize(
    ("names", "least", "one"),
    [
        (events, 200, "turn.dead_lettered"),
        (config_keys, 100, "circuit_breaker"),
        (metric_names, 20, "squidbot_queue_rows"),
        (command_names, 60, "--repair"),
    ],
)
def test_no_name_holds_a_retired_word(names, least, one):
    """All of them are looked at, and none is of a private language."""
    found = names()
    assert len(found) > least
    assert one in found
    assert retired_in(found) == {}


def test_no_class_function_or_argument_is_named_by_a_retired_word():
    """Nor is any module, or file of tests."""
    wrong = {
        (str(path.relative_to(ROOT)), name)
        for path, (_, nodes) in modules().items()
        for name in (path.stem, *names_in(nodes))
        if RETIRED_IN_CODE & set(name.split("_"))
    }
    assert wrong == set()
    tests = [path.stem for path in (ROOT / "tests").rglob("*.py")]
    assert {name for name in tests if (RETIRED_IN_CODE - IN_TESTS) & set(name.split("_"))} == set()
    control = "class JobDesk:\n    def lane_of(self, by_pulse, landesk): ..."
    found = {name for name in names_in(nodes_of(control)) if RETIRED_IN_CODE & set(name.split("_"))}
    assert found == {"job_desk", "lane_of", "by_pulse"}


def test_a_retired_word_is_noticed():
    """The control: as a word, at any place in a name, and not as a part of another word."""
    assert retired_in(["pulse.dropped", "mail.sender_not_proven", "email.brake", "--put-off"]).keys() == {
        "pulse.dropped",
        "mail.sender_not_proven",
        "email.brake",
        "--put-off",
    }
    assert retired_in(["mail.impulse_lost", "matrix.bookmarked", "mail.carefully"]) == {}
    assert list(events_in(nodes_of("_log.info('a.b' if x else 'a.c', d='e')"))) == ["a.b", "a.c"]
    assert list(events_in(nodes_of("other.info('a.b')"))) == []


def test_events_are_an_area_and_what_happened():
    """Two parts of small letters, so that one can look for either."""
    wrong = {name for name in events() if not re.fullmatch(r"[a-z_]+\.[a-z_]+", name)}
    assert wrong == set()


def test_the_words_to_use_are_not_retired_themselves():
    """A table that sends people in circles helps nobody."""
    assert retired_in(RETIRED.values()).keys() <= {"ack, high-water mark"}


FOREIGN = frozenset({"HEARTBEAT_OK", "get_prompt", "read_file", "read_resource", "tee"})
"""Names of protocols, tools and programs."""
_REFERENCE = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
_COMMENT = re.compile(r"(?m)(?:^|\s)#.*$")


def pointers_to_nowhere(sources: dict[Path, tuple[str, Nodes]]) -> list[str]:
    """Each reference of a docstring or a comment of which a part is no identifier of the sources."""
    names, words = set(FOREIGN), dict[Path, list[str]]()
    for path, (text, nodes) in sources.items():
        names |= {path.stem, *path.parts}
        words[path] = _COMMENT.findall(text)
        for node in nodes:
            match node:
                case ast.Expr(ast.Constant(str(docstring))):
                    words[path].append(docstring)
                case ast.alias(name, _) | ast.ImportFrom(str(name)):
                    names.update(name.split("."))
                case ast.Name(name) | ast.Attribute(_, name) | ast.arg(name) | ast.keyword(str(name)):
                    names.add(name)
                case ast.ClassDef(name) | ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                    names.add(name)
    return [
        f"{path}: {match[1]}"
        for path, texts in words.items()
        for match in _REFERENCE.finditer("\n".join(texts))
        if not {*match[1].removesuffix(".py").split(".")} <= names
    ]


def test_what_is_referred_to_exists():
    """A renamed function leaves no pointer to nowhere."""
    assert pointers_to_nowhere(modules()) == []


def test_a_pointer_to_nowhere_is_found():
    source = '"""See `two.there` and `one.py`."""\n\nthere = 1  # `here`\n'
    found = pointers_to_nowhere({Path("one.py"): (source, nodes_of(source))})
    assert sorted(each.rpartition(" ")[2] for each in found) == ["here", "two.there"]
