"""
Triggers: when a job is due. Pure: the time is an argument, and only the zone database is looked up.

A timing is kept as a text that people can read:

=============================================  =========================================================
``at 2026-11-22T08:00:00Z``                    once, at this instant; several with commas between
``every 3600 from 2026-11-22T08:00:00Z``       each so many seconds, counted from there; summer time moves
                                               nothing
``cron 0 9 * * 1-5 in Europe/Berlin``          when a clock on the wall there shows it; several with ``|``
                                               between
``hook grafana``                               whenever the webhook of this name is called
``watch 3600 from 2026-11-22T08:00:00Z of …``  each so many seconds a feed, page, file or mailbox folder, or
                                               a part of it, is looked at
``cron … in … each 2 weeks from 2026-11-30``   only on these of its days: in each second week, on each second
                                               day or in each second month, counted from there
=============================================  =========================================================

The scheduled instant is the identity of a run. Of all instants that were missed the newest runs, once.

Summer time, for cron: an expression with a fixed hour and minute runs once a day, whatever the clocks do. A
time that a change skips runs at the first moment that exists after it, a time that occurs twice runs at its
first occurrence. An expression with ``*`` or ``*/n`` in hour or minute follows the clock on the wall: the
hour that occurs twice is run through twice, the skipped one not at all. That is what Debian's cron does; the
library ``cronsim`` computes it. Its results are made to grow strictly here, because it does not promise that
for a start in the middle of an hour that occurs twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from heapq import merge
from itertools import islice, pairwise
from urllib.parse import quote, unquote
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from agent_core.text import time_zone

LATEST_TIME = datetime(2200, 1, 1, tzinfo=UTC)
"""No instant is later, and a clock that shows a later time is wrong."""
_MAX_EXPRESSION, _MAX_ZONE = 200, 100
_SPANS = (timedelta(hours=1), timedelta(days=2), timedelta(days=40), timedelta(days=400))
_LONGEST = timedelta(days=3000)
_HOOK = re.compile(r"hook ([a-z0-9][a-z0-9-]{0,39})", re.ASCII)
_EVERY = re.compile(r"every (\d{1,10}) from (\S+)", re.ASCII)
_WATCH = re.compile(
    r"watch (\d{1,10}) from (\S+) of (\S{1,4000})(?: part (\S{1,1000}))?( for check-in)?", re.ASCII
)
OWN_PLACES = ("file", "mail")
"""The kinds of places of the owner's own that can be watched."""
_CRON = re.compile(
    rf"cron (.{{1,{_MAX_EXPRESSION}}}?) in (\S{{1,{_MAX_ZONE}}})"
    r"(?: each (\d{1,4}) (days|weeks|months) from (\d{4}-\d\d-\d\d))?",
    re.ASCII,
)
_MONDAY = date(1970, 1, 5)


class TriggerInvalid(ValueError):
    """This is not a time at which a job can run."""


@dataclass(frozen=True, slots=True)
class Once:
    """Once at each of some instants, which rise."""

    instants: tuple[datetime, ...]

    def __init__(self, *instants: datetime) -> None:
        object.__setattr__(self, "instants", instants)

    def __str__(self) -> str:
        return f"at {', '.join(map(_text, self.instants))}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so many seconds, counted from ``start``, the first instant."""

    seconds: int
    start: datetime

    def __str__(self) -> str:
        return f"every {self.seconds} from {_text(self.start)}"


@dataclass(frozen=True, slots=True)
class Cron:
    """
    Five-field cron expressions, joined by ``|``, on the wall clock of an IANA zone.

    With a ``count`` above 1 only each such day, week or month from ``since`` counts, as ``unit`` says; weeks
    begin on Monday.
    """

    expression: str
    zone: str
    count: int = 1
    unit: str = "days"
    since: date = _MONDAY

    def __str__(self) -> str:
        each = f" each {self.count} {self.unit} from {self.since}"
        return f"cron {self.expression} in {self.zone}{each if self.count > 1 else ''}"

    @property
    def expressions(self) -> list[str]:
        """The single ones."""
        return self.expression.split(" | ")

    def counts(self, day: date) -> bool:
        """Return True if it runs in the week or month of this day, or on this day."""
        if self.unit == "months":
            months = (day.year - self.since.year) * 12 + day.month - self.since.month
            return months >= 0 and months % self.count == 0
        days = 7 if self.unit == "weeks" else 1
        return (day - self.since).days % (self.count * days) < days


@dataclass(frozen=True, slots=True)
class Hook:
    """Fires when the webhook of this name is called; never by the clock."""

    name: str

    def __str__(self) -> str:
        return f"hook {self.name}"


@dataclass(frozen=True, slots=True)
class AddressWatch(Interval):
    """
    Every so many seconds a feed, page or JSON document at an address, or a part of it, is looked at.

    The address may also be ``file:PATH``, a file or folder of the workspace, or ``mail:FOLDER``, a folder of
    a mailbox, quoted as in URLs. ``for_check_in``: what is new waits for the next check-in.
    """

    address: str = ""
    part: str = ""
    for_check_in: bool = False

    @property
    def own_place(self) -> tuple[str, str]:
        """``file`` or ``mail`` with its path: what is the owner's own. Of the web both are empty."""
        kind, _, path = self.address.partition(":")
        return (kind, unquote(path)) if kind in OWN_PLACES else ("", "")

    @property
    def is_owners(self) -> bool:
        """Return True if it is for the owner alone."""
        return self.for_check_in or bool(self.own_place[0])

    @property
    def shown_address(self) -> str:
        """The address as people write it."""
        return unquote(self.address) if self.own_place[0] else self.address

    def __str__(self) -> str:
        part = f" part {quote(self.part, safe='')}" if self.part else ""
        check_in = " for check-in" if self.for_check_in else ""
        return f"watch {self.seconds} from {_text(self.start)} of {self.address}{part}{check_in}"


