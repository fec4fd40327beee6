"""Operations on drafts and tool calls that wait for approval."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from typing import Any

from agent_core.operation import operation
from agent_core.provenance import describe
from agent_core.tools.forms import Form
from agent_core.tools.grants import DEFAULT, describe_scope
from gateway.errors import GatewayError, NotFound
from gateway.operations.operation_arguments import RequestInvalid, capped_limit
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_views import draft
from gateway.routing.access import LOCAL_ADDRESS
from gateway.store.model import Question
from gateway.store.states import IllegalMove, OutboxState
from gateway.store.stores import OutboxRow
from gateway.turns.questions.decisions import (
    Decider,
    Decision,
    Terms,
    Unfit,
    clean_name,
    has_ended,
    is_call,
    verdict_on_question,
)
from gateway.turns.questions.question_text import extra_fields, whole_text

_BY = "somebody at the machine"


class CallEnded(GatewayError):
    """The call that asked this has ended, so nothing was sent to its server. Its outcome may be unknown."""

    exit_code = 1


@operation("calls list", writes=False)
async def list_calls(context: OperationContext) -> dict[str, Any]:
    """The tool calls that wait for approval, and those whose servers wait for an answer, oldest first."""
    open_here = [one for one in await _asked(context) if one.verdict is None]
    return {"rows": [_shown(one) for one in open_here if not has_ended(one, context.waiting)]}


@operation("calls decide", writes=True, done="Decided.")
async def decide_call(context: OperationContext, call: str, *, yes: bool, why: str = "") -> dict[str, Any]:
    """Approve or reject a call; the first decision counts, and it can be too late."""
    return await _settled(context, await _asked_about(context, call), Decision(yes, why))


@operation("calls grant", writes=True, done="Approved, and calls like it there for an hour.")
async def grant_call(context: OperationContext, call: str) -> dict[str, Any]:
    """Approve a call, and calls like it in its conversation for an hour; the first decision counts."""
    hour = Decision(terms=Terms(DEFAULT.total_seconds()))
    return await _settled(context, await _asked_about(context, call), hour)


@operation("calls change", writes=True, done="Approved as you changed it.")
async def change_call(context: OperationContext, call: str, arguments: dict[str, str]) -> dict[str, Any]:
    """Approve a call with other arguments, each as text; the first decision counts."""
    question = await _asked_about(context, call)
    known = _arguments(question)
    if known is None:
        raise RequestInvalid(f"{question.name} cannot be changed: it is no single call")
    shown = _argument_texts(known)
    if unknown := sorted(set(arguments) - set(known)):
        raise RequestInvalid(f"{question.name} has no argument {unknown[0]}")
    given = {name: text for name, text in arguments.items() if text != shown[name]}
    changed = {**known, **{name: _parsed(name, text, known[name]) for name, text in given.items()}}
    return await _settled(context, question, Decision(arguments=None if changed == known else changed))


@operation("calls answer", writes=True, done="Answered.")
async def answer_call(context: OperationContext, call: str, text: str) -> dict[str, Any]:
    """Answer the question of a server; the first answer counts, and it can be too late."""
    return await _settled(context, await _asked_about(context, call), Decision(text=text))


def is_call_name(name: str | int) -> bool:
    """Return True for the name of a call of a tool."""
    return is_call(clean_name(str(name)))


async def _asked_about(context: OperationContext, call: str) -> Question:
    name = clean_name(call)
    for one in await _asked(context):
        if one.name == name:
            if has_ended(one, context.waiting):
                raise CallEnded
            return one
    raise NotFound(
        f"no tool call {name} waits for a decision; `squidbot inbox list --held` lists those that do"
    )


async def _settled(context: OperationContext, question: Question, said: Decision) -> dict[str, Any]:
    assert context.questions is not None
    who = Decider(_BY, owner=True, at=datetime.now(UTC), command="`squidbot inbox {} {}`")
    try:
        verdict, grant = verdict_on_question(question, said, who)
    except Unfit as error:
        raise RequestInvalid(str(error)) from error
    now = await context.questions.decide(question.name, verdict, grant=grant)
    if now is None:
        raise NotFound(f"the tool call {question.name} no longer waits for a decision")
    changed = question.verdict is None and now.verdict is not None
    return {"changed": changed, "running": context.running, "call": _shown(now)}


async def _asked(context: OperationContext) -> list[Question]:
    return [] if context.questions is None else await context.questions.questions()


def _shown(question: Question) -> Mapping[str, Any]:
    return {
        "name": question.name,
        "session": str(question.session),
        "asked": list(question.asked),
        "tool": question.tool,
        "text": whole_text(question) if question.calls else "",
        "because": describe(question.origins),
        "offer": question.offer and describe_scope(question.offer),
        "arguments": None if (known := _arguments(question)) is None else _argument_texts(known),
        "form": question.form and _form(question.form),
        "until": question.until.isoformat(),
        "verdict": None if question.verdict is None else question.verdict.get("verdict"),
    }


def _form(form: Form) -> dict[str, Any]:
    fields = [{"name": each.name, "wants": each.describe()} for each in form.fields]
    return {"message": form.message, "address": form.address, "fields": fields}


def _arguments(question: Question) -> dict[str, Any] | None:
    """The arguments of a question's one call; None: it is about several, or about none."""
    return question.calls[0][0].arguments if len(question.calls) == 1 else None


