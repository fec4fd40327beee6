"""
Turns that have no answer now: retried, deferred, or given up with an apology. `TurnFailure` retries within a
time budget what is not the message's fault; `Deferral` postpones messages with ``context.wait_s`` and those
that the budget or an empty provider account refuses, and wakes them when what they wait for is there. A
server's own waiting time is kept. Notices come once per message or conversation and day.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo
from typing import Any

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.errors import AgentError, BudgetSpent, CreditSpent, ModelError, ModelRateLimited, ModelRefused
from agent_core.language import _, gettext_noop, show_time
from agent_core.llm.model_errors import for_operator
from agent_core.messages import Audience, OutboundKind
from agent_core.ports import Clock
from channels.base import ChannelError, LinkState
from gateway.budget.budget_policy import BudgetLimits, day_of, notice_name, opens_at, wait_s
from gateway.budget.metering import UsageMeter
from gateway.errors import describe
from gateway.proactive.jobs.job_permissions import PlaceUnknown
from gateway.proactive.owner_alerts import credit_alert
from gateway.routing.access import Access, Role
from gateway.routing.crash_isolation import CRASH_APOLOGY, CrashIsolation
from gateway.store.model import ReceiptOutcome
from gateway.store.states import BUDGET, MODEL, PLACE, QUARANTINE_S, link_wait
from gateway.store.stores import InboxRow, NewOutbound, Queue, StoreUnavailable, Turn
from gateway.store.wakeups import Wakeups
from gateway.turns.commit import TurnCommit
from gateway.turns.turn_kinds import TurnFailureText, TurnKind, TurnPolicy
from gateway.turns.user_input import may_be_silent

_MODEL_RETRY = BackoffPolicy(first_s=2.0, cap_s=300.0)
_SILENCE_S, _MAIL_SILENCE_S = 20.0, 300.0
"""An outage that is shorter is not reported: somebody in a chat waits for an answer, a mail for minutes."""
_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class Deferral:
    """Defers turns, in all sessions."""

    commit: TurnCommit
    limits: BudgetLimits
    clock: Clock

    def __post_init__(self) -> None:
        self._store = self.commit.store

    async def defer_to_place(self, turn: Turn) -> bool:
        """Defer a turn to its later place, with a notice if wanted; True if deferred. Raises `LostTurn`."""
        now, message = self.clock.now(), turn.head.message
        delay_s = left_s(turn.head, now)
        if not delay_s:
            return False
        if message.context.tell_wait:
            text, whom = notice_text(delay_s, now), [message.sender.address]
            notice = self.commit.replies(turn, text, OutboundKind.NOTICE, rings_for=whom)
            once = f"place {message.channel} {message.sender.address}", message.native_id
            # In this order: after a crash in between the turn is taken up and put off again, silently.
            await self.commit.retry_until_stored(lambda: self._store.outbox.post(notice, once=once))
        await self.commit.retry_until_stored(
            lambda: self._store.turns.postpone(turn, "waits for its place", delay_s=delay_s, waits_for=PLACE)
        )
        _log.info("turn.waits", channel=turn.channel, wait_s=round(delay_s))
        return True

    def reopening_text(self) -> str:
        """The time when the next day's budget begins, in words."""
        return opens_at(self.clock.now(), self.limits)

    def budget_text(self, error: BudgetSpent) -> str:
        """The notice for somebody whose message waits for the budget, here or at the model's provider."""
        if isinstance(error, CreditSpent):
            return _(
                "{public} Until that is mended there, your message waits, and so does what you write; "
                "I look again every half hour.",
                public=_(error.public),
            )
        return _(
            "My budget for today is spent, so I cannot answer this now. Your message waits, and so does "
            "what you write until then. I continue {opens}.",
            opens=self.reopening_text(),
        )

    def last_call_note(self, meter: UsageMeter) -> str:
        """The note below an answer whose last call had no tools because of the budget; else nothing."""
        if not meter.took_tools:
            return ""
        return _(
            "(With this my budget for today is used up, so I had no more tools. A new one begins {opens}.)",
            opens=self.reopening_text(),
        )

    def owners_notice(self, error: BudgetSpent) -> tuple[str, tuple[str, str] | None]:
        """The notice for the owner, and the name under which a spent credit is told once, as by its alert."""
        if not isinstance(error, CreditSpent):
            return self.budget_text(error), None
        alert = credit_alert(error, self.clock.now())
        return alert.text, alert.key

    async def defer_to_budget(
        self,
        turn: Turn,
        error: BudgetSpent,
        notice: Sequence[NewOutbound],
        *,
        once: tuple[str, str] | None = None,
    ) -> None:
        """
        Defer a turn, and notify its person unless that was done today, or what ``once`` names was posted.

        Where the day has ended since it was refused nothing is said, and it is tried again at once. Raises
        `LostTurn`.
        """
        now = self.clock.now()
        until = error.fields.get("until")
        if isinstance(until, datetime) and until <= now:
            await self.commit.retry_until_stored(
                lambda: self._store.turns.postpone(turn, str(error), delay_s=0.0)
            )
            return
        once = once or (notice_name(turn.place), day_of(now, self.limits.zone))
        # In this order, as above.
        said = await self.commit.retry_until_stored(lambda: self._store.outbox.post(notice, once=once))
        delay_s = wait_s(now, self.limits)
        await self.commit.retry_until_stored(
            lambda: self._store.turns.postpone(turn, str(error), delay_s=delay_s, waits_for=BUDGET)
        )
        _log.warning(
            "turn.budget_deferred",
            channel=turn.channel,
            tier=error.fields.get("tier"),
            reason=str(error),
            told=bool(said),
        )

    async def defer_to_model(self, turn: Turn, failure: TurnFailureText, *, gives_up_s: float) -> None:
        """
        Defer a turn whose model is away, and notify its person once if that takes long.

        Where the next pause makes it long, the notice goes out before it. Only people's messages have one,
        mails at most one a day and conversation. Raises `LostTurn`.
        """
        head, delay_s = turn.head.message, failure.delay_s or 0.0
        capabilities = self.commit.capabilities(turn.channel)
        if capabilities is not None and head.kind == "message" and not may_be_silent(turn):
            silence_s = _MAIL_SILENCE_S if capabilities.email_style else _SILENCE_S
            if turn.first_deferred_s + delay_s >= silence_s:
                text, whom = outage_text(failure.public, gives_up_s), [turn.rows[-1].message.sender.address]
                notice = self.commit.replies(turn, text, OutboundKind.NOTICE, rings_for=whom)
                day = day_of(self.clock.now(), self.limits.zone)
                once = f"away {turn.place}", day if capabilities.email_style else head.native_id
                # In this order, as above.
                await self.commit.retry_until_stored(lambda: self._store.outbox.post(notice, once=once))
        await self.commit.defer(turn, failure.error, delay_s, waits_for=MODEL)


