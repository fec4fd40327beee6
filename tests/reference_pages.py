"""
The reference pages of the manual that are made of the code: ``python -m tests.reference_pages`` writes them anew.

What one looks up stands in blocks, so that it is found with grep and does not count as text.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from textwrap import dedent

from pydantic import BaseModel

import agent_core.storage
import gateway.system.home
from agent_core.messages import Attachment
from agent_core.models import Message, ToolCall
from gateway.operations.operation_registry import all_operations
from gateway.store.sql import tables
from tests.catalogue import ROOT, literals, product_files

FOLDER = ROOT / "docs" / "reference"
API = ROOT / "tests" / "contract" / "api.txt"
_LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
_NO_FIELDS = {"exc_info", "stack_info"}


def events_in(trees: Iterable[ast.AST]) -> dict[str, tuple[set[str], set[str]]]:
    """The events that sources log: of each its levels, and the names of its fields."""
    found: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Call(func=ast.Attribute(attr=level), args=[said, *_]) if level in _LEVELS:
                for name in (text for text in literals(said) if "." in text and " " not in text):
                    levels, fields = found[name]
                    levels.add("error" if level == "exception" else level)
                    fields.update(each.arg for each in node.keywords if each.arg)
    return {name: (levels, fields - _NO_FIELDS) for name, (levels, fields) in sorted(found.items())}


def _log_events() -> str:
    events = events_in(ast.parse(path.read_text()) for path in product_files())
    rows = [
        f"{name:45} {'/'.join(sorted(levels)):14} {' '.join(sorted(fields))}".rstrip()
        for name, (levels, fields) in events.items()
    ]
    return _page(
        "Events of the log",
        "Each line of the log is a JSON object: `time`, `level`, `event`, and the fields of the event, besides those "
        "of the turn or the channel in which it happened. `squidbot logs --level warning` shows them. Each row here "
        "is an event with its levels and its own fields.",
        *rows,
    )


def _operations() -> str:
    rows = []
    for key, each in sorted(all_operations().items()):
        command = f"squidbot {each.name}" if each.render is not None else "no command"
        arguments = ", ".join(list(inspect.signature(each.run).parameters)[1:])
        rows += [f"{key} ({command}; {'changes' if each.writes else 'reads'})"]
        rows += [f"    {(each.run.__doc__ or '').strip().splitlines()[0]}"]
        rows += [f"    arguments: {arguments}"] if arguments else []
        rows += [f"    in a chat: {', '.join(f'!{one.words}' for one in each.chats)}"] if each.chats else []
    return _page(
        "Operations",
        "What an operator can request. The command line, the console and the commands of a chat call the same "
        "operations, over the control socket of the daemon or on a home at rest: "
        "[commands](../commands.md), [the console](../console.md), [in a chat](../commands-in-a-chat.md). Those "
        "without a command are for the console and for programs.",
        *rows,
    )


def _plugin_api() -> str:
    return _page(
        "The interface for plugins",
        "All that a package of your own may import from `squidbot_api`; a change of it changes `API_VERSION`. "
        "[A channel](../own-channel.md) and [a tool](../own-tools.md) of one's own show its use.",
        *API.read_text().splitlines(),
    )


def _fields(model: type[BaseModel]) -> Iterator[str]:
    yield f"{model.__name__}:"
    for name, field in model.model_fields.items():
        kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
        plain = (
            kind.replace("typing.", "").replace("agent_core.models.", "").replace("agent_core.messages.", "")
        )
        yield f"    {name}: {plain}{'' if field.is_required() else ' (may be left out)'}"


def _file_formats() -> str:
    home = inspect.getdoc(gateway.system.home) or ""
    lines = [line for line in home.splitlines() if line.startswith("    HOME/")]
    storage = inspect.getdoc(agent_core.storage) or ""
    layout = storage.partition("::\n\n")[2].partition("\nFiles:")[0]
    return _page(
        "Files of a home",
        "What lies where, what a line of a history says, and the tables of the queue. Histories and memory are for "
        "you to read; nothing but squidbot may open `gateway.db` while the daemon runs. "
        "[Backups](../data.md) say what to keep.",
        *dedent("\n".join(lines)).splitlines(),
        "",
        *dedent(layout).splitlines(),
        "",
        *(line for model in (Message, ToolCall, Attachment) for line in (*_fields(model), "")),
        f"gateway.db, version {tables.VERSION}:",
        *tables.TABLES.strip().splitlines(),
    )


def _page(title: str, text: str, *lines: str) -> str:
    block = "\n".join(lines)
    return f"# {title}\n\n{text}\n\nThis page is made of the code.\n\n```text\n{block}\n```\n"


PAGES = {
    "log-events.md": _log_events,
    "operations.md": _operations,
    "plugin-api.md": _plugin_api,
    "file-formats.md": _file_formats,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        text = make()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text:
            (FOLDER / name).write_text(text)
            sys.stdout.write(f"{FOLDER / name} has changed\n")
