"""
Alerts to the owner: a channel that needs them, unreadable data, messages in quarantine. An alert is sent as
soon as the store takes it, at most hourly; the quarantine is reported once a day if it has news, because a
forger can send a thousand messages. An alert is a text of the store until the transaction that posts it
(``owner_notifier.py``); ``status`` counts waiting ones.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf
from typing import Any

import anyio
import structlog

from agent_core.backoff import BackoffPolicy
from agent_core.errors import ModelError
from agent_core.language import _, for_owner, gettext_noop, ngettext, show_time
from agent_core.llm.model_errors import refusal_text
from agent_core.messages import OutboundKind
from agent_core.ports import Clock
from agent_core.text import one_line
from channels.base import LinkState
from channels.status import ChannelStatus
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.store.states import UNINVITED, InboxState
from gateway.store.stores import InboxRow, Queue, StoreUnavailable
from gateway.store.wakeups import Alert, Wakeups

CHECK_EVERY_S = 600.0
DIGEST_EVERY = timedelta(hours=24)
ALERT_INTERVAL_S = 3600.0
EMAIL_INTERVAL_S = 900.0
"""After an alert by mail the next ones are collected for so long, and are one mail."""
MAX_ALERTS = 50
MAX_LINES = 20
ASK_AGAIN_S = 60.0
"""If it cannot be said now where the owner reads alone."""
_DIGEST_SENT = "owner.quarantine_digest"
_ALERTS = "owner.alerts/"
_LONGEST = 2000
_TOPIC = "notes"
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0)
_log = structlog.get_logger(__name__)


def is_for_daily_note(row: InboxRow) -> bool:
    """Return True if a quarantined message belongs in the daily digest, not in a question of its own."""
    told_daily = row.error == UNINVITED or bool(row.message.context.quarantine)
    return row.state is InboxState.QUARANTINED and told_daily


@for_owner
def memory_unusable(what: str) -> Alert:
    """Alert: a memory document is not a file."""
    return Alert(
        f"memory {what}",
        _(
            "I cannot read my notes: {what}. Until you move that away, I answer without them. At the "
            "machine, stop me and run `squidbot check --data --repair`: it sets that aside and restores the "
            "last text.",
            what=what,
        ),
    )


@for_owner
def history_set_aside(what: str) -> Alert:
    """Alert: something that is not a file was moved out of the place of a history."""
    return Alert(
        f"history {what}",
        _(
            "A history in `sessions/` was not a file ({what}). I moved it away and continue with a new "
            "history. If you have the old one, stop me, replace the new one with it, and start me again.",
            what=what,
        ),
    )


@for_owner
def disk_alert(why: str) -> Alert:
    """Alert: disk or storage take no files, so messages with files are not taken in."""
    return Alert(
        "files",
        _(
            "Messages with files wait, because I cannot store them ({why}). See to my disk or the storage "
            "for files; I keep trying.",
            why=why,
        ),
    )


@for_owner
def reload_alert(problems: str) -> Alert:
    """Alert: a reload was refused; ``problems`` as `ConfigInvalid` has them, with the file before a list."""
    first = "".join(problems.splitlines()[:2][-1:]).strip()
    return Alert(
        f"settings {first}",
        _(
            "I did not reload the configuration and go on with the one from before ({first}); "
            "`squidbot config check` names all that is wrong.",
            first=one_line(first, 300),
        ),
    )


@for_owner
def erasure_alert(person: str) -> Alert:
    """Alert: what somebody asked to be forgotten could not be erased."""
    return Alert(
        "erasure",
        _(
            "I could not erase what {person} asked me to forget; the log says why. I try again at the next "
            "start.",
            person=person,
        ),
    )


@for_owner
def credit_alert(error: ModelError, now: datetime) -> Alert:
    """Alert: a model's provider gives no more answers, because the account has nothing left."""
    model, status = error.fields.get("model"), error.fields.get("status")
    told = str(error).removeprefix(f"{model}: {status}: ").rstrip(".")
    return Alert(
        f"credit {model}",
        _(
            "Your account at the provider of the model {model} has no credit left or has reached its limit; "
            'it says: "{told}". Until you mend that there, the next model of the pool answers. Without one, '
            "questions wait; I look again every half hour, or at `!retry`.",
            model=model,
            told=told,
        ),
        once=f"{now:%Y-%m-%d}",
    )


