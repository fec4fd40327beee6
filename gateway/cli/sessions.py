"""``squidbot sessions export`` and ``reset``; an export is written page by page, for the memory's sake."""

# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from gateway.cli.command_context import HERE, Json, Where, ask, asker, confirm
from gateway.cli.generated_commands import make_group
from gateway.cli.output import print_result
from gateway.errors import GatewayError

sessions = make_group(__name__)


@sessions.command(name="export")
def sessions_export(session: str, /, *, output: Path | None = None, where: Where = HERE) -> int:
    """
    Export a whole conversation as JSON lines.

    Args:
        session: Its name, as shown by the list.
        output: A file that does not exist yet (default: the standard output).
    """
    count = export_session(asker(where).call, session, output)
    if output is not None:
        print(f"{count} messages written to {output}")
    return 0


@sessions.command(name="reset")
def sessions_reset(session: str, /, *, yes: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Reset a conversation: its history leaves the prompt. The history file and saved memories stay.

    Args:
        session: Its name, as shown by the list.
        yes: Do not ask.
    """
    if not yes:
        ask(where, "sessions_show", session=session, limit=1)  # there must be one to ask about
        if not confirm(f"Reset {session}, and drop the messages that wait in it?"):
            print("nothing was changed", file=sys.stderr)
            return 1
    answer = ask(where, "sessions_reset", session=session)
    print_result(as_json, answer, f"{session} was reset")
    return 0


class ExportFailed(GatewayError):
    """The conversation cannot be written there."""

    exit_code = 73  # EX_CANTCREAT


def export_session(call: Callable[..., dict[str, Any]], session: str, output: Path | None) -> int:
    """
    Write the messages of ``session``, oldest first, one JSON object per line.

    Args:
        output: A new file, readable for its owner alone; None for the standard output.

    Returns:
        How many messages were written.

    Raises:
        ExportFailed: The file exists or cannot be written.
        NotFound: There is no such conversation; then no file is made.
    """
    page = call("sessions_page", session=session, start=0)
    if output is None:
        return _write(call, session, page, sys.stdout)
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor
            return _write(call, session, page, stream)
    except OSError as error:
        raise ExportFailed(f"{output} cannot be written: {error.strerror or error}") from error


def _write(call: Callable[..., dict[str, Any]], session: str, page: dict[str, Any], stream: TextIO) -> int:
    count = 0
    while True:
        for message in page["messages"]:
            # ASCII escapes, because half a surrogate pair fits into no encoding.
            stream.write(json.dumps(message) + "\n")
            count += 1
        if page["next"] is None:
            return count
        page = call("sessions_page", session=session, start=page["next"])