class TurnFailure:
    """Ends turns that are not answered, in all sessions; the owner gets more details."""

    def __init__(
        self, *, deferral: Deferral, suspects: CrashIsolation, policy: TurnPolicy, access: Access
    ) -> None:
        self._deferral = deferral
        self._suspects = suspects
        self._policy = policy
        self._access = access

    async def refuse_if_unsafe(self, turn: Turn, kind: TurnKind[Any]) -> bool:
        """Fail a turn that kills the process or cannot be read, and return True. Raises `LostTurn`."""
        poison = fatal_failure(turn, self._suspects.turn_refusal(turn.id, self._policy.max_attempts))
        if poison is not None:
            await kind.report_failure(turn, await self._with_effects(turn, poison))
        return poison is not None

    async def end(self, turn: Turn, kind: TurnKind[Any], meter: UsageMeter | None, error: Exception) -> None:
        """Carry out the consequence of an error. Raises `LostTurn`."""
        waited_s = (self._deferral.clock.now() - turn.head.accepted_at).total_seconds()
        if isinstance(error, BudgetSpent) and waited_s < QUARANTINE_S:
            await kind.defer_to_budget(turn, error)
            return
        policy = kind.policy(self._policy)
        failure = decide_failure(error, turn, policy, jitter=random.random())
        if self._is_for_owner_alone(turn):
            failure = replace(failure, public=for_operator(error) or failure.public)
        if not isinstance(error, AgentError):
            _log.error("turn.defect", channel=turn.channel, exc_info=error)
        if failure.delay_s is not None and isinstance(error, ModelError):
            await self._deferral.defer_to_model(turn, failure, gives_up_s=policy.outage_budget_s)
            return
        if failure.delay_s is not None:
            waits_for = awaited_link(error, turn)
            await self._deferral.commit.defer(turn, failure.error, failure.delay_s, waits_for=waits_for)
            return
        if meter is not None:
            await meter.record()
        await kind.report_failure(turn, await self._with_effects(turn, failure))

    async def _with_effects(self, turn: Turn, failure: TurnFailureText) -> TurnFailureText:
        """Add that tools had done something before the end: without an answer nobody else says so."""
        commit = self._deferral.commit
        since = turn.head.accepted_at - timedelta(seconds=1)
        receipts = await commit.retry_until_stored(
            lambda: commit.store.receipts.newest(since=since, session=turn.session, limit=1_000)
        )
        if not any(one.turn == turn.id and one.outcome is not ReceiptOutcome.FAILED for one in receipts):
            return failure
        done = _("What I had done before that stays done; `!did` lists it.")
        return replace(failure, public=f"{_(failure.public)} {done}")

    def _is_for_owner_alone(self, turn: Turn) -> bool:
        return all(
            row.message.audience is Audience.DIRECT and self._access.decide(row.message).role is Role.OWNER
            for row in turn.rows
        )