@for_owner
def substitute_alert(error: ModelError, now: datetime) -> Alert:
    """Alert: another model answers in the place of one that refuses the key, or does not exist."""
    return Alert(
        f"model {error.fields.get('model')}",
        _(
            "{what}, so the next one of its pool answers. Mend that at the machine, test it with `squidbot "
            "check`, and reload me.",
            what=refusal_text(error),
        ),
        once=f"{now:%Y-%m-%d}",
    )


@for_owner
def forget_alert(addresses: Sequence[str], *, automatic: bool) -> Alert:
    """Alert: a person has asked to be forgotten. ``automatic``: that is done in the coming night."""
    who = ", ".join(f"`{_plain(address)}`" for address in addresses)
    if automatic:
        text = _(
            "{who} has asked me to forget everything about them. I do it in the coming night, and start "
            "anew for that. They may still write to me; `!allow remove ADDRESS` ends that.",
            who=who,
        )
    else:
        text = _(
            "{who} has asked me to forget everything about them. On this database only you can do it: stop "
            "me on all machines, and run `squidbot forget {first}`.",
            who=who,
            first=addresses[0],
        )
    return Alert(f"forget {addresses[0]}", text)


@for_owner
def link_alert(address: str, main: str, at: str) -> Alert:
    """Alert: somebody has proved that an address is another one's person, at this time (ISO)."""
    text = _(
        "`{address}` is the same person as `{main}` from now on: both have proved it with `!link`. "
        "`!unlink {address}` ends that.",
        address=_plain(address),
        main=_plain(main),
    )
    return Alert(f"link {address}", text, once=at)


@for_owner
def prompt_cut(model: str, text: str, now: datetime) -> Alert:
    """Alert: a server reads less of a request than it is sent, or than the configuration says."""
    return Alert(
        f"window {model}",
        _("A language model reads less than it should: {text}. Until then I send it less.", text=text),
        once=f"{now:%Y-%m-%d}",
    )


