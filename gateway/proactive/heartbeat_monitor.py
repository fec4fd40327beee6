"""
The heartbeat monitor: sends the digest, and alerts the owner when check-ins fail or do not run. Alerts to a
mail address are collected in the store and leave it in the transaction that posts the daily mail. When
several consecutive check-ins in active hours have not run or failed, the owner is alerted once until they
have run again; a machine that was off reports it on its return.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any

import anyio
import structlog

from agent_core.language import _, gettext_noop, show_time
from agent_core.messages import OutboundKind
from agent_core.ports import Clock
from channels.base import Channel, ChannelError, ChannelUnavailable, SupportsDirectMessages
from channels.heartbeat.channel import NOTHING, OUTSIDE
from channels.heartbeat.config import HeartbeatConfig
from channels.heartbeat.tick_schedule import tick_name
from gateway.proactive.jobs.triggers import Cron, newest_due
from gateway.proactive.owner_contact import Target
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.proactive.run_ledger import failing_since, resting_until
from gateway.store.model import CollectedAlert, LedgerEntry, RunOutcome
from gateway.store.stores import JobStore, StoreUnavailable

SAID_ALREADY = "said already"
_CHECK_EVERY_S = 30.0
_LOOKED_AT = 100
_ENDED_AMONG = 500
_log = structlog.get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class HeartbeatMonitor:
    """
    Checks regularly what to report; implements `channels.heartbeat.channel.TickLog`.

    ``zone`` is that of the digest's hour; ``keep`` stores a note (subject, text) until it can be sent.
    """

    plans: JobStore
    notifier: OwnerNotifier
    channels: Mapping[str, Channel]
    config: HeartbeatConfig
    zone: str
    clock: Clock
    heartbeat: str | None = "heartbeat"
    keep: Callable[[str, str], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self._schedule = self.config.schedule()
        hour, minute = divmod(self.config.digest.minute, 60)
        self._digest_at = Cron(f"{minute} {hour} * * *", self.zone)
        self._began_at = self.clock.now()
        """Since when the machine has been awake, as far as is known."""
        self._pruned_at: float | None = None
        self._missed_since = ""

    async def run(self) -> None:
        """Work until cancelled; nothing that fails comes out of here."""
        while True:
            try:
                await self.check_once()
            except StoreUnavailable as error:
                _log.warning("heartbeat_monitor.blocked", error=str(error))
            await self.pause()

    async def pause(self) -> None:
        """Wait for the next look. After a sleep of the machine it starts over, as after a start."""
        began_at = self.clock.now()
        await anyio.sleep(_CHECK_EVERY_S)
        now = self.clock.now()
        # At short intervals the pause itself, and being late by a little, is no sleep.
        slept = now - began_at - timedelta(seconds=_CHECK_EVERY_S)
        if slept >= max(self._schedule.interval, timedelta(seconds=_CHECK_EVERY_S)):
            self._began_at = now

    async def check_once(self) -> None:
        """Do what is due. Raises `StoreUnavailable`: what was not done stays due."""
        await self._send_digests()
        if self.heartbeat is not None and self.config.alert_after_missed:
            await self._look_for_signs_of_life(self.heartbeat)
        now = self.clock.monotonic()
        if self._pruned_at is None or now - self._pruned_at > 6 * 3600.0:
            self._pruned_at = now
            await self.plans.prune_plans(older_than_s=90 * 86_400.0)

    # ── the ledger of ticks that are no turns ──

    async def note_skip(self, name: str, instant: datetime, reason: str) -> None:
        """Note that a tick was skipped."""
        try:
            await self.plans.note(LedgerEntry(name, instant, RunOutcome.SKIPPED, reason))
        except StoreUnavailable as error:
            _log.warning("ledger.not_recorded", error=str(error))

    async def note_missed_ticks(self, name: str, since: datetime, until: datetime) -> None:
        """Ticks were merged into the one at ``until``; if they are many, the owner gets an alert."""
        limit = self.config.alert_after_missed
        if not limit:
            return
        try:
            # A clock that was wrong in between, such as one that begins with 1970, says nothing: then the
            # ledger knows later ticks than the one before, and perhaps this one.
            lines = await self.plans.ledger(name=name, limit=_LOOKED_AT)
        except StoreUnavailable as error:
            _log.warning("ledger.unreadable", error=str(error))
            lines = []
        ended = [one.until or one.instant for one in lines if one.reason != OUTSIDE]
        since = max([since, *(at for at in ended if at <= until)])
        count = self._schedule.open_between(since, until - timedelta(microseconds=1), at_most=100_000)
        if count < limit:
            return
        zone = self._schedule.zone
        text = _(
            "My check-ins from {since} to {until} did not run ({n} of them): I was not running, or this "
            "machine was asleep. They are merged into one, which runs now.",
            since=_local_time(since, zone),
            until=_local_time(until, zone),
            n=count,
        )
        try:
            # This is known at this moment only: what cannot be told now, such as at the start, is kept.
            if not await self._alert_owner(tick_name(since), text) and self.keep is not None:
                await self.keep(f"check-ins since {tick_name(since)}", text)
        except StoreUnavailable as error:
            _log.warning("heartbeat_monitor.blocked", error=str(error))

    async def has_answered(self, name: str, instant: datetime) -> bool | None:
        """A tick ended; see `TickLog.ended`."""
        try:
            entries = await self.plans.ledger(name=name, limit=_ENDED_AMONG)
        except StoreUnavailable as error:
            _log.warning("ledger.unreadable", error=str(error))
            return None
        return outcome_text(entries, instant)

    async def has_alerted(self, name: str, instant: datetime) -> bool:
        """Return True if a tick has told the owner something; see `TickLog.told`."""
        try:
            entries = await self.plans.ledger(name=name, limit=_ENDED_AMONG)
        except StoreUnavailable as error:
            _log.warning("ledger.unreadable", error=str(error))
            return False
        entry = next((one for one in entries if one.instant <= instant <= (one.until or one.instant)), None)
        return entry is not None and (
            entry.outcome in (RunOutcome.DELIVERED, RunOutcome.COLLECTED) or entry.reason == SAID_ALREADY
        )

    async def list_news(self) -> Mapping[str, Sequence[tuple[int, str]]]:
        """Return what watches have found; see `TickLog.list_news`."""
        try:
            states = await self.plans.watch_states()
        except StoreUnavailable as error:
            _log.warning("ledger.unreadable", error=str(error))
            return {}
        found = {job_id: json.loads(state).get("news", []) for job_id, state in states.items()}
        return {job_id: [(number, text) for number, text in news] for job_id, news in found.items()}

    # ── the missed-heartbeat alert ──

    async def _look_for_signs_of_life(self, name: str) -> None:
        entries = await self.plans.ledger(name=name, limit=_LOOKED_AT)
        since = last_success_at(entries)
        now = self.clock.now()
        self._began_at = min(self._began_at, now)  # the clock was set back
        if since is None or since < self._began_at:
            # Before this start it is the matter of `missed`, and after it nothing can be late at once.
            since = max(self._began_at, since or self._began_at)
        limit = self.config.alert_after_missed
        if self._schedule.open_between(since, now, at_most=limit) < limit:
            return
        failed = failing_since(entries)
        why = _(" The last one failed: {why}", why=failed[0].reason) if failed else ""
        zone = self._schedule.zone
        text = _(
            "My check-ins have failed since {since}: {n} of them or more.{why}",
            since=_local_time(since, zone),
            n=limit,
            why=why,
        )
        await self._alert_owner(tick_name(since), text)

    async def _alert_owner(self, since: str, text: str) -> bool:
        """Tell it once; False: there is no place to tell it in now."""
        if self._missed_since != since:
            self._missed_since = since
            _log.warning("heartbeat.missed", since=since)
        topic = f"check-ins since {since}"
        reached = await self.notifier.notify(
            topic, text, once=("dead_man", since), kind=OutboundKind.ALERT, remember=True
        )
        return reached.target is not None

    # ── the digest ──

    async def _send_digests(self) -> None:
        now = self.clock.now()
        due = newest_due(self._digest_at, None, now)
        waiting = [
            one
            for one in await self.plans.list_collected_alerts()
            if due is not None and (one.at <= due or one.at > now)
        ]
        for channel, person in dict.fromkeys((one.channel, one.person) for one in waiting):
            theirs = [one for one in waiting if (one.channel, one.person) == (channel, person)]
            if due is not None:
                await self._send_digest(channel, person, theirs, tick_name(due))

    async def _send_digest(self, name: str, person: str, alerts: list[CollectedAlert], at: str) -> None:
        target = await self._digest_target(name, person, at)
        if target is None:
            return  # at the next look
        text = digest_text(alerts, self._schedule.zone)
        ids = [one.id for one in alerts]
        once = (f"digest {name} {person}", at)
        if await self.notifier.post(
            target, text, once=once, kind=OutboundKind.ALERT, remember=True, collected=ids
        ):
            _log.info("digest.sent", channel=target.channel, alerts=len(ids))

    async def _digest_target(self, name: str, person: str, at: str) -> Target | None:
        """Return where collected alerts go: to their address while it is the owner's, else to the owner."""
        channel, topic = self.channels.get(name), f"digest {at}"
        if isinstance(channel, SupportsDirectMessages) and self.notifier.contact.is_owner(name, person):
            try:
                with anyio.fail_after(30.0):
                    session = await channel.direct_session(person, topic=topic)
                return Target(name, channel.account, session, person)
            except (ChannelUnavailable, TimeoutError):
                return None
            except ChannelError as error:
                _log.warning("digest.moved", channel=name, error=str(error))
        return (await self.notifier.reach(topic)).target

    # ── what is shown ──

    async def state(self) -> dict[str, Any]:
        """Return the status of check-ins and digest, without texts and people. Raises `StoreUnavailable`."""
        if self.heartbeat is None:
            return {"enabled": False}
        entries = await self.plans.ledger(name=self.heartbeat, limit=_LOOKED_AT)
        now, last = self.clock.now(), entries[0] if entries else None
        failed = failing_since(entries)
        interval = timedelta(minutes=self.config.interval_minutes)
        resting, following = resting_until(entries, now, interval), self._schedule.next_run(now)
        return {
            "enabled": True,
            "active": self._schedule.is_open(now),
            "next": None if following is None else tick_name(following),
            "last": None
            if last is None
            else {
                "at": tick_name(last.until or last.instant),
                "outcome": last.outcome.value,
                "reason": last.reason,
                "tokens": last.tokens,
            },
            "failures": len(failed),
            "resting_until": None if resting is None else tick_name(resting),
            "collected": len(await self.plans.list_collected_alerts()),
        }