def awaited_link(error: Exception, turn: Turn) -> str | None:
    """The link that ends this error when it comes up; None: no link does. Pure."""
    if isinstance(error, PlaceUnknown) and error.channel:
        return link_wait(error.channel)
    return link_wait(turn.channel) if isinstance(error, PlaceUnknown | ChannelError) else None


def decide_failure(error: Exception, turn: Turn, policy: TurnPolicy, *, jitter: float) -> TurnFailureText:
    """
    Return the consequence of an error; ``jitter`` is in [0, 1). Pure.

    Temporary errors of model or disk are retried within the budget. All others are final, with a text for
    strangers, and so is a repeated error at the same place in an answer.
    """
    told, place = describe(error), _place_in_answer(error)
    text = f"{place}{error}" or type(error).__name__
    if not told.temporary:
        # Without a status it is the model's own answer that was not one; with one its server refuses us.
        is_explained = isinstance(error, ModelRefused) and "status" not in error.fields
        return TurnFailureText(None, told.public, text, is_explained)
    if place and (turn.head.error or "").startswith(place):
        return TurnFailureText(
            None,
            _("{reason}, twice at the same point, so I stopped.", reason=_reason(_(told.public))),
            text,
        )
    if turn.first_deferred_s >= policy.outage_budget_s:
        return TurnFailureText(None, _given_up(told.public, policy.outage_budget_s), text)
    delay_s = _MODEL_RETRY.delay(turn.deferrals + 1, random=jitter)
    if isinstance(error, ModelRateLimited) and error.retry_after_s is not None:
        delay_s = max(delay_s, min(error.retry_after_s, policy.outage_budget_s))
    return TurnFailureText(delay_s, told.public, text)


def fatal_failure(turn: Turn, fatal: str | None) -> TurnFailureText | None:
    """
    The end of a turn that must not be tried: the process dies of it, or its channel could not read the
    message and says in ``context.unreadable`` what its sender is told. None: try it. Pure.
    """
    if unreadable := turn.head.message.context.unreadable:
        return TurnFailureText(None, unreadable, "the message could not be read", is_explained=True)
    return None if fatal is None else TurnFailureText(None, CRASH_APOLOGY, fatal)


def _place_in_answer(error: Exception) -> str:
    """Name the error and its step if it is in the middle of a model's answer; else ""."""
    fields = error.fields if isinstance(error, ModelError) else {}
    if not fields.get("in_answer") or "step" not in fields or fields.get("status") == 429:
        return ""
    return f"[{type(error).__name__} {fields.get('status')} at step {fields['step']}] "


def _reason(public: str) -> str:
    # What stands behind a semicolon in the texts of temporary errors promises another try.
    return public.partition(";")[0].rstrip(". ")


def _given_up(public: str, budget_s: float) -> str:
    return _(
        "{reason}. I kept trying for {span}; please ask me again later.",
        reason=_reason(_(public)),
        span=_span(budget_s),
    )


def outage_text(public: str, budget_s: float) -> str:
    """The notice for somebody whose message waits for a model; ``public`` says what is wrong. Pure."""
    return _(
        "{reason}. Your message is kept and will be answered when that is over; I keep trying for {span}.",
        reason=_reason(_(public)),
        span=_span(budget_s),
    )