@dataclass(eq=False, kw_only=True)
class OwnerAlerts:
    """Sends alerts to the owner: ``target`` starts the conversation, ``wakeups`` bring alerts."""

    store: Queue
    target: OwnerContact
    notifier: OwnerNotifier
    clock: Clock
    wakeups: Wakeups = field(default_factory=Wakeups)

    def __post_init__(self) -> None:
        self.look_every_s = CHECK_EVERY_S
        self._email_again_at = -inf
        self._new: dict[str, Alert] = {}
        """What is not in the store yet, by what it is about."""
        self._stored: dict[str, str] = {}
        """What the store had at the last look, by topics."""
        self._begun = False
        """Whether there is a place where the owner can be told something, or none can be made."""
        self._why_not = ""
        self._sent_at: dict[str, float] = {}
        self._news = anyio.Event()
        self.wakeups.alert.connect(lambda one: self.alert(one.about, one.text, one.once))
        self.wakeups.owner.connect(lambda _: self.send_due())
        self.wakeups.channel.connect(self.note_channel)

    def alert(self, about: str, text: str, once: str = "") -> None:
        """Report something that needs a person, without secrets; at most hourly per ``about``."""
        now, what = self.clock.monotonic(), f"{about} {once}"
        if now - self._sent_at.get(what, now - ALERT_INTERVAL_S) < ALERT_INTERVAL_S:
            return
        if about not in self._waiting() and len(self._new) >= MAX_ALERTS:
            _log.warning("owner.alert_dropped", about=about)
            return
        self._sent_at = {each: at for each, at in self._sent_at.items() if now - at < ALERT_INTERVAL_S}
        self._sent_at[what] = now
        self._new[about] = Alert(about, text[:_LONGEST], once)
        self._news.set()

    async def store_now(self, about: str, text: str, once: str = "") -> None:
        """Do `alert`, but stored on return. Raises StoreUnavailable."""
        await self._store_alerts([Alert(about, text[:_LONGEST], once)])
        self._news.set()

    def send_due(self) -> None:
        """Try again: there may be a place now. Returns at once."""
        if self._waiting() or not self._begun:
            self._news.set()

    def state(self) -> dict[str, Any]:
        """Return the number of waiting alerts, and why they wait; no texts, no people."""
        waiting = len(self._waiting())
        return {"alerts_waiting": waiting, "why": self._why_not if waiting else ""}

    @for_owner
    def note_channel(self, status: ChannelStatus) -> None:
        """Note a channel's state; report one that needs a person."""
        self.notifier.note_channel(status)
        if status.state is LinkState.UP:
            self.send_due()
        if status.state is LinkState.FAILED and status.detail:
            again = ""
            if status.retry_at is not None:
                at = show_time(status.retry_at.astimezone(), gettext_noop("%Y-%m-%d %H:%M %Z"))
                again = _("\n\nI try again at {time}; restart me to try at once.", time=at)
            self.alert(
                f"channel {status.name}",
                _("The channel {name} needs you: {why}", name=status.name, why=_(status.detail)) + again,
            )

    async def run(self) -> None:
        """Send alerts until cancelled. Raises nothing but cancellation."""
        failures = 0
        while True:
            self._news = anyio.Event()
            wait_s = self.look_every_s
            try:
                wait_s = min(wait_s, await self._send_next())
                failures = 0
            except StoreUnavailable as error:
                failures += 1
                wait_s = _RETRY.delay(failures, random=random.random())
                _log.warning("owner.not_notified", error=str(error), retry_in_s=round(wait_s, 1))
            with anyio.move_on_after(wait_s):
                await self._news.wait()

    async def _send_next(self) -> float:
        if not self._begun:
            self._begun = await self.target.begin()
        wait_s = await self._deliver_alerts()
        await self._deliver_digest()
        return wait_s

    async def _deliver_alerts(self) -> float:
        """Post waiting alerts in one message and forget them; return the seconds mails are collected."""
        wait_s, new = self._email_again_at - self.clock.monotonic(), list(self._new.values())
        await self._store_alerts(new)
        for alert in new:
            if self._new.get(alert.about) is alert:
                del self._new[alert.about]
        waiting = _alerts_in(self._stored)
        if not waiting or wait_s > 0:
            return max(wait_s, 0.0) if waiting else inf
        # One with a key goes alone: whether it was told is known of it alone.
        told = [alert for alert in waiting if not alert.once] or waiting[:1]
        once = told[0].key
        text = told[0].text
        if len(told) > 1:
            text = _("{n} things need you:\n\n", n=len(told)) + "\n".join(f"- {alert.text}" for alert in told)
        texts = {topic: self._stored[topic] for topic in (f"{_ALERTS}{alert.about}" for alert in told)}
        reached = await self.notifier.notify(_TOPIC, text, once=once, kind=OutboundKind.ALERT, texts=texts)
        self._why_not = reached.why
        if reached.target is None:
            return ASK_AGAIN_S
        if self.notifier.is_email_style(reached.target):
            self._email_again_at = self.clock.monotonic() + EMAIL_INTERVAL_S
        self._stored = await self.store.state.read_below(_ALERTS)
        return inf if not self._waiting() else max(self._email_again_at - self.clock.monotonic(), 0.0)

    def _waiting(self) -> set[str]:
        """Return what is not told yet, as far as is known."""
        return self._new.keys() | {alert.about for alert in _alerts_in(self._stored)}

    async def _store_alerts(self, alerts: Sequence[Alert]) -> None:
        """Add alerts to the stored ones, as many as there is room for; a newer text replaces an older one."""
        self._stored = await self.store.state.read_below(_ALERTS)
        known = {alert.about: alert for alert in _alerts_in(self._stored)}
        for number, alert in enumerate(alerts):
            topic = f"{_ALERTS}{alert.about}"
            has_room = topic in self._stored or len(self._stored) < MAX_ALERTS
            if has_room and known.get(alert.about) != alert:
                order = [self.clock.now().isoformat(), number]
                self._stored[topic] = json.dumps([*order, alert.text, alert.once])
                await self.store.state.write(topic, self._stored[topic])

    async def _deliver_digest(self) -> None:
        last_at, told = _read(await self.store.state.read(_DIGEST_SENT))
        now = self.clock.now()
        if last_at is not None and timedelta(0) <= now - last_at < DIGEST_EVERY:
            return
        rows = await self.store.inbox.rows(states=[InboxState.QUARANTINED], limit=500)
        waiting = [row for row in rows if is_for_daily_note(row)]
        ids = sorted(row.id for row in waiting)
        if told.issuperset(ids):  # what is committed later may have a lower id
            return
        once = ("quarantine digest", hashlib.sha256(json.dumps(ids).encode()).hexdigest())
        if (await self.notifier.notify(_TOPIC, _digest(waiting), once=once)).target is None:
            return
        await self.store.state.write(_DIGEST_SENT, json.dumps({"at": now.isoformat(), "ids": ids}))
        _log.info("owner.quarantine_notified", waiting=len(waiting))