Timing = Once | Interval | Cron | Hook


def parse_timing(text: str) -> Timing:
    """Read what ``str()`` wrote. Raises `TriggerInvalid`: it is no timing, or one that never comes."""
    if text.startswith("at "):
        return Once(*map(_instant, text[3:].split(", ")))
    if (hook := _HOOK.fullmatch(text)) is not None:
        return Hook(hook[1])
    if (every := _EVERY.fullmatch(text) or _WATCH.fullmatch(text)) is not None:
        seconds, start = int(every[1]), _instant(every[2])
        if seconds < 1:
            raise TriggerInvalid("an interval must be at least one second")
        if every.re is _EVERY:
            return Interval(seconds, start)
        return AddressWatch(seconds, start, every[3], unquote(every[4] or ""), bool(every[5]))
    if (cron := _CRON.fullmatch(text)) is not None:
        timing = checked_cron(cron[1], cron[2])
        if cron[3] is None:
            return timing
        since = _instant(f"{cron[5]}T00:00:00Z").date()
        return replace(timing, count=max(int(cron[3]), 1), unit=cron[4], since=since)
    raise TriggerInvalid(f"not a trigger: {text!r}")


def checked_cron(expression: str, zone: str) -> Cron:
    """Return a valid cron trigger. Raises TimingInvalid, also if it never comes."""
    fields = " ".join(expression.split()).replace("?", "*")  # of Quartz: no matter which
    if any(len(each.split(" ")) != 5 for each in fields.split(" | ")):
        raise TriggerInvalid(
            f"a cron expression has five fields (minute hour day month weekday), not {expression!r}"
        )
    if len(fields) > _MAX_EXPRESSION or len(zone) > _MAX_ZONE:
        raise TriggerInvalid(f"a cron expression may have {_MAX_EXPRESSION} characters, not {len(fields)}")
    zone = zone_of(zone).key
    for each in fields.split(" | "):
        try:
            first = next(CronSim(each, datetime(2026, 1, 1)), None)  # noqa: DTZ001 - without a zone: is there any?
        except CronSimError as error:
            raise TriggerInvalid(f"{each!r} is not a cron expression: {error}") from error
        if first is None:
            raise TriggerInvalid(f"{each!r} never occurs")
    return Cron(fields, zone)


def next_after(timing: Timing, after: datetime) -> datetime | None:
    """The first scheduled instant after ``after``, in UTC; None if there is none any more."""
    match timing:
        case Once():
            return next((instant for instant in timing.instants if instant > after), None)
        case Interval(seconds, start):
            if after < start:
                return start
            interval = timedelta(seconds=seconds)
            return _sane(start + ((after - start) // interval + 1) * interval)
        case Cron():
            return next(_instants(timing, after), None)
        case Hook():
            return None


def newest_due(timing: Timing, after: datetime | None, now: datetime) -> datetime | None:
    """Return the newest scheduled instant between ``after`` and ``now``; earlier ones merge into it."""
    if after is not None and after >= now:
        return None
    match timing:
        case Once():
            due = [one for one in timing.instants if one <= now and (after is None or one > after)]
            return max(due, default=None)
        case Interval(seconds, start):
            if now < start:
                return None
            interval = timedelta(seconds=seconds)
            newest = start + (now - start) // interval * interval
            return newest if after is None or newest > after else None
        case Cron():
            return _newest_of_cron(timing, after, now)
        case Hook():
            return None


def _newest_of_cron(timing: Cron, after: datetime | None, now: datetime) -> datetime | None:
    """Look back further and further, so that a month of missed minutes is not counted one by one."""
    earliest = now - _LONGEST if after is None else after
    for span in (*_SPANS, now - earliest):
        begin = max(now - span, earliest)
        newest = None
        for instant in _instants(timing, begin):
            if instant > now:
                break
            newest = instant
        if newest is not None or begin == earliest:
            return newest
    return None


def shortest_gap(timing: Timing, now: datetime) -> timedelta | None:
    """The shortest time between two of the next runs; None if it runs once."""
    match timing:
        case Once() | Hook():
            return None
        case Interval(seconds, _):
            return timedelta(seconds=seconds)
        case Cron():
            coming = list(islice(_instants(timing, now), 400))
            return min((later - earlier for earlier, later in pairwise(coming)), default=None)


def count_within(timing: Timing, after: datetime, span: timedelta, *, at_most: int) -> int:
    """The number of runs within ``span`` after ``after``, counted up to ``at_most``."""
    count, instant = 0, next_after(timing, after)
    while instant is not None and instant <= after + span and count < at_most:
        count += 1
        instant = next_after(timing, instant)
    return count


def _instants(timing: Cron, after: datetime) -> Iterator[datetime]:
    last, zone = after, zone_of(timing.zone)
    # A wall time can exist twice; from a little before it the library counts right.
    begin = (after - timedelta(hours=3)).astimezone(zone)
    runs = ((local.astimezone(UTC) for local in CronSim(each, begin)) for each in timing.expressions)
    for instant in merge(*runs):
        if instant > LATEST_TIME:
            return
        if instant > last and timing.counts(instant.astimezone(zone).date()):
            last = instant
            yield instant


def _sane(instant: datetime) -> datetime | None:
    return instant if instant < LATEST_TIME else None


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name; `TriggerInvalid` if there is none."""
    try:
        return time_zone(name)
    except ValueError as error:
        raise TriggerInvalid(str(error)) from error


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise TriggerInvalid(f"no instant: {text!r}") from error
    if instant.tzinfo is None:
        raise TriggerInvalid(f"an instant without a zone: {text!r}")
    return instant.astimezone(UTC)
