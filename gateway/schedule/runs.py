"""
Running a due job: in the conversation that it was wished for in, for the person who wished it.

A reminder is its text and nothing else; no model is asked. A question is asked of the model in that session,
with its history, its scope and its tools; only jobs cannot be made from it. Before it runs it is looked at
once more: a job that was removed or paused while its row waited, or whose person may not speak any more, is
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.messages import Attachment, Audience, OutboundKind
from agent_core.models import Message, Purpose, TurnResult
from channels.base import Channel
from gateway.access import Access, Role
from gateway.failure import Failure
from gateway.parcels import parcels
from gateway.schedule.scheduler import NOT_ALLOWED, ledger_name
from gateway.work.plan_port import Entry, JobKind, JobState, PlanStore
from gateway.work.port import Completion, NewOutbound, Turn

__all__ = ["JobRun", "JobRuns"]


@dataclass(frozen=True, slots=True)
class JobRun:
    """How a job is run: not at all, by saying ``reply``, or by asking ``prompt``."""

    skip: str = ""
    reply: str | None = None
    prompt: str | None = None


class JobRuns:
    """
    What is particular about the turns of jobs.

    Args:
        plans: The jobs.
        access: Who may still speak.
        channels: All channels by name.
        told_time: An instant, as people read it.
    """

    def __init__(
        self,
        *,
        plans: PlanStore,
        access: Access,
        channels: Mapping[str, Channel],
        told_time: Callable[[Any], str],
    ) -> None:
        self._plans = plans
        self._access = access
        self._channels = channels
        self._told_time = told_time

    def name_of(self, turn: Turn) -> str:
        """Under which name it is in the ledger."""
        return ledger_name(_id_of(turn))

    async def plan(self, turn: Turn) -> JobRun:
        """
        Whether and how to run it.

        Raises:
            StoreUnavailable: Not now.
        """
        message = turn.head.message
        job = await self._plans.job(_id_of(turn))
        if job is None:
            return JobRun(skip="it was removed")
        if job.state is JobState.PAUSED:
            return JobRun(skip="it was paused")
        if self._access.decide(message).role is Role.STRANGER:
            return JobRun(skip=NOT_ALLOWED)
        late = ""
        if _note_of(turn).get("late"):
            late = f"(This was due on {self._told_time(message.received_at)}; I was not running then.)"
        if _note_of(turn).get("kind") == JobKind.REMIND:
            return JobRun(reply=f"{message.text}\n\n{late}" if late else message.text)
        prompt = (
            f"[This is the scheduled job {job.id} of {message.sender.address}, made on "
            f"{self._told_time(job.created_at)}; nobody wrote it at this moment. Do what it says now; your "
            f"answer is sent.]{f' {late}' if late else ''}\n{message.text}"
        )
        return JobRun(prompt=prompt)

    def completion(self, turn: Turn, result: TurnResult, entry: Entry, *, hold: bool) -> Completion:
        """What is committed for a job that has run."""
        asked = _note_of(turn).get("kind") != JobKind.REMIND
        return Completion(
            outbound=self._outbound(turn, result.reply, attachments=result.attachments, hold=hold),
            history=[
                _scheduled(line, turn) if line.role == "user" else line
                for line in result.history
                if asked or line.role != "user"
            ],
            usage=result.usage,
            purpose=Purpose.JOB,
            entry=entry,
        )

    def failed(self, turn: Turn, failure: Failure, entry: Entry) -> Completion:
        """What is committed for a job that failed for good: whoever wished it is told."""
        if turn.session.channel not in self._channels:
            return Completion(purpose=Purpose.JOB, entry=entry)
        text = f"Sorry, the scheduled job {_id_of(turn)} could not be done. {failure.public}"
        return Completion(outbound=self._outbound(turn, text), purpose=Purpose.JOB, entry=entry)

    def notice(self, turn: Turn, text: str) -> list[NewOutbound]:
        """A word on a job to whoever wished it, where it would answer."""
        return self._outbound(turn, text) if turn.session.channel in self._channels else []

    def _outbound(
        self, turn: Turn, text: str, *, attachments: Sequence[Attachment] = (), hold: bool = False
    ) -> list[NewOutbound]:
        message = turn.head.message
        context = {name: value for name, value in message.context.items() if name != "job"}
        kind = OutboundKind.REPLY
        if not context:
            # Made on the command line: it answers no message, and in private it is for one person's eyes.
            kind = OutboundKind.ALERT if message.audience is Audience.DIRECT else OutboundKind.NOTICE
            context = {"job": _id_of(turn)}
        return [
            NewOutbound(
                turn.session.channel,
                message.account,
                turn.session,
                part,
                kind,
                context,
                attachments=files,
                hold=hold,
            )
            for part, files in parcels(text, attachments, self._channels[turn.session.channel].capabilities)
        ]


def _note_of(turn: Turn) -> Mapping[str, Any]:
    note = turn.head.message.context.get("job")
    return note if isinstance(note, Mapping) else {}


def _id_of(turn: Turn) -> str:
    return str(_note_of(turn).get("id") or turn.head.message.native_id)


def _scheduled(line: Message, turn: Turn) -> Message:
    """A line of the question that says that nobody wrote it at this moment."""
    return line.model_copy(update={"content": f"[scheduled job {_id_of(turn)}] {line.content}"})
