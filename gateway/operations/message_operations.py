"""
Operations on accepted messages. Messages, drafts and calls of tools have the names by which the bot calls
them, too: ``m7`` is a message, ``d5`` a draft, ``a3f2c9`` a call that waits for a yes or an answer. A number
alone is a message here, and a draft where something is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from agent_core.operation import InChat, Option, Who, operation
from agent_core.text import read_number
from gateway.errors import NotFound
from gateway.operations import render
from gateway.operations.operation_arguments import RequestInvalid, capped_limit, parse_session, parse_state
from gateway.operations.operation_context import OperationContext
from gateway.operations.render import chat_text
from gateway.store.states import IllegalMove, InboxState

Name = str | int
_MESSAGE, _DRAFT = "message", "draft"
_TOO_LATE = "is being answered or was answered; nothing to give up"


def _parse_name(name: str | int, kind: str, *, only: bool = False) -> tuple[str, int]:
    """Parse a name; a bare number is of ``kind``, with ``only`` all must be. Raises RequestInvalid."""
    text = str(name).strip().lower()
    letters = {"m": _MESSAGE, "d": _DRAFT}
    found, digits = (letters[text[0]], text[1:]) if text[:1] in letters else (kind, text)
    if (number := read_number(digits)) is None:
        raise RequestInvalid(
            f"{name!r} is not a name; `squidbot inbox list` and `inbox list --held` show the names, such as "
            "7, d5 or a3f2c9"
        )
    if only and found != kind:
        raise RequestInvalid(f"{name} is a {found}; this is for a {kind}")
    return found, number


def _has_failed(answer: Mapping[str, Any]) -> bool:
    return not answer["changed"]


def _outcome_text(answer: Mapping[str, Any], *, yes: bool) -> str:
    """The outcome of a decision about a call, a draft or a message."""
    later = not answer.get("running", True)
    if "call" in answer:
        call = answer["call"]
        what = f"call {call['name']} of {call['tool']}"
        done = f"is {call['verdict']}" + (", which counts when the daemon runs" if later else "")
        not_so = f"was {call['verdict']} before" if call["verdict"] else "has waited too long; it is not done"
    elif "draft" in answer:
        what = f"draft {answer['id']}" if yes else f"d{answer['id']}"
        done = ("will be sent when the daemon runs" if later else "is sent now") if yes else "is thrown away"
        not_so = f"does not wait for approval: it is {answer['draft']['state']}"
    else:
        what = f"message {answer['id']}"
        done = "will be answered when the daemon runs" if later else "is answered now"
        done, not_so = (done, "is not in quarantine") if yes else ("is given up", _TOO_LATE)
    return f"{what} {done if answer['changed'] else not_so}"


_approved_text, _rejected_text = partial(_outcome_text, yes=True), partial(_outcome_text, yes=False)


def _list_text(answer: Mapping[str, Any]) -> str:
    if "calls" in answer:
        return render.render_approvals(answer["rows"], answer["calls"])
    return render.inbox_rows(answer["rows"])


@operation(
    "inbox list",
    writes=False,
    render=_list_text,
    chats=[InChat("allow", Who.OWNER, chat_text.refusals_text, {"refused": True, "limit": 500})],
)
async def list_messages(
    context: OperationContext,
    *,
    states: Annotated[
        list[str] | None,
        Option(
            "--state",
            "Only these: ready, running, answered, settled, dead, ignored, quarantined (default: all but "
            "ignored).",
        ),
    ] = None,
    session: str | None = None,
    quarantine: bool = False,
    held: bool = False,
    refused: bool = False,
    limit: int = 50,
) -> dict[str, Any]:
    """
    List messages, newest first.

    Args:
        session: Only this session.
        quarantine: Only quarantined messages (squidbot inbox release|drop NAME).
        held: Show pending approvals instead: drafts, tool calls and what MCP servers ask (squidbot inbox
            approve|reject|answer NAME).
        refused: Only what was not let in, and why: quarantined messages, unknown senders, mails that could
            not be read. Robots are only counted.
        limit: Maximum number of lines.
    """
    from gateway.operations import decision_operations
    from gateway.operations.operation_views import inbox_row
    from gateway.routing.admissions import refused_rows

    if held:
        return await decision_operations.list_held(context, limit=limit)
    wanted = [*(states or ()), *(["quarantined"] if quarantine else [])]
    rows = await (
        refused_rows(context.store, context.access, limit=capped_limit(limit))
        if refused
        else context.store.inbox.rows(
            states=[parse_state(state) for state in wanted],
            session=None if session is None else parse_session(session),
            limit=capped_limit(limit),
        )
    )
    # Of the words only the owner's are shown; the owner, in a conversation, also sees the subjects of mails.
    told = [inbox_row(row, preview=80, words=context.may_show(row)) for row in rows]
    for one, row in zip(told, rows, strict=True) if context.caller is not None else ():
        one["subject"] = row.message.context.subject
    return {"rows": told}


def _shown_text(answer: Mapping[str, Any]) -> str:
    return render.inbox_row(answer) if "row" in answer else render.draft(answer)


@operation("inbox show", writes=False, render=_shown_text)
async def show_message(context: OperationContext, id: Name) -> dict[str, Any]:
    """
    Show a message and its replies, or a draft.

    Args:
        id: As shown by the list: 7, m7, or d5 for a draft.
    """
    from gateway.operations import decision_operations
    from gateway.operations.operation_views import inbox_row, outbox_row
    from gateway.turns.questions.question_text import extra_fields

    kind, number = _parse_name(id, _MESSAGE)
    if kind == _DRAFT:
        return await decision_operations.show_draft(context, number)
    found = await context.store.inbox.row(number)
    if found is None:
        raise NotFound(f"there is no message {number}; `squidbot inbox list` lists the messages")
    row, outbound = found
    also = extra_fields(row.message, sender=row.message.sender.address)
    return {"row": {**inbox_row(row), "also": also}, "outbound": [outbox_row(sent) for sent in outbound]}


def _retried_text(answer: Mapping[str, Any]) -> str:
    told = "is tried again" if answer["running"] else "will be tried when the daemon runs"
    not_so = "has not failed, so there is nothing to try again"
    return f"message {answer['id']} {told if answer['changed'] else not_so}"


@operation(
    "inbox retry",
    writes=True,
    render=_retried_text,
    fails=_has_failed,
    done="It is tried again.",
)
async def retry_message(context: OperationContext, id: Name) -> dict[str, Any]:
    """
    Retry a failed message.

    Args:
        id: As shown by the list, such as 7.
    """
    _, number = _parse_name(id, _MESSAGE, only=True)
    found = await context.store.inbox.row(number)
    if found is not None and found[0].state is InboxState.DEAD and found[0].message.notes.redacted:
        raise RequestInvalid(f"message {number} was deleted by its sender, so it is not answered again")
    await show_message(context, number)
    session = await context.store.inbox.requeue(number)
    return {"id": number, "changed": session is not None, "running": context.running}


@operation(
    "inbox drop",
    writes=True,
    render=_rejected_text,
    fails=_has_failed,
    done="Dropped.",
)
async def drop_message(context: OperationContext, id: Name) -> dict[str, Any]:
    """
    Discard a message: it is not answered, and nothing more is sent for it.

    Args:
        id: As shown by the list: 7, m7, or d5 for a draft or for a message that could not be sent.
    """
    return await _decide(context, id, _MESSAGE, yes=False)


async def _decide(
    context: OperationContext, id: Name, kind: str, *, yes: bool, why: str = "", text: str | None = None
) -> dict[str, Any]:
    """Decide about whatever has this name; a bare number is of ``kind``. Calls go with drafts."""
    from gateway.operations import decision_operations as decisions

    if kind == _DRAFT and text is None and decisions.is_call_name(id):
        return await decisions.decide_call(context, str(id), yes=yes, why=why)
    kind, number = _parse_name(id, kind, only=text is not None)
    if kind == _DRAFT and yes:
        return await decisions.approve_draft(context, number, text)
    if kind == _DRAFT:
        return await decisions.reject_draft(context, number, why)
    await show_message(context, number)
    if not yes:
        return {"id": number, "changed": await context.store.inbox.drop(number)}
    try:
        await context.store.inbox.admit(number)
    except IllegalMove:
        return {"id": number, "changed": False, "running": context.running}
    return {"id": number, "changed": True, "running": context.running}


@operation(
    "inbox release",
    writes=True,
    render=_approved_text,
    fails=_has_failed,
    done="Released; it is being answered.",
)
async def release_message(context: OperationContext, id: Name) -> dict[str, Any]:
    """
    Release a message from quarantine: it is answered, and still nothing proves who wrote it.

    Args:
        id: As shown by `inbox list --quarantine`, such as m7.
    """
    return await _decide(context, id, _MESSAGE, yes=True)


@operation("inbox approve", writes=True, render=_approved_text, fails=_has_failed)
async def approve(context: OperationContext, id: Name, *, text: str | None = None) -> dict[str, Any]:
    """
    Approve a draft or a tool call.

    Args:
        id: As shown by `inbox list --held`, such as d5 or a3f2c9; m7 releases a message from quarantine.
        text: Send this text instead of the draft's.
    """
    return await _decide(context, id, _DRAFT, yes=True, text=text)


@operation("inbox reject", writes=True, render=_rejected_text, fails=_has_failed)
async def reject(context: OperationContext, id: Name, *, why: str = "") -> dict[str, Any]:
    """
    Reject a draft or a tool call.

    Args:
        id: As shown by `inbox list --held`, such as d5 or a3f2c9; m7 discards a quarantined message.
        why: The reason; for a tool call, the model is told.
    """
    return await _decide(context, id, _DRAFT, yes=False, why=why)


@operation("inbox answer", writes=True, render=_approved_text, fails=_has_failed)
async def answer_server(context: OperationContext, id: str, text: str) -> dict[str, Any]:
    """
    Answer what an MCP server asks during a call; the answer goes to that server.

    Args:
        id: As shown by `inbox list --held`, such as a3f2c9.
        text: The value; several as "city: Berlin; nights: 3".
    """
    from gateway.operations import decision_operations

    return await decision_operations.answer_call(context, id, text)
