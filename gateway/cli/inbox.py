"""
The commands ``squidbot inbox …``.

Messages, drafts and calls of tools have the names by which the bot calls them, too: ``m7`` is a message,
``d5`` a draft, ``a3f2c9`` a call that waits for a yes or an answer. A number alone is what the command is
mostly used for.
"""

# ruff: noqa: PLC0415 - a command loads what it needs when it is called

from __future__ import annotations

from typing import Any

from cyclopts import App, Parameter

from gateway.cli.context import HERE, Json, Where, ask
from gateway.cli.output import print_result

_MESSAGE, _DRAFT = "message", "draft"

inbox = App(
    name="inbox",
    help="Accepted messages: where they are and what became of them.",
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
    refused: bool = False,
    limit: int = 50,
    where: Where = HERE,
    as_json: Json = False,
) -> int:
    """
    List messages, newest first.

    Args:
        state: Only these: ready, running, answered, settled, dead, ignored, quarantined (default: all but
            ignored).
        session: Only this session.
        quarantine: Only quarantined messages (squidbot inbox release|drop NAME).
        held: Show pending approvals instead: drafts, tool calls and what MCP servers ask (squidbot inbox
            approve|reject|answer NAME).
        refused: Only what was not let in, and why: quarantined messages, unknown senders, mails that could
            not be read. Robots are only counted.
        limit: Maximum number of lines.
    """
    from gateway.cli import render

    if held:
        answer = ask(where, "drafts_list", limit=limit)
        print_result(as_json, answer, render.render_approvals(answer["rows"], answer["calls"]))
        return 0
    state = [*(state or ()), "quarantined"] if quarantine else state
    answer = ask(where, "inbox_list", states=state, session=session, limit=limit, refused=refused)
    print_result(as_json, answer, render.inbox_rows(answer["rows"]))
    return 0


