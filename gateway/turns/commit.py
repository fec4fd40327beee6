"""
The commit of a turn: what becomes true together at each of its ends, and who is notified. The work of a turn
is done when it arrives here and must not be lost to a full disk, so every write is repeated until the queue
takes it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.language import chosen_language, gettext_noop
from agent_core.messages import Attachment, OutboundKind
from agent_core.models import TurnResult, Usage
from channels.base import AckState, Capabilities, Channel
from channels.split import message_parts
from gateway.budget.metering import UsageMeter
from gateway.observability import metrics
from gateway.observability.traces import note_outcome
from gateway.routing.acknowledgements import Acknowledgements
from gateway.store.sql.amendments import AS_EDITED
from gateway.store.stores import Completion, NewOutbound, OutboxRow, Queue, StoreUnavailable, Turn
from gateway.turns.turn_kinds import TurnFailureText

_ABOVE = gettext_noop("(The answer above replaces an earlier one; this part of it is gone.)")

STORE_RETRY = BackoffPolicy(first_s=0.5, cap_s=30.0)
_log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")


def count_turn(channel: str, outcome: str) -> None:
    """Count a turn in the metrics, and note its end in its trace."""
    metrics.TURNS.labels(channel, outcome).inc()
    note_outcome(outcome)


class TurnCommit:
    """Ends claimed turns. One instance serves all sessions."""

    def __init__(
        self, *, store: Queue, channels: Mapping[str, Channel], acknowledgements: Acknowledgements
    ) -> None:
        self.store = store
        self.channels = channels
        self.acknowledgements = acknowledgements

    def capabilities(self, channel: str) -> Capabilities | None:
        """The abilities of a channel; None: it is not one of ours, or switched off."""
        found = self.channels.get(channel)
        return None if found is None else found.capabilities

    def replies(
        self,
        turn: Turn,
        text: str,
        kind: OutboundKind = OutboundKind.REPLY,
        *,
        attachments: Sequence[Attachment] = (),
        hold: bool = False,
        rings_for: Sequence[str] | None = None,
    ) -> list[NewOutbound]:
        """
        Split an answer into parts that its channel accepts; files go last.

        Later parts say so in their context. A repeated question's answer replaces the earlier one part by
        part (`MessageNotes.replaces`).
        """
        message = turn.rows[-1].message
        replaces = (message.notes.replaces or ()) if kind is OutboundKind.REPLY else ()
        capabilities = self.channels[turn.channel].capabilities
        parts = list(message_parts(text, attachments, capabilities))
        parts += [(_ABOVE, ())] * (len(replaces) - len(parts))
        notes = replace(message.notes, replaces=None, language=chosen_language())
        common = replace(message.context, notes=notes)
        return [
            NewOutbound(
                channel=turn.channel,
                account=message.account,
                session=turn.place,
                text=part,
                kind=kind,
                context=replace(
                    common, part=number, edits=replaces[number] if number < len(replaces) else ""
                ),
                attachments=files,
                hold=hold,
                rings_for=None if rings_for is None else tuple(rings_for),
            )
            for number, (part, files) in enumerate(parts)
        ]

    async def complete(
        self, turn: Turn, completion: Completion, meter: UsageMeter | None = None
    ) -> list[OutboxRow]:
        """Commit the answer together with the unpaid part of ``meter``. Raises `LostTurn`."""
        due, spent = (meter.due(), meter.spent) if meter else (Usage(), Usage())
        completion = replace(completion, usage=due, spent=spent)
        rows = await self.retry_until_stored(lambda: self.store.turns.complete(turn, completion))
        if meter is not None:
            meter.mark_committed()
        self.acknowledgements.report((row.message for row in turn.rows), AckState.DONE)
        return rows

    async def dead_letter(
        self, turn: Turn, failure: TurnFailureText, outbound: Sequence[NewOutbound]
    ) -> None:
        """Commit the failure for good, with an apology. Raises `LostTurn`."""
        await self.retry_until_stored(lambda: self.store.turns.dead_letter(turn, failure.error, outbound))
        count_turn(turn.channel, "dead_lettered")
        about = {"channel": turn.channel, "turn": turn.id, "attempts": turn.attempts, "error": failure.error}
        if failure.is_explained and outbound:
            _log.info("turn.dead_lettered", **about)
        else:
            _log.error("turn.dead_lettered", **about)
        self.acknowledgements.report((row.message for row in turn.rows), AckState.FAILED)

    async def defer(self, turn: Turn, error: str, delay_s: float, *, waits_for: str | None = None) -> None:
        """Commit a retry that is not the message's fault. Raises `LostTurn`."""
        count_turn(turn.channel, "deferred")
        log = _log.info if turn.deferrals else _log.warning  # once; `status` says that it waits still
        log("turn.deferred", channel=turn.channel, error=error, retry_in_s=round(delay_s, 1))
        await self.retry_until_stored(
            lambda: self.store.turns.retry(turn, error, delay_s=delay_s, deferral=True, waits_for=waits_for)
        )

    def note_answer(self, turn: Turn, result: TurnResult, took_s: float) -> None:
        """Log and count a turn that was completed after ``took_s``."""
        count_turn(turn.channel, "answered")
        metrics.TURN_SECONDS.labels(turn.channel).observe(took_s)
        _log.info(
            "turn.answered",
            channel=turn.channel,
            messages=len(turn.rows),
            steps=result.steps,
            tools=result.tool_runs,
            tokens=result.usage.prompt_tokens + result.usage.completion_tokens,
            took_s=round(took_s, 3),
        )

    def end_withdrawn(self, turn: Turn, why: str) -> None:
        """End a turn whose messages were withdrawn. The store knows already."""
        count_turn(turn.channel, "stopped")
        _log.info("turn.cut_off", channel=turn.channel, turn=turn.id, why=why)
        if why != AS_EDITED:
            self.acknowledgements.report((row.message for row in turn.rows), AckState.FAILED)

    async def retry_until_stored(self, write: Callable[[], Awaitable[_Result]]) -> _Result:
        """Repeat ``write`` until the store accepts it; return its result."""
        attempt = 0
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                attempt += 1
                delay_s = STORE_RETRY.delay(attempt, random=random.random())
                told = {**error.fields, "error": str(error), "retry_in_s": round(delay_s, 1)}
                _log.error("turn.blocked", **told)
                await anyio.sleep(delay_s)
