"""Operations on drafts and tool calls that wait for approval."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from datetime import UTC, datetime
from typing import Any

from agent_core.models import ToolCall
from agent_core.provenance import describe, from_json
from agent_core.tools.forms import Form, NotAnAnswer, form_of
from agent_core.tools.grants import DEFAULT, Grant, describe_scope
from gateway.errors import GatewayError, NotFound
from gateway.operations.arguments import RequestInvalid, within
from gateway.operations.views import draft
from gateway.queue.model import ToolQuestionRow
from gateway.queue.states import IllegalMove, OutboxState
from gateway.queue.stores import OutboxRow, QuestionStore, Queue
from gateway.routing.access import LOCAL_ADDRESS, Access
from gateway.turns.approvals.question_text import whole_text
from gateway.turns.approvals.text import extra_fields
from gateway.turns.approvals.tool_decisions import (
    DECLINED,
    Terms,
    clean_name,
    decision,
    grant_of,
    has_ended,
    parse_scope,
    verdict_from_answer,
)

CALL_OPERATIONS = frozenset({"calls_list", "calls_decide", "calls_grant", "calls_answer"})


_BY = "somebody at the machine"


class CallEnded(GatewayError):
    """The call that asked this has ended, so nothing was sent to its server. Its outcome may be unknown."""

    exit_code = 1


class ToolApprovalOperations:
    """
    The part of `Operations` that concerns calls of tools, and what servers ask during them. Whoever has the
    home may decide about all.
    """

    _questions: QuestionStore | None
    _waiting: Container[str]
    _report: Any

    async def calls_list(self) -> dict[str, Any]:
        """The tool calls that wait for approval, and those whose servers wait for an answer, oldest first."""
        asked = await self._asked()
        return {"rows": [_shown(one) for one in asked if one.verdict is None and not self._has_ended(one)]}

    async def calls_decide(self, call: str, yes: bool, why: str = "") -> dict[str, Any]:  # noqa: FBT001 - called by name
        """Approve or reject a call; the first decision counts, and it can be too late."""
        question = await self._asked_about(clean_name(call))
        told: Mapping[str, Any] = decision(yes=yes, by=_BY, owner=True, why=why)
        if question.form is not None and not yes:
            told = {**told, "verdict": DECLINED}
        elif question.form is not None:
            if form_of(question.form).fields:
                raise RequestInvalid(f"{question.name} needs more than a yes: {_how(question.name)}")
            told = verdict_from_answer(question, "yes", by=_BY, owner=True)
        return await self._settled(question, told)

    async def calls_grant(self, call: str) -> dict[str, Any]:
        """Approve a call, and calls like it in its conversation for an hour; the first decision counts."""
        question = await self._asked_about(clean_name(call))
        given = grant_of(question, Terms(DEFAULT.total_seconds()), by=_BY, now=datetime.now(UTC))
        if given is None:
            raise RequestInvalid(f"calls like {question.name} cannot be granted in advance")
        return await self._settled(question, decision(yes=True, by=_BY, owner=True), given)

    async def calls_answer(self, call: str, text: str) -> dict[str, Any]:
        """Answer the question of a server; the first answer counts, and it can be too late."""
        question = await self._asked_about(clean_name(call))
        if question.form is None:
            raise RequestInvalid(
                f"{question.name} needs a yes or a no: squidbot inbox approve|reject {question.name}"
            )
        try:
            told = verdict_from_answer(question, text, by=_BY, owner=True)
        except NotAnAnswer as error:
            raise RequestInvalid(f"nothing was sent to the server: {error} {_how(question.name)}") from error
        return await self._settled(question, told)

    async def _asked_about(self, name: str) -> ToolQuestionRow:
        for one in await self._asked():
            if one.name == name:
                if self._has_ended(one):
                    raise CallEnded
                return one
        raise NotFound(
            f"no tool call {name} waits for a decision; `squidbot inbox list --held` lists those that do"
        )

    async def _settled(
        self, question: ToolQuestionRow, told: Mapping[str, Any], grant: Grant | None = None
    ) -> dict[str, Any]:
        assert self._questions is not None
        now = await self._questions.decide(question.name, told, grant=grant)
        if now is None:
            raise NotFound(f"the tool call {question.name} no longer waits for a decision")
        changed = question.verdict is None and now.verdict is not None
        return {"changed": changed, "running": self._report is not None, "call": _shown(now)}

    def _has_ended(self, question: ToolQuestionRow) -> bool:
        return has_ended(question, self._waiting)

    async def _asked(self) -> list[ToolQuestionRow]:
        return [] if self._questions is None else await self._questions.questions()


def _shown(question: ToolQuestionRow) -> Mapping[str, Any]:
    return {
        "name": question.name,
        "session": str(question.session),
        "asked": list(question.asked),
        "tool": question.tool,
        "text": _whole_text(question),
        "because": describe(from_json(question.origins)),
        "offer": None if (offer := parse_scope(question.offer)) is None else describe_scope(offer),
        "form": None if question.form is None else _form(form_of(question.form)),
        "until": question.until.isoformat(),
        "verdict": None if question.verdict is None else question.verdict.get("verdict"),
    }


def _whole_text(question: ToolQuestionRow) -> str:
    if question.form is not None:  # what its server asks stands in the form, and no call is behind it
        return ""
    calls = [(ToolCall.model_validate(call), review) for call, review in question.calls]
    return whole_text(*calls[0], calls[1:]) if calls else ""


def _form(form: Form) -> dict[str, Any]:
    fields = [{"name": each.name, "wants": each.describe()} for each in form.fields]
    return {"message": form.message, "address": form.address, "fields": fields}


def _how(name: str) -> str:
    return f"squidbot inbox answer {name} VALUE"


class DraftOperations(ToolApprovalOperations):
    """The operations on drafts."""

    _store: Queue
    _access: Access
    _report: Callable[[], Awaitable[Mapping[str, Any]]] | None

    async def drafts_list(self, limit: int = 50) -> dict[str, Any]:
        """List what waits for approval, newest first; words of others only in `drafts_show`."""
        rows = await self._store.outbox.rows(states=[OutboxState.HELD], limit=within(limit))
        drafts = [draft(row, words=await self._is_owners(row)) for row in rows]
        return {"rows": drafts, "calls": (await self.calls_list())["rows"]}

    async def _is_owners(self, row: OutboxRow) -> bool:
        found = None if row.inbox_id is None else await self._store.inbox.row(row.inbox_id)
        if found is None:
            return self._access.may_show(row.message.session, LOCAL_ADDRESS)
        said = found[0].message
        return self._access.may_show(said.session, said.sender.address, verified=said.sender.verified)

    async def drafts_show(self, id: int) -> dict[str, Any]:  # noqa: A002
        """One draft, in whatever state."""
        row = await self._store.outbox.row(id)
        if row is None:
            raise NotFound(f"there is no draft {id}; `squidbot inbox list --held` lists the drafts")
        return {**draft(row), "also": extra_fields(row.message, sender="")}

    async def drafts_approve(self, id: int, text: str | None = None) -> dict[str, Any]:  # noqa: A002
        """Send a draft, with another text if one is given."""
        return await self._decided(id, self._store.outbox.approve(id, text))

    async def drafts_reject(self, id: int, why: str = "") -> dict[str, Any]:  # noqa: A002
        """Discard a draft, or a message that could not be sent."""
        return await self._decided(id, self._store.outbox.reject(id, why))

    async def _decided(self, number: int, decision: Awaitable[OutboxRow]) -> dict[str, Any]:
        running = self._report is not None
        try:
            row = await decision
        except IllegalMove as error:
            known = await self._store.outbox.row(number)
            if known is None:
                raise NotFound(
                    f"there is no draft {number}; `squidbot inbox list --held` lists the drafts"
                ) from error
            return {"id": number, "changed": False, "running": running, "draft": draft(known)}
        return {"id": number, "changed": True, "running": running, "draft": draft(row)}
