"""
Messages whose channel has given them a later place: they wait for it, and their sender is told once when.

The channel says so in ``context["wait_s"]``, counted from acceptance by this machine's clock alone; the
promise that the message is answered stays as it is. A wait longer than the store's longest
(`gateway.queue.sql.due`) is looked at again in between, which costs no model call and no attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from agent_core.messages import InboundMessage
from agent_core.ports import Clock
from gateway.queue.ports import InboxRow, NewOutbound, Queue, Turn
from gateway.queue.states import PLACE
from gateway.turns.commit import TurnCommit

__all__ = ["Pacing", "left_s", "notice_text"]

_log = structlog.get_logger(__name__)


def left_s(row: InboxRow, now: datetime) -> float:
    """
    How long an accepted message still has to wait; 0.0 if it may be answered. Pure.

    A clock that was in the future when the message was accepted does not keep it waiting.
    """
    wait_s = row.message.context.get("wait_s")
    if not isinstance(wait_s, int | float):
        return 0.0
    left = wait_s - (now - row.accepted_at).total_seconds()
    return left if 0.0 < left <= wait_s else 0.0


def notice_text(wait_s: float, now: datetime) -> str:
    """What somebody is told whose message has to wait. Pure."""
    at = now + timedelta(seconds=wait_s)
    minutes = max(round(wait_s / 60), 1)
    span = (
        f"{round(minutes / 60)} hours"
        if minutes >= 120
        else f"{minutes} minutes"
        if minutes > 1
        else "a minute"
    )
    day = "" if at.date() == now.date() else f"{at:%Y-%m-%d} "
    return (
        "You have written more than I may answer at once. Your message waits for its turn: I answer it at "
        f"about {day}{at:%H:%M} UTC, in {span}. What you write until then is answered after it."
    )


class Pacing:
    """
    Lets turns wait for their place.

    Args:
        store: Where they wait, and where notices are put.
        commit: Repeats a write until the queue takes it.
    """

    def __init__(
        self,
        *,
        store: Queue,
        commit: TurnCommit,
        clock: Clock,
    ) -> None:
        self._store = store
        self._commit = commit
        self._clock = clock

    def left_s(self, turn: Turn) -> float:
        """How long a turn still has to wait; 0.0 if it may begin."""
        return left_s(turn.head, self._clock.now())

    def text(self, wait_s: float) -> str:
        """What its sender is told."""
        return notice_text(wait_s, self._clock.now())

    async def put_off(self, turn: Turn, wait_s: float, notice: Sequence[NewOutbound]) -> None:
        """
        Let a turn wait, and say so if its channel asks for that and nobody has said it yet.

        Raises:
            LostTurn: Not any more ours.
        """
        message = turn.head.message
        if message.context.get("tell_wait"):
            # In this order: after a crash in between the turn is taken up and put off again, silently.
            await self._commit.until_stored(
                lambda: self._store.outbox.post(notice, once=(_name(message), message.native_id))
            )
        await self._commit.until_stored(
            lambda: self._store.turns.postpone(turn, "waits for its place", delay_s=wait_s, waits_for=PLACE)
        )
        _log.info("turn.waits", channel=turn.channel, wait_s=round(wait_s))


def _name(message: InboundMessage) -> str:
    return f"place {message.channel} {message.sender.address}"
