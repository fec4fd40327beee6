"""The commands ``squidbot memory …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result

memory = App(
    name="memory",
    help="Memory documents and their versions.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)

_Scope = Annotated[str, Parameter(help="owner, person:ADDRESS or room:SESSION.")]


@memory.command(name="list")
def memory_list(*, where: Where = HERE, as_json: Json = False) -> int:
    """List the memory documents."""
    from gateway.system.terminal_text import plain_line

    answer = ask(where, "memory_list")
    print_result(as_json, answer, "\n".join(map(plain_line, answer["scopes"])) or "nothing is remembered yet")
    return 0


@memory.command(name="show")
def memory_show(scope: _Scope = "owner", /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Show a memory document."""
    from gateway.system.terminal_text import plain_text

    answer = ask(where, "memory_show", scope=scope)
    print_result(as_json, answer, plain_text(answer["text"]) or "this memory is empty")
    return 0


@memory.command(name="history")
def memory_history(scope: _Scope = "owner", /, *, where: Where = HERE, as_json: Json = False) -> int:
    """Show the versions of a memory document."""
    from gateway.cli import render

    answer = ask(where, "memory_history", scope=scope)
    print_result(as_json, answer, render.memory_versions(answer))
    return 0


@memory.command(name="diff")
def memory_diff(
    scope: _Scope = "owner",
    /,
    *,
    older: int | None = None,
    newer: int | None = None,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    Show the differences between two versions of a memory document.

    Args:
        older: The older version (default: the one before the newer).
        newer: The newer version (default: the current one).
    """
    from gateway.cli import render

    answer = ask(where, "memory_diff", scope=scope, older=older, newer=newer)
    print_result(as_json, answer, render.memory_diff(answer))
    return 0


@memory.command(name="undo")
def memory_undo(
    scope: _Scope = "owner", /, *, to: int | None = None, where: Where = HERE, as_json: Json = False
) -> int:
    """
    Restore an earlier version of a memory document, as a new version.

    Args:
        to: The version (default: the one before the current one).
    """
    answer = ask(where, "memory_undo", scope=scope, to=to)
    told = f"version {answer['restored']} is back" if answer["restored"] else "the memory is empty again"
    print_result(as_json, answer, f"{told}, as version {answer['version']}")
    return 0


@memory.command(name="write")
def memory_write(
    scope: _Scope = "owner", /, *, version: int | None = None, where: Where = HERE, as_json: Json = False
) -> int:
    """
    Replace a memory document by the text on standard input; the text before stays a version.

    Args:
        version: Write only if this is the current version.
    """
    import shlex
    import sys

    if sys.stdin.isatty():
        sys.stderr.write("Type the text, then Ctrl-D at the beginning of a line.\n")
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    answer = ask(where, "memory_write", scope=scope, text=text, version=version)
    told = f"written, as version {answer['version']}"
    if not text.strip():  # more often a pipe that has failed than a wish
        undo = f"squidbot memory undo {shlex.quote(scope)}"
        told = f"the memory is empty now, {told}; `{undo}` brings the text back"
    print_result(as_json, answer, told)
    return 0
