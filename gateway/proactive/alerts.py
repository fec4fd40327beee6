"""
What the owner is told without having asked: that something was stopped, and what waits in quarantine.

An alert goes out as soon as the store takes it, and not twice within an hour. What waits in quarantine is
told in one message a day, and only if something new is there: whoever can forge an address can send a
thousand of them, and must not be able to ring the owner's bell a thousand times.

Where they go is in ``owner_notifier.py``. While the owner cannot be reached at all, alerts are kept in the
store, counted in ``status``, and told when there is a place for them.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timedelta
from math import inf
from typing import Any

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.messages import OutboundKind
from agent_core.ports import Clock
from agent_core.text import one_line
from channels.base import LinkState
from channels.status import ChannelStatus
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import Once, OwnerNotifier
from gateway.queue.ports import InboxRow, Queue, StoreUnavailable
from gateway.queue.states import InboxState
from gateway.queue.wakeups import Alert, Wakeups

__all__ = ["OwnerAlerts", "is_for_daily_note"]

LOOK_EVERY_S = 600.0
DIGEST_EVERY = timedelta(hours=24)
ALERT_AGAIN_S = 3600.0
EMAIL_AGAIN_S = 900.0
"""After an alert by mail the next ones are collected for so long, and are one mail."""
MAX_ALERTS = 50
MAX_LINES = 20
MAX_ROWS = 500
ASK_AGAIN_S = 60.0
"""If it cannot be said now where the owner reads alone."""
_DIGEST_TOLD = "owner.quarantine_digest"
_ALERTS = "owner.alerts"
_LONGEST = 2000
_TOPIC = "notes"
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0)
_log = structlog.get_logger(__name__)


def is_for_daily_note(row: InboxRow) -> bool:
    """Whether a quarantined message is for the daily note, and not for a question of its own."""
    return row.state is InboxState.QUARANTINED and bool(row.message.context.get("quarantine"))


def memory_unusable(what: str) -> Alert:
    """A memory document is no file."""
    return Alert(
        f"memory {what}",
        f"I cannot read what I have written down: {what}. Until it is moved away I answer without it. "
        "`squidbot check --data` says it too, and with `--repair`, while I do not run, puts that "
        "aside and brings the last text back.",
    )


def history_set_aside(what: str) -> Alert:
    """Something that is no file was moved out of the place of a history."""
    return Alert(
        f"history {what}",
        f"Something that is no file stood in the place of a history in `sessions/` ({what}). I moved it "
        "away and go on with a new history. If you have the old one, stop me, put it in the place of the "
        "new one, and start me again.",
    )


class OwnerAlerts:
    """
    Tells the owner.

    Args:
        store: Where messages wait, and where alerts are kept.
        target: Begins the conversation with the owner.
        wakeups: Say what needs the owner, and that there may be a place to tell it.
    """

    def __init__(
        self,
        *,
        store: Queue,
        target: OwnerContact,
        notifier: OwnerNotifier,
        clock: Clock,
        wakeups: Wakeups | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._store = store
        self._target = target
        self._notifier = notifier
        self._clock = clock
        self._look_every_s = look_every_s
        self._email_again_at = -inf
        self._alerts: OrderedDict[str, str] = OrderedDict()
        self._keys: dict[str, str] = {}
        """Under what those of `_alerts` are told that are told once (`Alert.once`)."""
        self._kept: str | None = None
        self._loaded = False
        self._begun = False
        """Whether there is a place where the owner can be told something, or none can be made."""
        self._why_not = ""
        self._told_at: dict[str, float] = {}
        self._news = anyio.Event()
        if wakeups is not None:
            wakeups.alert.connect(lambda one: self.alert(one.about, one.text, one.once))
            wakeups.owner.connect(lambda _: self.look())
            wakeups.channel.connect(self.channel_changed)

    def alert(self, about: str, text: str, once: str = "") -> None:
        """
        Tell that something needs a person. Returns at once.

        Args:
            about: What it is about; the same thing is told once an hour at most.
            text: A sentence or two, without secrets.
            once: See `gateway.queue.wakeups.Alert`.
        """
        now, what = self._clock.monotonic(), f"{about} {once}"
        if now - self._told_at.get(what, now - ALERT_AGAIN_S) < ALERT_AGAIN_S:
            return
        if len(self._alerts) >= MAX_ALERTS:
            _log.warning("owner.alert_dropped", about=about)
            return
        self._told_at = {each: at for each, at in self._told_at.items() if now - at < ALERT_AGAIN_S}
        self._told_at[what] = now
        self._alerts[about] = text[:_LONGEST]
        if once:
            self._keys[about] = once
        self._news.set()

    async def keep(self, about: str, text: str) -> None:
        """
        As `alert`, for what is known at this moment only: it is in the store when this returns.

        Raises:
            StoreUnavailable: It is not.
        """
        await self._load()
        if about not in self._alerts and len(self._alerts) < MAX_ALERTS:
            self._alerts[about] = text[:_LONGEST]
        await self._keep()
        self._news.set()

    def look(self) -> None:
        """There may be a place now. Returns at once."""
        if self._alerts or not self._begun:
            self._news.set()

    def state(self) -> dict[str, Any]:
        """For ``status``: how many alerts wait, and why; no texts, no people."""
        return {"alerts_waiting": len(self._alerts), "why": self._why_not if self._alerts else ""}

    def channel_changed(self, status: ChannelStatus) -> None:
        """Hear of a channel's state; one that needs a person is told."""
        self._notifier.channel_changed(status)
        if status.state is LinkState.UP:
            self.look()
        if status.state is LinkState.FAILED and status.detail:
            self.alert(f"channel {status.name}", f"The channel {status.name} needs you: {status.detail}")

    async def run(self) -> None:
        """Tell what is to be told until cancelled. Raises nothing but cancellation."""
        failures = 0
        while True:
            self._news = anyio.Event()
            wait_s = self._look_every_s
            try:
                if not self._begun:
                    self._begun = await self._target.begin()
                wait_s = min(wait_s, await self._deliver_alerts())
                await self._deliver_digest()
                failures = 0
            except StoreUnavailable as error:
                failures += 1
                wait_s = _RETRY.delay(failures, random=random.random())
                _log.warning("owner.not_notified", error=str(error), retry_in_s=round(wait_s, 1))
            with anyio.move_on_after(wait_s):
                await self._news.wait()

    async def _deliver_alerts(self) -> float:
        """
        Send all pending alerts in one message. By email, later ones are collected for a while.

        Returns how long they still have to.
        """
        await self._load()
        wait_s = self._email_again_at - self._clock.monotonic()
        if not self._alerts or wait_s > 0:
            return max(wait_s, 0.0) if self._alerts else inf
        # What was kept goes alone: whether it has gone already is known of exactly that.
        once: Once | None = None
        if told := self._together(_alerts_of(self._kept)):
            once = "owner alerts", hashlib.sha256(str(self._kept).encode()).hexdigest()
        elif not (told := self._together(self._alerts)):
            about, text = next(iter(self._alerts.items()))
            told, once = {about: text}, (f"alert {about}", self._keys[about])
        many = len(told) > 1
        text = "\n".join(f"- {each}" for each in told.values()) if many else next(iter(told.values()))
        if many:
            text = f"{len(told)} things need you:\n\n{text}"
        reached = await self._notifier.notify(_TOPIC, text, once=once, kind=OutboundKind.ALERT)
        self._why_not = reached.why
        if reached.target is None:
            await self._keep()
            return ASK_AGAIN_S
        if self._notifier.is_email_style(reached.target):
            self._email_again_at = self._clock.monotonic() + EMAIL_AGAIN_S
        for about, each in told.items():
            if self._alerts.get(about) == each:
                del self._alerts[about]
                self._keys.pop(about, None)
        await self._keep()
        return inf if not self._alerts else max(self._email_again_at - self._clock.monotonic(), 0.0)

    async def _load(self) -> None:
        """What an earlier life could not tell comes first."""
        if self._loaded:
            return
        self._kept = await self._store.state.read(_ALERTS)
        self._loaded = True
        for about, key in _alerts_of(self._kept, "once").items():
            if about not in self._alerts:
                self._keys[about] = key
        for about, text in reversed(_alerts_of(self._kept).items()):
            self._alerts.setdefault(about, text)
            self._alerts.move_to_end(about, last=False)

    async def _keep(self) -> None:
        """Let the store have what is not told yet; nothing is written as long as there was nothing."""
        alerts = dict(self._alerts)
        if alerts == _alerts_of(self._kept):
            return
        # The time makes it another value than all before: what was kept is posted once, and a kill before it
        # is forgotten tells nothing twice.
        kept = json.dumps({"at": self._clock.now().isoformat(), "alerts": alerts, "once": self._keys})
        await self._store.state.write(_ALERTS, kept)
        self._kept = kept

    def _together(self, alerts: Mapping[str, str]) -> dict[str, str]:
        """Those that make one message; whether one with a key was told is known of it alone."""
        return {about: text for about, text in alerts.items() if about not in self._keys}

    async def _deliver_digest(self) -> None:
        last_at, told = _read(await self._store.state.read(_DIGEST_TOLD))
        now = self._clock.now()
        if last_at is not None and timedelta(0) <= now - last_at < DIGEST_EVERY:
            return
        rows = await self._store.inbox.rows(states=[InboxState.QUARANTINED], limit=MAX_ROWS)
        waiting = [row for row in rows if is_for_daily_note(row)]
        ids = sorted(row.id for row in waiting)
        if told.issuperset(ids):  # what is committed later may have a lower id
            return
        once = ("quarantine digest", hashlib.sha256(json.dumps(ids).encode()).hexdigest())
        if (await self._notifier.notify(_TOPIC, _digest(waiting), once=once)).target is None:
            return
        await self._store.state.write(_DIGEST_TOLD, json.dumps({"at": now.isoformat(), "ids": ids}))
        _log.info("owner.quarantine_notified", waiting=len(waiting))