def _span(budget_s: float) -> str:
    minutes = round(budget_s / 60)
    return (
        _("an hour")
        if minutes == 60
        else _("{minutes} minutes", minutes=minutes)
        if minutes >= 2
        else _("a while")
    )


def left_s(row: InboxRow, now: datetime) -> float:
    """
    The seconds that an accepted message still has to wait; 0.0 if it may be answered. Pure.

    A clock that was in the future when the message was accepted does not keep it waiting.
    """
    wait_s = row.message.context.wait_s
    left = wait_s - (now - row.accepted_at).total_seconds()
    return left if 0.0 < left <= wait_s else 0.0


def notice_text(wait_s: float, now: datetime) -> str:
    """The notice for somebody whose message has to wait. Pure."""
    at = now + timedelta(seconds=wait_s)
    minutes = max(round(wait_s / 60), 1)
    span = (
        _("{n} hours", n=round(minutes / 60))
        if minutes >= 120
        else _("{minutes} minutes", minutes=minutes)
        if minutes > 1
        else _("a minute")
    )
    at, now = at.astimezone(), now.astimezone()
    day = "" if at.date() == now.date() else show_time(at, gettext_noop("%Y-%m-%d "))
    return _(
        "You have written more than I may answer at once. Your message waits; I will answer it at about "
        "{day}{at}, in {span}. What else you have written, or write until then, is answered after it.",
        day=day,
        at=show_time(at, gettext_noop("%H:%M %Z")),
        span=span,
    )


CHECK_EVERY_S = 30.0
_RETRY = BackoffPolicy(first_s=0.5, cap_s=30.0)


class DeferralWakeups:
    """Ends deferrals, for the whole gateway; ``zone`` is that of the budget's days."""

    def __init__(self, store: Queue, *, clock: Clock, zone: tzinfo | None, wakeups: Wakeups) -> None:
        self._store = store
        self._clock = clock
        self._zone = zone
        self._wakeups = wakeups
        self._up: set[tuple[str, bool]] = set()
        self._came_up: set[str] = set()
        self._ended: set[str] = set()
        self._seen = clock.now()
        self._news = anyio.Event()
        wakeups.channel.connect(
            lambda status: self.link(status.name, up=status.can_send, caught_up=status.state is LinkState.UP)
        )
        wakeups.recovery.connect(self._recovered)

    def link(self, channel: str, *, up: bool, caught_up: bool = False) -> None:
        """Note a channel's link, without waiting; ``caught_up`` also ends waits of some channels."""
        if not up:
            self._up -= {(channel, False), (channel, True)}
        elif (channel, caught_up) not in self._up:
            self._up.add((channel, caught_up))
            self._came_up.add(channel)
            self._news.set()

    def _recovered(self, error: ModelError) -> None:
        self._ended.add(BUDGET if isinstance(error, CreditSpent) else MODEL)
        self._news.set()

    async def run(self) -> None:
        """End deferrals until cancelled. Raises nothing but cancellation."""
        failures = 0
        while True:
            self._news = anyio.Event()
            wait_s = CHECK_EVERY_S
            try:
                await self.wake_due()
                failures = 0
            except StoreUnavailable as error:
                failures += 1
                wait_s = _RETRY.delay(failures, random=random.random())
                _log.warning("deferrals.blocked", error=str(error), retry_in_s=round(wait_s, 1))
            with anyio.move_on_after(wait_s):
                await self._news.wait()

    async def wake_due(self) -> None:
        """End due deferrals now. Raises StoreUnavailable; the next check retries it."""
        for channel in sorted(self._came_up):
            await self._store.maintenance.due_now(link_wait(channel))
            self._came_up.discard(channel)
            self._wakeups.link.fire(channel)
        now = self._clock.now()
        if _another_day(self._seen, now, self._zone):
            self._ended.add(BUDGET)
        for ended in sorted(self._ended):
            await self._store.maintenance.due_now(ended)
            self._ended.discard(ended)
        self._seen = now


def _another_day(seen: datetime, now: datetime, zone: tzinfo | None) -> bool:
    """Return True on a new day, or after the clock was set back: the budget may differ."""
    return now < seen or day_of(now, zone) != day_of(seen, zone)
