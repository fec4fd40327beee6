"""Writes a whole conversation, page by page, so that a long one needs no more memory than a short one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from gateway.errors import GatewayError

__all__ = ["ExportFailed", "export_session"]


class ExportFailed(GatewayError):
    """The conversation cannot be written there."""

    exit_code = 73  # EX_CANTCREAT


def export_session(call: Callable[..., dict[str, Any]], session: str, output: Path | None) -> int:
    """
    Write the messages of ``session``, oldest first, one JSON object per line.

    Args:
        call: Calls an operation.
        session: The conversation.
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
