"""
The texts for people in the source, and their translations: `python -m tests.catalogue` adds those that are new to
each catalogue, without a translation, removes those that are gone, and lists what is still to translate.
"""

from __future__ import annotations

import ast
import calendar
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import polib

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "agent_core" / "language"
PACKAGES = ("agent_core", "channels", "gateway")
_MAY_HAVE_TEXTS = re.compile(r"agent_core\.language import|public=|^class \w+\([A-Z]\w+\):", re.MULTILINE)
MARKS = {"_", "gettext", "gettext_noop"}
NAMES = [
    *calendar.day_abbr,
    *calendar.day_name,
    *calendar.month_abbr[1:],
    *calendar.month_name[1:],
    *(",.", " and ", " or "),  # `show_number` and `list_of`
    *("CET", "CEST"),  # `show_time`
]
"""Texts that are made where no literal stands, each beside what makes it."""


def product_files() -> Iterator[Path]:
    """The source files of the product."""
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def keys_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each text that a module marks, with its plural or ""; also what an error says in ``public=``."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in MARKS and node.args:
            yield from ((text, "") for text in literals(node.args[0]))
        elif name == "ngettext":
            one, many = (part.value for part in node.args[:2] if isinstance(part, ast.Constant))
            yield one, many
        for keyword in node.keywords:
            if keyword.arg == "public":
                yield from ((text, "") for text in literals(keyword.value))


def literals(node: ast.expr) -> Iterator[str]:
    """The text of a literal, and those of both ends of a condition."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from literals(one)
            yield from literals(other)


def error_texts(trees: Iterable[ast.AST]) -> Iterator[str]:
    """The first line of the docstring of every error that says it to its person (`AgentError`, `ChannelError`)."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    told, more = {"GatewayError", "AgentError", "ChannelError"}, {"AgentError", "ChannelError"}
    while more:
        bases, more = more, set()
        for each in classes:
            if each.name not in told and any(ast.unparse(base) in bases for base in each.bases):
                more.add(each.name)
        told |= more
    for each in classes:
        if each.name in told and (text := ast.get_docstring(each)):
            yield text.splitlines()[0]


@cache
def wanted() -> dict[str, str]:
    """Every text that a catalogue must have, with its plural or ""."""
    found = dict.fromkeys(NAMES, "")
    sources = (path.read_text(encoding="utf-8") for path in product_files())
    trees = [ast.parse(source) for source in sources if _MAY_HAVE_TEXTS.search(source)]
    for tree in trees:
        found |= dict(keys_in(tree))
    for text in error_texts(trees):
        found.setdefault(text, "")
    found |= dict.fromkeys(state_names(), "")
    return {text: many for text, many in found.items() if text}


def state_names() -> Iterator[str]:
    """The names of states, kinds and reasons, which are shown as words."""
    from agent_core.messages import Background
    from agent_core.models import Purpose
    from gateway.routing.admissions import _PATTERNS
    from gateway.store.background_job_rows import BackgroundState
    from gateway.store.model import JobKind, RunOutcome

    for kinds in (BackgroundState, JobKind, RunOutcome, Purpose):
        yield from (each.value for each in kinds)
    yield from get_args(Background.model_fields["kind"].annotation)
    yield from ("pause", "resume")  # of a job
    yield from (name.replace("_", " ") for name in _PATTERNS if "%" not in name)


def update(path: Path) -> list[str]:
    """Bring a catalogue up to date; return what it does not translate."""
    catalogue, keys = polib.pofile(str(path), wrapwidth=100), wanted()
    known = {entry.msgid: entry for entry in catalogue}
    for text, entry in known.items():
        if text not in keys or (entry.msgid_plural or "") != keys[text]:
            catalogue.remove(entry)
    for text, many in keys.items():
        if text not in known or (known[text].msgid_plural or "") != many:
            plural = {"msgid_plural": many, "msgstr_plural": {0: "", 1: ""}} if many else {}
            catalogue.append(polib.POEntry(msgid=text, **plural))
    catalogue.sort(key=lambda entry: entry.msgid.casefold())
    catalogue.save()
    return [entry.msgid for entry in catalogue.untranslated_entries()]


if __name__ == "__main__":
    for file in sorted(FOLDER.glob("*.po")):
        for missing in update(file):
            sys.stdout.write(f"{file.name}: {missing!r}\n")