def last_success_at(entries: list[LedgerEntry]) -> datetime | None:
    """Return when a check-in last succeeded, or None. ``entries`` are newest first. Pure."""
    for entry in entries:
        good = entry.outcome in (RunOutcome.SILENT, RunOutcome.DELIVERED, RunOutcome.COLLECTED)
        if good or (entry.outcome is RunOutcome.SKIPPED and entry.reason.startswith(NOTHING)):
            return entry.until or entry.instant
    return None


def outcome_text(entries: list[LedgerEntry], instant: datetime) -> bool | None:
    """
    Return the outcome of the tick at ``instant`` by the ledger, newest first. Pure.

    True: with an answer. False: without one. None: not yet. Ticks end in order, so one without an entry has
    ended without an answer when a later one has ended.
    """
    passed = False
    for entry in entries:
        if entry.outcome is RunOutcome.SKIPPED and entry.reason.startswith((NOTHING, OUTSIDE)):
            continue  # not said of this one, even if it stands in the middle of such a row
        if entry.instant <= instant <= (entry.until or entry.instant):
            return entry.outcome not in (RunOutcome.SKIPPED, RunOutcome.FAILED)
        passed = passed or entry.instant > instant
    return False if passed else None


def digest_text(alerts: list[CollectedAlert], zone: tzinfo | None) -> str:
    """Collected alerts as one text; pure."""
    if len(alerts) == 1:
        return alerts[0].text
    parts = [f"**{_local_time(one.at, zone)}**\n\n{one.text}" for one in alerts]
    return _("{n} things since the last mail:\n\n", n=len(alerts)) + "\n\n---\n\n".join(parts)


def _local_time(at: datetime, zone: tzinfo | None) -> str:
    return show_time(at.astimezone(zone), gettext_noop("%a %Y-%m-%d %H:%M %Z"))
