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
    quarantine: bool = False,
    held: bool = False,
    limit: int = 50,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    List messages, newest first.

    Args:
        state: Only these: ready, running, answered, settled, dead, ignored, quarantined (default: all but
            ignored).
        session: Only of this session.
        quarantine: Those that wait to be let in (squidbot inbox release ID).
        held: Drafts instead, which wait to be approved (squidbot inbox approve|reject ID).
        limit: At most so many.
    """
    from gateway.cli import show

    if held:
        answer = ask(where, "drafts_list", limit=limit)
        tell(as_json, answer, show.drafts(answer["rows"]))
        return 0
    state = [*(state or ()), "quarantined"] if quarantine else state
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


@inbox.command(name="release")
def inbox_release(number: int, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Let a message out of quarantine: it is answered as if its sender were proven.

    Args:
        number: Its ID, as `inbox list --quarantine` shows it.
    """
    answer = ask(where, "inbox_release", id=number)
    told = "is answered now" if answer.get("running", True) else "will be answered when the daemon runs"
    if not answer["changed"]:
        told = "is not in quarantine"
    tell(as_json, answer, f"message {number} {told}")
    return 0 if answer["changed"] else 1


@inbox.command(name="approve")
def inbox_approve(
    number: int, /, *, text: str | None = None, where: Where = HERE, as_json: Json = False
) -> int:
    """
    Send a draft.

    Args:
        number: Its ID, as `inbox list --held` shows it.
        text: Send this instead of its own words.
    """
    answer = ask(where, "drafts_approve", id=number, text=text)
    told = "is sent now" if answer.get("running", True) else "will be sent when the daemon runs"
    if not answer["changed"]:
        told = f"does not wait for approval: it is {answer['draft']['state']}"
    tell(as_json, answer, f"draft {number} {told}")
    return 0 if answer["changed"] else 1


@inbox.command(name="reject")
def inbox_reject(number: int, /, *, why: str = "", where: Where = HERE, as_json: Json = False) -> int:
    """
    Never send a draft.

    Args:
        number: Its ID, as `inbox list --held` shows it.
        why: What is noted as the reason.
    """
    answer = ask(where, "drafts_reject", id=number, why=why)
    told = "is thrown away"
    if not answer["changed"]:
        told = f"does not wait for approval: it is {answer['draft']['state']}"
    tell(as_json, answer, f"draft {number} {told}")
    return 0 if answer["changed"] else 1
