"""The commands ``squidbot sessions …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: D417 - what all commands share is told in one place
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import sys
from pathlib import Path

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, agreed, ask, asker, tell

__all__ = ["sessions"]

sessions = App(
    name="sessions", help="Conversations.", help_format="plaintext", default_parameter=Parameter(negative=())
)


@sessions.command(name="list")
def sessions_list(*, limit: int = 200, where: Where = HERE, as_json: Json = False) -> int:
    """
    List conversations, the one spoken in last first.

    Args:
        limit: At most so many.
    """
    from gateway.cli import render

    answer = ask(where, "sessions_list", limit=limit)
    tell(as_json, answer, render.sessions(answer))
    return 0


@sessions.command(name="show")
def sessions_show(session: str, /, *, limit: int = 20, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show the newest messages of a conversation, its summary, what its next prompt holds, and what waits.

    Args:
        session: Its name, as the list shows it.
        limit: At most so many messages.
    """
    from gateway.cli import render

    answer = ask(where, "sessions_show", session=session, limit=limit)
    tell(as_json, answer, render.session(answer))
    return 0


@sessions.command(name="export")
def sessions_export(session: str, /, *, output: Path | None = None, where: Where = HERE) -> int:
    """
    Write a whole conversation as lines of JSON.

    Args:
        session: Its name, as the list shows it.
        output: A file, which must not exist yet (default: the standard output).
    """
    from gateway.cli.export import export_session

    count = export_session(asker(where).call, session, output)
    if output is not None:
        print(f"{count} messages written to {output}")
    return 0


@sessions.command(name="reindex")
def sessions_reindex(*, where: Where = HERE, as_json: Json = False) -> int:
    """Make the index, in which the assistant searches what was said, anew from the histories."""
    from gateway.cli import render

    answer = ask(where, "sessions_reindex")
    tell(as_json, answer, render.reindexed(answer))
    return 0


@sessions.command(name="reset")
def sessions_reset(session: str, /, *, yes: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Let a conversation begin anew. The file of its history stays; memories that were saved stay, too.

    Args:
        session: Its name, as the list shows it.
        yes: Do not ask.
    """
    if not yes and not agreed(f"Let {session} begin anew, and drop what waits in it?"):
        print("nothing was changed", file=sys.stderr)
        return 1
    answer = ask(where, "sessions_reset", session=session)
    tell(as_json, answer, f"{session} begins anew")
    return 0