@inbox.command(name="show")
def inbox_show(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Show a message and its replies, or a draft.

    Args:
        name: As shown by the list: 7, m7, or d5 for a draft.
    """
    from gateway.cli import render

    kind, number = _named(name, _MESSAGE)
    if kind == _DRAFT:
        answer = ask(where, "drafts_show", id=number)
        print_result(as_json, answer, render.draft(answer))
        return 0
    answer = ask(where, "inbox_show", id=number)
    print_result(as_json, answer, render.inbox_row(answer))
    return 0


@inbox.command(name="retry")
def inbox_retry(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Retry a failed message.

    Args:
        name: As shown by the list, such as 7.
    """
    _, number = _named(name, _MESSAGE, only=True)
    answer = ask(where, "inbox_retry", id=number)
    told = "is tried again" if answer.get("running", True) else "will be tried when the daemon runs"
    if not answer["changed"]:
        told = "has not failed, so there is nothing to try again"
    print_result(as_json, answer, f"message {number} {told}")
    return 0 if answer["changed"] else 1


@inbox.command(name="drop")
def inbox_drop(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Discard a message: it is not answered, and nothing more is sent for it.

    Args:
        name: As shown by the list: 7, m7, or d5 for a draft or for a message that could not be sent.
    """
    kind, number = _named(name, _MESSAGE)
    return _rejected(number, "", where, as_json) if kind == _DRAFT else _dropped(number, where, as_json)


@inbox.command(name="release")
def inbox_release(name: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Release a message from quarantine: it is answered, and still nothing proves who wrote it.

    Args:
        name: As shown by `inbox list --quarantine`, such as m7.
    """
    kind, number = _named(name, _MESSAGE)
    return _approved(number, None, where, as_json) if kind == _DRAFT else _released(number, where, as_json)


@inbox.command(name="allow")
def inbox_allow(address: str, /, *, remove: bool = False, where: Where = HERE, as_json: Json = False) -> int:
    """
    Let somebody write to squidbot beside `allow_from`, and answer what was kept of them.

    Args:
        address: A mail address or a Matrix id.
        remove: Take that back; who stands in `allow_from` stays in.
    """
    answer = ask(where, "inbox_allow", address=address, remove=remove)
    told = f"{answer['address']} may {'not write any more' if remove else 'write now'}"
    kept = f"; {answer['messages']} kept messages are answered" if answer["messages"] else ""
    print_result(as_json, answer, f"{told} ({', '.join(answer['channels'])}){kept}")
    return 0


@inbox.command(name="approve")
def inbox_approve(
    name: str, /, *, text: str | None = None, where: Where = HERE, as_json: Json = False
) -> int:
    """
    Approve a draft or a tool call.

    Args:
        name: As shown by `inbox list --held`, such as d5 or a3f2c9; m7 releases a message from quarantine.
        text: Send this text instead of the draft's.
    """
    if _is_call(name) and text is None:
        return _decided(name, where, as_json, yes=True)
    kind, number = _named(name, _DRAFT)
    if kind == _MESSAGE and text is None:
        return _released(number, where, as_json)
    return _approved(_named(name, _DRAFT, only=True)[1], text, where, as_json)


@inbox.command(name="reject")
def inbox_reject(name: str, /, *, why: str = "", where: Where = HERE, as_json: Json = False) -> int:
    """
    Reject a draft or a tool call.

    Args:
        name: As shown by `inbox list --held`, such as d5 or a3f2c9; m7 discards a quarantined message.
        why: The reason; for a tool call, the model is told.
    """
    if _is_call(name):
        return _decided(name, where, as_json, yes=False, why=why)
    kind, number = _named(name, _DRAFT)
    return _dropped(number, where, as_json) if kind == _MESSAGE else _rejected(number, why, where, as_json)


@inbox.command(name="answer")
def inbox_answer(name: str, text: str, /, *, where: Where = HERE, as_json: Json = False) -> int:
    """
    Answer what an MCP server asks during a call; the answer goes to that server.

    Args:
        name: As shown by `inbox list --held`, such as a3f2c9.
        text: The value; several as "city: Berlin; nights: 3".
    """
    return _settled(ask(where, "calls_answer", call=name, text=text), as_json)


def _named(name: str, kind: str, *, only: bool = False) -> tuple[str, int]:
    """Parse a name; a bare number is of ``kind``, with ``only`` all must be. Raises RequestInvalid."""
    from gateway.operations.arguments import RequestInvalid

    text = name.strip().lower()
    letters = {"m": _MESSAGE, "d": _DRAFT}
    found, number = (letters[text[0]], text[1:]) if text[:1] in letters else (kind, text)
    if not (number.isascii() and number.isdigit() and len(number) <= 15):
        raise RequestInvalid(
            f"{name!r} is not a name; `squidbot inbox list` and `inbox list --held` show the names, such as "
            "7, d5 or a3f2c9"
        )
    if only and found != kind:
        raise RequestInvalid(f"{name} is a {found}; this is for a {kind}")
    return found, int(number)


def _is_call(name: str) -> bool:
    from gateway.turns.approvals.tool_decisions import clean_name, is_call

    return is_call(clean_name(name))


def _decided(name: str, where: Where, as_json: Json, *, yes: bool, why: str = "") -> int:
    return _settled(ask(where, "calls_decide", call=name, yes=yes, why=why), as_json)


def _settled(answer: dict[str, Any], as_json: Json) -> int:
    call = answer["call"]
    told = f"is {call['verdict']}" + ("" if answer["running"] else ", which counts when the daemon runs")
    not_so = f"was {call['verdict']} before" if call["verdict"] else "has waited too long; it is not done"
    return _print_outcome(answer, f"call {call['name']} of {call['tool']}", told, not_so, as_json)


def _released(number: int, where: Where, as_json: Json) -> int:
    answer = ask(where, "inbox_release", id=number)
    told = "is answered now" if answer.get("running", True) else "will be answered when the daemon runs"
    return _print_outcome(answer, f"message {number}", told, "is not in quarantine", as_json)


def _dropped(number: int, where: Where, as_json: Json) -> int:
    answer = ask(where, "inbox_drop", id=number)
    not_so = "is being answered or was answered; nothing to give up"
    return _print_outcome(answer, f"message {number}", "is given up", not_so, as_json)


def _approved(number: int, text: str | None, where: Where, as_json: Json) -> int:
    answer = ask(where, "drafts_approve", id=number, text=text)
    told = "is sent now" if answer.get("running", True) else "will be sent when the daemon runs"
    not_so = f"does not wait for approval: it is {answer.get('draft', {}).get('state')}"
    return _print_outcome(answer, f"draft {number}", told, not_so, as_json)


def _rejected(number: int, why: str, where: Where, as_json: Json) -> int:
    answer = ask(where, "drafts_reject", id=number, why=why)
    not_so = f"does not wait for approval: it is {answer.get('draft', {}).get('state')}"
    return _print_outcome(answer, f"d{number}", "is thrown away", not_so, as_json)


def _print_outcome(answer: dict[str, Any], what: str, done: str, not_so: str, as_json: Json) -> int:
    """Print the outcome and return the exit code: 0 if something changed, else 1."""
    print_result(as_json, answer, f"{what} {done if answer['changed'] else not_so}")
    return 0 if answer["changed"] else 1