def _alerts_of(kept: str | None, part: str = "alerts") -> dict[str, str]:
    """What `OwnerAlerts` kept; nothing, if that cannot be read."""
    try:
        alerts = json.loads(kept or "")[part]
        return {str(about): str(text) for about, text in alerts.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _read(text: str | None) -> tuple[datetime | None, frozenset[int]]:
    """When the digest was told, and of which messages."""
    try:
        kept = json.loads(text or "")
        return datetime.fromisoformat(kept["at"]), frozenset(map(int, kept["ids"]))
    except (ValueError, KeyError, TypeError):
        return None, frozenset()


def _digest(rows: list[InboxRow]) -> str:
    """One line for each, newest first; what senders wrote stands in code marks and cannot pose as ours."""
    lines = []
    for row in rows[:MAX_LINES]:
        subject = _plain(str(row.message.context.get("subject") or "") or row.message.text)
        doubt = _plain(str(row.message.context.get("doubt") or ""))
        why = (row.error or "").replace("_", " ") + (f": {doubt}" if doubt else "")
        at = f"{row.message.received_at:%Y-%m-%d %H:%M}"
        lines.append(f"- **m{row.id}**, {at}, `{_plain(row.message.sender.address)}` ({why}): `{subject}`")
    if len(rows) > MAX_LINES:
        lines.append(f"- and {len(rows) - MAX_LINES} more")
    count = "One message is" if len(rows) == 1 else f"{len(rows)} messages are"
    return (
        f"{count} kept back, because nothing proves the senders (or the circuit breaker was open). "
        "Nobody was answered, and nothing of it was shown to a model.\n\n"
        + "\n".join(lines)
        + "\n\nWrite `!approve NAME` to see all of one and then let it in, or `!reject NAME`. "
        "I tell this once a day."
    )


def _plain(text: str) -> str:
    return one_line(text, 80).replace("`", "'") or "-"
