"""
The heartbeat as a channel: at each due instant it puts a tick into the inbox, unless there is nothing to do.
The server of this channel is time itself, and its position the last tick: the tick and the position are
accepted together, so a tick fires once, whatever is killed when. A tick without work moves the position and
costs nothing else. Whether there is work is decided without a model: by ``HEARTBEAT.md``, or by the watches
if there are any. Waiting is done in short pieces, because a suspended machine's timers stand still and its
wall clock may jump.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

import anyio
import structlog
from anyio import sleep

from agent_core.messages import InboundMessage, OutboundMessage, SessionKey
from channels.base import (
    Capabilities,
    ChannelClock,
    ChannelUnavailable,
    DeliveryFailed,
    Inbox,
    LinkState,
    Receipt,
    Redelivery,
)
from channels.heartbeat.checklist import due_items, has_work
from channels.heartbeat.config import Watch
from channels.heartbeat.silence import is_silence
from channels.heartbeat.tick_schedule import Schedule, parse_instant, question_text, tick_message, tick_name
from channels.heartbeat.watch_commands import WatchRound, decide, digest, run_watch

_POSITION = "last_tick"
_REPORTED = "told"
_ASKED = "asked"
"""The checklist that a model was asked about last, and the tick that asked."""
_CHECK_EVERY_S = 60.0  # the clock may jump meanwhile
NEWS = "watch_news"
"""Up to which number the news of each watch was told."""
NOTHING = "nothing to do"
OUTSIDE = "outside the active hours"
"""How the reasons begin for which a tick is left out because all is well."""
_log = structlog.get_logger(__name__)


class TickLog(Protocol):
    """Records ticks that never become a message, and knows the others. Raises nothing but cancellation."""

    async def note_skip(self, name: str, instant: datetime, reason: str) -> None:
        """Note that a tick was skipped; called before it is committed, and so perhaps twice."""
        ...

    async def note_missed_ticks(self, name: str, since: datetime, until: datetime) -> None:
        """Between the tick at ``since`` and the one at ``until`` others were due, and are merged into it."""
        ...

    async def has_answered(self, name: str, instant: datetime) -> bool | None:
        """
        Return True if the tick at ``instant`` ended with an answer, False if without one; else None.

        A tick without an answer has failed or was left out: nobody was notified. None: it has not ended, or
        that is unknown.
        """
        ...

    async def has_alerted(self, name: str, instant: datetime) -> bool:
        """Return True if the tick at ``instant`` has told the owner something, or had nothing new to tell."""
        ...

    async def list_news(self) -> Mapping[str, Sequence[tuple[int, str]]]:
        """Return what was found for the next check-in, by the name of the finder, with rising numbers."""
        ...


@dataclass(frozen=True, slots=True)
class TickWork:
    """The result of looking at checklist and watches: the text for the model, or why there is none."""

    text: str = ""
    reason: str = ""
    positions: Mapping[str, str] = field(default_factory=dict)
    watched: bool = False
    is_idle: bool = False  # nothing is on the list, so that no check-in could have missed anything


class _NoLog:
    async def note_skip(self, name: str, instant: datetime, reason: str) -> None:
        pass

    async def note_missed_ticks(self, name: str, since: datetime, until: datetime) -> None:
        pass

    async def has_answered(self, name: str, instant: datetime) -> bool | None:
        return True

    async def has_alerted(self, name: str, instant: datetime) -> bool:
        return False

    async def list_news(self) -> Mapping[str, Sequence[tuple[int, str]]]:
        return {}


class HeartbeatChannel:
    """
    A channel on which only the clock writes, in the session ``heartbeat/owner``.

    Args:
        checklist: The file ``HEARTBEAT.md``.
        watches: Decide instead of the checklist if a model is asked.
        again_after: The time before the same watch result or checklist alerts again.
        log: Records how ticks ended.
    """

    name = account = "heartbeat"
    capabilities = Capabilities(redelivery=Redelivery.SAME_KEY)

    def __init__(
        self,
        schedule: Schedule,
        *,
        checklist: Path,
        clock: ChannelClock,
        watches: Sequence[Watch] = (),
        again_after: timedelta = timedelta(days=1),
        log: TickLog | None = None,
    ) -> None:
        self.schedule = schedule
        self._ticks: TickLog = log or _NoLog()
        self._checklist = checklist
        self._clock = clock
        self._watches = tuple(watches)
        self._again_after = again_after
        self._inbox: Inbox | None = None
        self._looking = anyio.Lock()

    async def run(self, inbox: Inbox) -> None:
        """Fire ticks until cancelled; see `Channel.run`."""
        inbox.report(LinkState.CONNECTING)
        last = parse_instant(await inbox.position(_POSITION))
        if last is None:
            # Nothing was missed before the very first start.
            last = self.schedule.newest(self._clock.now())
            await inbox.accept([], {_POSITION: tick_name(last)})
        self._inbox = inbox
        try:
            await self._let_time_pass(inbox, last)
        finally:
            self._inbox = None

    async def _let_time_pass(self, inbox: Inbox, last: datetime) -> None:
        self._report(inbox, last)
        resting = False
        while True:
            now = self._clock.now()
            instant = self.schedule.due(now, last)
            if instant is None:
                resting = await self._rests(now, last, resting=resting)
                until_next_s = (self.schedule.following(now) - now).total_seconds()
                await sleep(min(until_next_s, _CHECK_EVERY_S))
                continue
            async with self._looking:
                found = await self.check_work(inbox, instant)
                if instant - last > self.schedule.interval and not found.is_idle:
                    await self._ticks.note_missed_ticks(self.name, last, instant)
                message = self._tick(instant, found) if found.text else None
                if message is None:
                    await self._ticks.note_skip(self.name, instant, found.reason)
                positions = {**found.positions, _POSITION: tick_name(instant)}
                await inbox.accept([message] if message else [], positions)
            _log.debug("heartbeat.ticked", instant=tick_name(instant), work=message is not None)
            last = instant
            self._report(inbox, last)

    async def _rests(self, now: datetime, last: datetime, *, resting: bool) -> bool:
        """Return True if ticks wait for the active hours; the beginning is recorded once."""
        if self.schedule.is_open(now):
            return False
        if not resting and self.schedule.newest(now) > last:
            moment = now.replace(microsecond=now.microsecond // 1000 * 1000)
            await self._ticks.note_skip(self.name, moment, OUTSIDE)
            return True
        return resting

    async def now(self) -> tuple[datetime, TickWork]:
        """Fire a tick now if there is work; return its instant and work. Raises ChannelUnavailable."""
        if self._inbox is None:
            raise ChannelUnavailable("the heartbeat is not running")
        inbox, now = self._inbox, self._clock.now()
        instant = now.replace(microsecond=now.microsecond // 1000 * 1000)
        async with self._looking:
            found = await self.check_work(inbox, instant, forced=True)
            tick = self._tick(instant, found)
            context = replace(tick.context, forced=True)
            forced = {"native_id": f"now-{tick_name(instant)}", "context": context}
            messages = [tick.model_copy(update=forced)] if found.text else []
            if messages or found.positions:
                await inbox.accept(messages, found.positions)
        return instant, found

    async def preview_tick(self, instant: datetime) -> TickWork:
        """Return the work of a tick at ``instant``; nothing is accepted or marked as seen."""
        return await self.check_work(self._inbox, instant, forced=True)

    async def check_work(self, inbox: Inbox | None, instant: datetime, *, forced: bool = False) -> TickWork:
        """Decide without a model if there is work; ``forced`` or without inbox, also seen things count."""
        local = instant.astimezone(self.schedule.zone)
        reason, is_idle = f"{NOTHING}: {self._checklist.name} asks for nothing", True
        try:
            checklist = await anyio.to_thread.run_sync(_load_checklist, self._checklist)
        except FileNotFoundError:
            checklist, reason = "", f"{NOTHING}: there is no {self._checklist.name}"
        except OSError as error:
            _log.warning("heartbeat.checklist_unreadable", error=type(error).__name__, errno=error.errno)
            checklist, is_idle = "", False
            reason = f"{self._checklist.name} cannot be read: {error.strerror or error}"
        work = has_work(checklist)
        untold, open_ticks = await self._unreported(inbox)
        news, news_position = await self._new_news(inbox)
        if not self._watches and not untold and not news:
            if work:
                return await self._ask_unless_unchanged(inbox, instant, checklist, local, forced=forced)
            return TickWork(reason=reason, is_idle=is_idle)
        called = await self._called(inbox, checklist, local)
        told = [*untold, *called.told, *news]
        positions = {**(called.positions or {}), **news_position}
        if not told:
            is_idle = is_idle and not work and all(watch.due for watch in self._watches)
            return TickWork(reason=f"{NOTHING}: no watch has fired", positions=positions, is_idle=is_idle)
        told = list(dict.fromkeys(told))[-20:]
        ticks = {**open_ticks, tick_name(instant): told}
        positions[_REPORTED] = json.dumps(dict(list(ticks.items())[-20:]))
        return TickWork(
            question_text(local, checklist if work else "", told), positions=positions, watched=True
        )

    async def _ask_unless_unchanged(
        self, inbox: Inbox | None, instant: datetime, checklist: str, local: datetime, *, forced: bool
    ) -> TickWork:
        """Ask about a checklist unless unchanged since its last alert; failed ticks are made up for."""
        trace = digest(checklist, *due_items(checklist, local))
        last, kept, told = ((await inbox.position(_ASKED) or "" if inbox else "") + "   ").split(" ")[:3]
        at = parse_instant(last) if kept == trace else None
        known = at is not None and (bool(told) or await self._ticks.has_alerted(self.name, at))
        fresh = at is not None and timedelta(0) <= instant - at < self._again_after
        if (
            known
            and fresh
            and not forced
            and await self._ticks.has_answered(self.name, at or instant) is not False
        ):
            return TickWork(reason=f"{NOTHING}: {self._checklist.name} is as it was when I wrote about it")
        position = f"{tick_name(instant)} {trace} {'told' if known else ''}"
        return TickWork(question_text(local, checklist), positions={_ASKED: position})

    async def _unreported(self, inbox: Inbox | None) -> tuple[list[str], dict[str, list[str]]]:
        """
        Return reports of watches that nobody has received, because a change is seen only once.

        The first are those of ticks without an answer; the others, by tick name, of ticks that have not
        ended.
        """
        untold: list[str] = []
        open_ticks: dict[str, list[str]] = {}
        if inbox is None:
            return untold, open_ticks
        for name, texts in _reported_before(await inbox.position(_REPORTED)).items():
            instant = parse_instant(name)
            ended = True if instant is None else await self._ticks.has_answered(self.name, instant)
            if ended is None:
                open_ticks[name] = texts
            elif not ended:
                untold += texts
        return untold, open_ticks

    async def _new_news(self, inbox: Inbox | None) -> tuple[list[str], dict[str, str]]:
        """Return what others found since it was told last, and the position that says so."""
        found = await self._ticks.list_news()
        seen = json.loads(await inbox.position(NEWS) or "{}") if inbox and any(found.values()) else {}
        new = {name: [one for one in each if one[0] > seen.get(name, 0)] for name, each in found.items()}
        chosen = [name for name, each in new.items() if each][:10]
        numbers = {name: number for name, number in seen.items() if name in found}
        numbers |= {name: new[name][-1][0] for name in chosen}
        told = ["\n".join(text for _, text in new[name]) for name in chosen]
        return told, {NEWS: json.dumps(numbers)} if chosen else {}

    async def _called(self, inbox: Inbox | None, checklist: str, local: datetime) -> WatchRound:
        seen: dict[str, str | None] = {}
        looks = []
        for watch in self._watches:
            seen[watch.name] = None if inbox is None else await inbox.position(watch.name)
            look = await run_watch(watch, workspace=self._checklist.parent, checklist=checklist, now=local)
            looks.append((watch.name, look))
        return decide(looks, seen, self._clock.now(), again_after=self._again_after)

    def _report(self, inbox: Inbox, last: datetime) -> None:
        following = self.schedule.next_run(self._clock.now())
        next_tick = "" if following is None else tick_name(following)
        inbox.report(LinkState.UP, last_tick=tick_name(last), next_tick=next_tick)

    def _tick(self, instant: datetime, found: TickWork) -> InboundMessage:
        return tick_message(instant, found.text, name=self.name, account=self.account, watched=found.watched)

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Refuse messages; an answer that means "nothing to say" is dropped. See `Channel.deliver`."""
        if is_silence(message.text):
            return Receipt(provider_id=f"silent-{message.id}")
        raise DeliveryFailed("the heartbeat cannot receive messages; nobody would read them")

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        """Never asked, because of `Redelivery.SAME_KEY`."""
        return None

    async def typing(self, session: SessionKey, *, on: bool) -> None:
        """Do nothing: nobody watches."""

    async def preview(self, session: SessionKey, text: str) -> None:
        """Do nothing: nobody watches."""

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


def _reported_before(kept: str | None) -> dict[str, list[str]]:
    """Parse the reports of earlier ticks, by name; unreadable ones are left out."""
    try:
        ticks = json.loads(kept or "{}")
    except ValueError:
        return {}
    return {
        str(name): [str(text) for text in texts]
        for name, texts in (ticks.items() if isinstance(ticks, dict) else ())
        if isinstance(texts, list)
    }


def _load_checklist(path: Path) -> str:
    """Read a file of any size. Raises OSError if it is no readable regular text file."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"not a regular file: {path}")
        data = file.read(2_000_000)
    text = data.decode("utf-8", "replace")
    if "\0" in text or text.count("\N{REPLACEMENT CHARACTER}") > len(text) // 20 + 1:
        raise OSError(errno.EILSEQ, "it is not text", str(path))
    return text
