"""
Turns that are put off although nothing has failed, and what their senders are told: messages with a later
place, and what the daily budget refuses.

A channel gives a later place in ``context["wait_s"]``, counted from acceptance by this machine's clock alone;
the promise that the message is answered stays as it is. A wait longer than the store's longest
(`gateway.queue.sql.due`) is looked at again in between.

What the budget refuses stays in the queue until the budget opens again and is answered then, so nobody has to
write a question twice. It is looked at again at each start, because the limit may be another one, when the
day ends or the clock is set (`gateway.turns.deferral_wakeups`), and every half hour. Commands do not wait:
they overtake (`TurnStore.claim`).

A look costs no model call and no attempt. A notice says until when, once for each message that has a later
place and for each conversation and day. It is posted once (`OutboxStore.post`), whatever crashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from agent_core.errors import BudgetSpent
from agent_core.messages import OutboundKind
from agent_core.ports import Clock
from gateway.budget.policy import Limits, day_of, notice_name, opens_at, wait_s
from gateway.queue.states import BUDGET, PLACE
from gateway.queue.stores import InboxRow, NewOutbound, Queue, Turn
from gateway.turns.commit import TurnCommit

_log = structlog.get_logger(__name__)


class Deferral:
    """
    Puts turns off. One instance serves all sessions.

    Args:
        commit: Makes notices, and repeats a write until the queue takes it.
    """

    def __init__(self, *, store: Queue, commit: TurnCommit, limits: Limits, clock: Clock) -> None:
        self._store = store
        self._commit = commit
        self._limits = limits
        self._clock = clock

    async def until_its_place(self, turn: Turn) -> bool:
        """
        Whether a turn had to be put off because it has a later place; its sender is told so if the channel
        asks for that and nobody has said it yet. Raises `LostTurn`.
        """
        now, message = self._clock.now(), turn.head.message
        delay_s = left_s(turn.head, now)
        if not delay_s:
            return False
        if message.context.get("tell_wait"):
            notice = self._commit.replies(turn, notice_text(delay_s, now), OutboundKind.NOTICE)
            once = f"place {message.channel} {message.sender.address}", message.native_id
            # In this order: after a crash in between the turn is taken up and put off again, silently.
            await self._commit.until_stored(lambda: self._store.outbox.post(notice, once=once))
        await self._commit.until_stored(
            lambda: self._store.turns.postpone(turn, "waits for its place", delay_s=delay_s, waits_for=PLACE)
        )
        _log.info("turn.waits", channel=turn.channel, wait_s=round(delay_s))
        return True

    def opens(self) -> str:
        """When the next day's budget begins, in words."""
        return opens_at(self._clock.now(), self._limits)

    def budget_text(self) -> str:
        """What somebody is told whose message waits for the budget."""
        return (
            "My budget for today is spent, so I cannot answer this now. Your message waits, and so does "
            f"what you write until then. I continue {self.opens()}."
        )

    async def until_the_budget_opens(
        self, turn: Turn, error: BudgetSpent, notice: Sequence[NewOutbound]
    ) -> None:
        """
        Let a turn wait, and say so if nobody has said it today.

        Where the day has ended since it was refused nothing is said, and it is tried again at once. Raises
        `LostTurn`.
        """
        now = self._clock.now()
        until = error.fields.get("until")
        if isinstance(until, datetime) and until <= now:
            await self._commit.until_stored(lambda: self._store.turns.postpone(turn, str(error), delay_s=0.0))
            return
        once = notice_name(turn.place), day_of(now, self._limits.zone)
        # In this order, as above.
        said = await self._commit.until_stored(lambda: self._store.outbox.post(notice, once=once))
        delay_s = wait_s(now, self._limits)
        await self._commit.until_stored(
            lambda: self._store.turns.postpone(turn, str(error), delay_s=delay_s, waits_for=BUDGET)
        )
        _log.warning(
            "turn.budget_deferred",
            channel=turn.channel,
            tier=error.fields.get("tier"),
            reason=str(error),
            told=bool(said),
        )


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
        "You have written more than I may answer at once. Your message waits; I will answer it at about "
        f"{day}{at:%H:%M} UTC, in {span}. What you write until then is answered after it."
    )
