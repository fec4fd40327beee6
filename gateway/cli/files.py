"""The commands ``squidbot files …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result

files = App(
    name="files",
    help="Files that the assistant has changed, and their earlier versions.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@files.command(name="history")
def files_history(
    path: str | None = None,
    /,
    *,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=1000))] = 50,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    List the changes, newest first.

    Args:
        path: Only changes of this file, named as the assistant names it.
        limit: Maximum number of changes.
    """
    from gateway.cli import render

    answer = ask(where, "files_history", path=path, limit=limit)
    print_result(as_json, answer, render.file_changes(answer, path))
    return 0


@files.command(name="diff")
def files_diff(number: int, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show the difference that a change made.

    Args:
        number: The change.
    """
    from gateway.system.terminal_text import plain_text

    answer = ask(where, "files_diff", id=number)
    print_result(as_json, answer, plain_text(answer["diff"]))
    return 0


@files.command(name="undo")
def files_undo(number: int, /, *, force: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Undo a change, as a new change that can itself be undone.

    Args:
        number: The change.
        force: Undo it even if the file has changed since.
    """
    from gateway.system.terminal_text import plain_line

    answer = ask(where, "files_undo", id=number, force=force)
    print_result(
        as_json, answer, plain_line(f"{answer['path']} is as before change {number} (change {answer['id']})")
    )
    return 0
