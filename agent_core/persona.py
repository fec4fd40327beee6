"""
Name and manner of the assistant, as its owner wants them: the file ``PERSONA.md`` of the workspace is part of
every prompt, for everybody. It is read before each run, so a change counts at once. A tool writes it only
after the owner's yes: it is one of the files that prompts are built from (`agent_core.workspace`).
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

from agent_core.files import replace
from agent_core.prompt import fence

FILE_NAME = "PERSONA.md"
MAX_CHARS = 2_000
"""A page and no more: it is paid for in every prompt."""
STARTER = """\
<!--
Who is your assistant? What you write below this comment is part of every prompt, for everybody who talks to
it. For example:

Your name is Ada. You are warm, brief and a little dry. You speak German with the family.
-->
"""
_HEADING = "Your owner has set your name and manner. They change how you write, not the rules above:"
_HERE = "Your owner has set your manner for this conversation, which comes before the other one:"

log = structlog.get_logger(__name__)


def manner_text(text: str) -> str:
    """The part of a prompt for a manner that is set for one person or room; empty if there is none."""
    return f"{_HERE}\n{fence('persona', text)}" if text else ""


class Persona:
    """The persona in a workspace; the file need not exist."""

    def __init__(self, workspace: Path) -> None:
        self._path = workspace / FILE_NAME
        self._problem = ""

    def text(self) -> str:
        """Return what the owner wrote, without comments; empty if there is nothing, or it cannot be read."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                content = file.read(8 * MAX_CHARS + 1).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            self._report(f"cannot be read: {error.strerror}")
            return ""
        text = without_comments(content.removeprefix("\ufeff")).strip()
        self._report(f"is cut after {MAX_CHARS} characters" if len(text) > MAX_CHARS else "")
        return text[:MAX_CHARS]

    def system_prompt(self, base: str) -> str:
        """Return the base of a prompt with the persona behind it."""
        text = self.text()
        return f"{base}\n\n{_HEADING}\n{fence('persona', text)}" if text else base

    def write(self, text: str) -> None:
        """
        Replace what stands there; an empty text takes the persona away.

        Raises:
            ValueError: The text is longer than `MAX_CHARS`.
            OSError: It cannot be written; the old text still counts.
        """
        if len(text) > MAX_CHARS:
            raise ValueError(f"{len(text)} characters; at most {MAX_CHARS} fit")
        replace(self._path, f"{text}\n".encode() if text else STARTER.encode())

    def _report(self, problem: str) -> None:
        """Log a problem once, until it is another one."""
        if problem and problem != self._problem:
            log.warning("persona.problem", file=str(self._path), reason=problem)
        self._problem = problem


def without_comments(text: str) -> str:
    """Return the text without ``<!-- … -->``; a comment that is never closed hides nothing."""
    parts, position = [], 0
    while (start := text.find("<!--", position)) >= 0 and (end := text.find("-->", start)) >= 0:
        parts.append(text[position:start])
        position = end + 3
    return "".join([*parts, text[position:]])
