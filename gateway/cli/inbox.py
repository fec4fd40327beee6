"""The commands ``squidbot inbox …``."""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called
# ruff: noqa: D417 - what all commands share is told in one place

from __future__ import annotations

from cyclopts import App, Parameter

from gateway.cli.shared import HERE, Json, Where, ask, tell

__all__ = ["inbox"]

inbox = App(
    name="inbox",
    help="Every message that was accepted: where it is and what became of it.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)


@inbox.command(name="list")
def inbox_list(
    *,
    state: list[str] | None = None,
    session: str | None = None,
    limit: int = 50,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    List messages, newest first.

    Args:
        state: Only these: ready, running, answered, settled, dead, ignored (default: all but ignored).
        session: Only of this session.
        limit: At most so many.
    """
    from gateway.cli import show

    answer = ask(where, "inbox_list", states=state, session=session, limit=limit)
    tell(as_json, answer, show.inbox_rows(answer["rows"]))
    return 0


@inbox.command(name="show")
def inbox_show(number: int, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show a message and what was sent for it.

    Args:
        number: Its ID, as the list shows it.
    """
    from gateway.cli import show

    answer = ask(where, "inbox_show", id=number)
    tell(as_json, answer, show.inbox_row(answer))
    return 0


@inbox.command(name="retry")
def inbox_retry(number: int, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Try a message that failed once more.

    Args:
        number: Its ID.
    """
    answer = ask(where, "inbox_retry", id=number)
    told = "is tried again" if answer.get("running", True) else "will be tried when the daemon runs"
    if not answer["changed"]:
        told = "has not failed, so there is nothing to try again"
    tell(as_json, answer, f"message {number} {told}")
    return 0 if answer["changed"] else 1


@inbox.command(name="drop")
def inbox_drop(number: int, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Give a message up: it is not answered, and what was to be sent for it is not sent.

    Args:
        number: Its ID.
    """
    answer = ask(where, "inbox_drop", id=number)
    told = "is given up" if answer["changed"] else "is being answered or was answered; nothing to give up"
    tell(as_json, answer, f"message {number} {told}")
    return 0 if answer["changed"] else 1
