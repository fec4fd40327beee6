"""
Turns that wait for a person's yes before a tool runs.

Theory of operation. When a call needs a yes, the turn is left (`AwaitsApproval`), and one transaction records
the question as a step of the turn, puts the notice that asks it into the outbox, and lets the turn wait
until the question's time is over. It holds no place and no model meanwhile; what was answered before is
journaled. A decision (``tool_decisions.py``) is another transaction, which makes the turn due; it is taken
up again like after a crash, comes to the same call by way of its journal, and finds what was decided. So it
does not matter when the process dies. If nobody decides, the turn is due by itself, and the model is told so.

Only a person can be asked who waits for the answer: in a check-in or a job of the schedule the call is
refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from typing import Any

import structlog

from agent_core.errors import AwaitsApproval
from agent_core.messages import OutboundKind
from agent_core.models import ToolCall, ToolResult
from agent_core.ports import Clock
from channels.base import Channel
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.queue.model import APPROVAL
from gateway.queue.ports import ApprovalStore, NewOutbound, Step, Turn
from gateway.turns.approvals.text import line
from gateway.turns.approvals.tool_decisions import (
    APPROVED,
    EXPIRED,
    REFUSED,
    asking_text,
    expired_text,
    name_of,
)
from gateway.turns.commit import TurnCommit

__all__ = ["Consent", "ToolQuestions", "Waiting"]

_TOPIC = "approvals"
_log = structlog.get_logger(__name__)


class Waiting(AwaitsApproval):
    """I wait for somebody's yes before I go on."""

    def __init__(self, step: Step, call: ToolCall, until: datetime) -> None:
        super().__init__(f"waits for a yes: {step.request['name']}")
        self.step = step
        self.call = call
        self.until = until


class ToolQuestions:
    """
    Asks people about calls. One instance serves all sessions.

    Args:
        commit: Makes notices, and waits for the disk.
        held: Whether the owner sees the answer to a turn before anybody else.
        wait_s: How long a question waits for its answer.
        zone: In which people are told until when.
    """

    def __init__(
        self,
        *,
        store: ApprovalStore,
        commit: TurnCommit,
        channels: Mapping[str, Channel],
        notifier: OwnerNotifier,
        held: Callable[[Turn], bool],
        clock: Clock,
        wait_s: float,
        zone: tzinfo | None = None,
    ) -> None:
        self._store = store
        self._commit = commit
        self._channels = channels
        self._notifier = notifier
        self._held = held
        self._clock = clock
        self._wait_s = wait_s
        self._zone = zone

    def consent(self, turn: Turn, steps: Sequence[Step]) -> Consent:
        """Asks about the calls of one turn; ``steps`` is what its earlier starts have done."""
        return Consent(self, turn, steps)

    async def wait(self, turn: Turn, waiting: Waiting) -> None:
        """
        Ask, unless that was done, and let the turn wait.

        Where answers are held nobody shall see what the model has written before the owner does: the question
        goes to the owner alone, in a conversation of their own, if there is one.

        Raises:
            LostTurn: Not any more ours.
        """
        name = str(waiting.step.request["name"])
        letters = self._channels[turn.session.channel].capabilities.letters
        text = asking_text(name, waiting.call, waiting.until, zone=self._zone, letters=letters)
        notice = (
            await self._to_the_owner(turn, name, text) if self._held(turn) else self._notice(turn, name, text)
        )
        delay_s = max((waiting.until - self._clock.now()).total_seconds(), 0.0)
        rows = await self._commit.until_stored(
            lambda: self._store.ask(turn, waiting.step, notice, why=str(waiting), delay_s=delay_s)
        )
        _log.info(
            "turn.approval_pending",
            channel=turn.session.channel,
            tool=waiting.call.name,
            item=name,
            told=bool(rows),
        )

    def question(self, turn: Turn, number: int, digest: str, call: ToolCall) -> Waiting:
        """A new question."""
        until = self._clock.now() + timedelta(seconds=self._wait_s)
        asked = list(dict.fromkeys(row.message.sender.address for row in turn.rows))
        request = {
            "name": name_of(digest),
            "call": call.model_dump(mode="json"),
            "asked": asked,
            "until": until.isoformat(),
        }
        return Waiting(Step(number, APPROVAL, digest, request, None), call, until)

    async def too_late(self, turn: Turn, step: Step) -> Mapping[str, Any] | None:
        """
        What was decided about a question that waited; None: there is time yet.

        Raises:
            LostTurn: Not any more ours.
        """
        if self._clock.now() < datetime.fromisoformat(step.request["until"]):
            return None
        name, tool = str(step.request["name"]), str(step.request["call"]["name"])
        notice = [] if self._held(turn) else self._notice(turn, name, expired_text(name, tool))
        verdict = await self._commit.until_stored(
            lambda: self._store.settle(turn, replace(step, result={"verdict": EXPIRED}), notice)
        )
        _log.info("tool_approval.expired", item=name, tool=tool)
        return verdict

    def _notice(self, turn: Turn, name: str, text: str) -> list[NewOutbound]:
        notices = self._commit.replies(turn, text, OutboundKind.NOTICE)
        return [replace(one, context={**one.context, "approves": [name]}) for one in notices]

    async def _to_the_owner(self, turn: Turn, name: str, text: str) -> list[NewOutbound]:
        who = ", ".join(dict.fromkeys(f"`{line(row.message.sender.address)}`" for row in turn.rows))
        asked = f"{text}\n\nAsked by {who}, by {turn.session.channel}."
        return await self._notifier.compose(_TOPIC, asked, {"approves": [name]}) or []


class Consent:
    """Implements `agent_core.ports.ConsentPort` for one claimed turn; see `ToolQuestions`."""

    def __init__(self, asking: ToolQuestions, turn: Turn, steps: Sequence[Step]) -> None:
        self._asking = asking
        self._turn = turn
        self._steps = {step.number: step for step in steps}

    async def refusal(self, number: int, digest: str, call: ToolCall) -> ToolResult | None:
        """None as soon as somebody who may has said yes."""
        step = self._steps.get(number)
        if step is not None and step.digest == digest and step.kind == "tool":
            return None  # it was run before, so there was a yes
        if any(row.message.kind != "message" for row in self._turn.rows):
            return _told(call, "This needs a person's yes, and nobody waits for it here; it was not run.")
        if step is None or step.digest != digest or step.kind != APPROVAL:
            raise self._asking.question(self._turn, number, digest, call)
        verdict = step.result if step.result is not None else await self._asking.too_late(self._turn, step)
        if verdict is None:
            raise Waiting(step, call, datetime.fromisoformat(step.request["until"]))
        if verdict.get("verdict") == APPROVED:
            return None
        if verdict.get("verdict") == REFUSED:
            why = f" ({verdict['why']})" if verdict.get("why") else ""
            return _told(call, f"The person was asked and said no{why}. It was not run; do not try it again.")
        return _told(call, "The person was asked and did not answer in time. It was not run.")


def _told(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True, tool_call_id=call.id)