def _argument_texts(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments as a person edits them: text as it is, with the line ends of forms, all else as JSON."""
    return {
        name: value.replace("\r\n", "\n") if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in arguments.items()
    }


def _parsed(name: str, text: str, before: Any) -> Any:
    if isinstance(before, str):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise RequestInvalid(f"{name} is not valid JSON, such as {json.dumps(before)[:60]}") from error


@operation("drafts list", writes=False)
async def list_held(context: OperationContext, limit: int = 50) -> dict[str, Any]:
    """List what waits for approval, newest first; words of others only in `show_draft`."""
    rows = await context.store.outbox.rows(states=[OutboxState.HELD], limit=capped_limit(limit))
    drafts = [draft(row, words=await _is_owners(context, row)) for row in rows]
    return {"rows": drafts, "calls": (await list_calls(context))["rows"]}


async def _is_owners(context: OperationContext, row: OutboxRow) -> bool:
    found = None if row.inbox_id is None else await context.store.inbox.row(row.inbox_id)
    if found is None:
        return context.access.may_show(row.message.session, LOCAL_ADDRESS)
    said = found[0].message
    return context.access.may_show(said.session, said.sender.address, verified=said.sender.verified)


@operation("drafts show", writes=False)
async def show_draft(context: OperationContext, id: int) -> dict[str, Any]:
    """One draft, in whatever state."""
    row = await context.store.outbox.row(id)
    if row is None:
        raise NotFound(f"there is no draft {id}; `squidbot inbox list --held` lists the drafts")
    return {**draft(row), "also": extra_fields(row.message, sender="")}


@operation("drafts approve", writes=True, done="Approved; it is being sent.")
async def approve_draft(context: OperationContext, id: int, text: str | None = None) -> dict[str, Any]:
    """Send a draft, with another text if one is given."""
    return await _decided(context, id, context.store.outbox.approve(id, text))


@operation("drafts reject", writes=True, done="Rejected; nothing is sent.")
async def reject_draft(context: OperationContext, id: int, why: str = "") -> dict[str, Any]:
    """Discard a draft, or a message that could not be sent."""
    return await _decided(context, id, context.store.outbox.reject(id, why))


async def _decided(context: OperationContext, number: int, decision: Awaitable[OutboxRow]) -> dict[str, Any]:
    running = context.running
    try:
        row = await decision
    except IllegalMove as error:
        known = await context.store.outbox.row(number)
        if known is None:
            raise NotFound(
                f"there is no draft {number}; `squidbot inbox list --held` lists the drafts"
            ) from error
        return {"id": number, "changed": False, "running": running, "draft": draft(known)}
    return {"id": number, "changed": True, "running": running, "draft": draft(row)}