def _alerts_in(stored: Mapping[str, str]) -> list[Alert]:
    """Return stored alerts, oldest first; one that cannot be read is left out."""
    found = []
    for topic, value in stored.items():
        with suppress(ValueError, TypeError):
            at, number, text, once = json.loads(value)
            found.append((str(at), int(number), Alert(topic.removeprefix(_ALERTS), str(text), str(once))))
    return [alert for _, _, alert in sorted(found, key=lambda each: each[:2])]


def _read(text: str | None) -> tuple[datetime | None, frozenset[int]]:
    try:
        kept = json.loads(text or "")
        return datetime.fromisoformat(kept["at"]), frozenset(map(int, kept["ids"]))
    except (ValueError, KeyError, TypeError):
        return None, frozenset()


def _digest(rows: list[InboxRow]) -> str:
    """One line for each, newest first; what senders wrote stands in code marks and cannot pose as ours."""
    uninvited = [row for row in rows if row.error == UNINVITED]
    others = [row for row in rows if row.error != UNINVITED]
    parts = []
    if others:
        parts.append(
            ngettext(
                "One message is quarantined, because its sender is not verified. I answered nobody and "
                "showed nothing of it to a model.\n\n",
                "{n} messages are quarantined, because the senders are not verified. I answered nobody and "
                "showed nothing of it to a model.\n\n",
                len(others),
            )
            + "\n".join(_lines(others))
            + _("\n\nWrite `!approve NAME` to see the whole message and then let it in, or `!reject NAME`.")
        )
    if uninvited:
        parts.append(
            ngettext(
                "One message is from somebody who may not write to me. I answered nobody, and keep it for 14 "
                "days.\n\n",
                "{n} messages are from people who may not write to me. I answered nobody, and keep them for "
                "14 days.\n\n",
                len(uninvited),
            )
            + "\n".join(_lines(uninvited))
            + _(
                "\n\nWrite `!allow ADDRESS` to let somebody in and have what they wrote answered, or "
                "`!reject NAME`."
            )
        )
    return "\n\n".join([*parts, _("I report this once a day; `!allow` lists all that I refused.")])


def _lines(rows: list[InboxRow]) -> list[str]:
    lines = []
    for row in rows[:MAX_LINES]:
        subject = _plain(row.message.context.subject or row.message.text)
        doubt = row.message.context.doubt
        why = _((row.error or "").replace("_", " ")) + (f": {_plain(doubt)}" if doubt else "")
        at = show_time(row.message.received_at.astimezone(), gettext_noop("%Y-%m-%d %H:%M %Z"))
        lines.append(f"- **m{row.id}**, {at}, `{_plain(row.message.sender.address)}` ({why}): `{subject}`")
    return [*lines, _("- and {n} more", n=len(rows) - MAX_LINES)] if len(rows) > MAX_LINES else lines


def _plain(text: str) -> str:
    return one_line(text, 80).replace("`", "'") or "-"
