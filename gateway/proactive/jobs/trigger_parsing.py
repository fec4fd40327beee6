"""
Makes triggers of times as people and models write them. Pure, but for this machine's own time zone.
`time_grammar` reads the words; here they become instants on the wall clock of a zone. A model is good at
filling in forms and bad at sums, so it may say "in so many minutes" and a bare "09:00", and does not have to
know what day it is tomorrow.
"""

from __future__ import annotations

import calendar
import os
import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agent_core.language import _, gettext_noop, list_of, ngettext, show_time
from agent_core.text import one_line, time_zone
from agent_core.tools.web.urls import normalise_url
from gateway.proactive.jobs.time_grammar import read_when
from gateway.proactive.jobs.time_syntax import (
    Ambiguous,
    Calendar,
    Day,
    Every,
    Moments,
    NotATime,
    Span,
    TimeOfDay,
)
from gateway.proactive.jobs.time_words import NTH_NAMES, WEEK
from gateway.proactive.jobs.triggers import (
    OWN_PLACES,
    AddressWatch,
    Cron,
    Hook,
    Interval,
    Once,
    Timing,
    TriggerInvalid,
    checked_cron,
    next_after,
    parse_timing,
    shortest_gap,
    zone_of,
)
from gateway.system.terminal_text import spoken

_FIELDS = re.compile(
    r"(?P<minute>\d{1,2}) (?P<hours>\d{1,2}(?:,\d{1,2})*) "
    r"(?P<dom>\*|(?:\d{1,2}|L)(?:,(?:\d{1,2}|L))*) (?P<month>\*|\d{1,2}) "
    r"(?P<days>\*|1-5|[0-7](?:,[0-7])*|[0-7](?:#[1-5]|L))"
)
_UNITS = {"days": gettext_noop("days"), "weeks": gettext_noop("weeks"), "months": gettext_noop("months")}
_SLACK = timedelta(minutes=1)
_FURTHEST = timedelta(days=366 * 10)
_EARLY = 6
"""An hour before it, without am, pm and minutes in figures, is one of the afternoon."""


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """
    A request for a trigger; exactly one of the first five is set.

    ``at`` is any time of `time_grammar`, such as ``friday 6pm`` or ``every day 09:00``; ``hook`` the name of
    a webhook; ``zone`` an IANA name; ``watch`` the address of a feed, page or JSON document that is looked at
    that often (or ``file:PATH``, ``mail:FOLDER``), ``part`` words or a field of it; ``check_in``: what is new
    waits for the next check-in.
    """

    at: str = ""
    in_minutes: float | None = None
    every_minutes: float | None = None
    cron: str = ""
    hook: str = ""
    zone: str = ""
    watch: str = ""
    part: str = ""
    check_in: bool = False


def request_of(given: Mapping[str, Any]) -> TriggerRequest:
    """The request in the arguments of a tool. Raises `TriggerInvalid`: a value is of the wrong kind."""

    def number(name: str) -> float | None:
        value = given.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TriggerInvalid(_("'{name}' must be a number", name=name))
        try:
            return float(value)
        except OverflowError as error:
            raise TriggerInvalid(_("'{name}' is too large", name=name)) from error

    return TriggerRequest(
        at=str(given.get("at") or "").strip(),
        in_minutes=number("in_minutes"),
        every_minutes=number("every_minutes"),
        cron=str(given.get("cron") or "").strip(),
        zone=str(given.get("timezone") or "").strip(),
    )


def parse_request(request: TriggerRequest, now: datetime, *, zone: str, min_interval: timedelta) -> Timing:
    """Parse a request, by default in ``zone``, at least ``min_interval`` apart. Raises TimingInvalid."""
    said = [
        bool(request.at),
        request.in_minutes is not None,
        request.every_minutes is not None,
        bool(request.cron),
        bool(request.hook),
    ]
    if sum(said) != 1:
        raise TriggerInvalid(
            _("say when, with exactly one of at, in (in_minutes), every (every_minutes) or cron")
        )
    if request.hook:
        return parse_timing(f"hook {request.hook}")
    timing = _timing(request, now, request.zone or zone)
    gap = shortest_gap(timing, now)
    if gap is not None and gap < min_interval:
        raise TriggerInvalid(
            _("that is too often; every {min_interval} is the shortest", min_interval=spoken(min_interval))
        )
    return _watch(timing, request, now) if request.watch else timing


def _watch(timing: Timing, request: TriggerRequest, now: datetime) -> AddressWatch:
    """The trigger of a watch, whose first look is at once. Raises `TriggerInvalid`."""
    if not isinstance(timing, Interval):
        raise TriggerInvalid(_("say how often to look, such as 30m, 2h or 1d"))
    kind, _colon, path = request.watch.partition(":")
    try:
        address = f"{kind}:{quote(path)}" if kind in OWN_PLACES and path else normalise_url(request.watch)
    except ValueError as error:
        raise TriggerInvalid(_("this cannot be watched: {why}", why=_(str(error)))) from error
    part = one_line(request.part, 60)
    start = _whole(now + timedelta(seconds=1))
    return AddressWatch(timing.seconds, start, address, part, request.check_in)


def _timing(request: TriggerRequest, now: datetime, zone: str) -> Timing:
    if request.cron:
        timing = checked_cron(request.cron, zone)
        if next_after(timing, now) is None:
            raise TriggerInvalid(_("{cron} never occurs", cron=f"{request.cron!r}"))
        return timing
    if request.every_minutes is not None:
        seconds = round(_positive(request.every_minutes, "every_minutes") * 60)
        return Interval(max(seconds, 1), _whole(now + timedelta(seconds=seconds)))
    if request.in_minutes is not None:
        return Once(_whole(now + timedelta(minutes=_positive(request.in_minutes, "in_minutes"))))
    return timing_of(request.at, now, zone)


def timing_of(text: str, now: datetime, zone: str) -> Timing:
    """The trigger that a text means. Raises `TriggerInvalid`: it is no time, or it is over."""
    try:
        when = read_when(text)
    except Ambiguous as error:
        raise TriggerInvalid(str(error)) from error
    except NotATime as error:
        raise TriggerInvalid(
            _("{error}; write for example {example}", error=error, example=f"{error.example!r}")
        ) from error
    match when:
        case Span(seconds):
            return Once(_whole(now + timedelta(minutes=_positive(seconds / 60, text))))
        case Every(seconds):
            whole = max(round(_positive(seconds / 60, text) * 60), 1)
            return Interval(whole, _whole(now + timedelta(seconds=whole)))
        case Calendar():
            return _repeated(when, now, when.zone or zone)
        case _:
            return Once(*_instants(when, text, now, zone_of(when.zone or zone)))


def _repeated(when: Calendar, now: datetime, zone: str) -> Cron:
    """Raise `TriggerInvalid`: midnight of a certain day is the beginning of another one."""
    on_some_days = when.weekdays or when.unit == "months" or when.count > 1
    if on_some_days and any(clock.hour == 24 for clock in when.clocks):
        raise TriggerInvalid(_("midnight is at the end of a day; write 00:00 with the day that begins then"))
    in_months = when.unit == "months"
    if in_months and not 1 <= when.count <= 120:
        raise TriggerInvalid(_("the time between two of them must be more than 0, and less than ten years"))
    today = now.astimezone(zone_of(zone))
    is_from_today = in_months and not (when.days_of_month or when.weekdays)
    hours: dict[int, list[int]] = {}
    for hour, minute in sorted((_by_day(clock) % 24, clock.minute) for clock in when.clocks):
        hours.setdefault(minute, []).append(hour)
    days = _days_of_cron(replace(when, days_of_month=(today.day,)) if is_from_today else when)
    expressions = (
        f"{minute} {','.join(map(str, each))} {behind}" for minute, each in hours.items() for behind in days
    )
    timing = checked_cron(" | ".join(expressions), zone)
    if when.count == 1:
        return timing
    since = (next_after(timing, now) or now).astimezone(today.tzinfo).date()
    if is_from_today:
        since = _months_later(today.replace(day=1), when.count).date()
    elif when.unit == "weeks":
        since -= timedelta(days=since.weekday())
    return replace(timing, count=when.count, unit=when.unit, since=since)


def _days_of_cron(when: Calendar) -> list[str]:
    """The last three fields of each expression; a day that a month has not is the last that it has."""
    nth = {0: "", -1: "L"}.get(when.nth, f"#{when.nth}")
    days = ",".join(f"{(day + 1) % 7}{nth}" for day in when.weekdays) or "*"
    if when.weekdays == tuple(range(5)):
        days = "1-5"
    if when.month:
        (dom,) = when.days_of_month
        return [f"{'L' if (when.month, dom) == (2, 29) else dom} {when.month} *"]
    doms = sorted(set(when.days_of_month))
    said = ",".join("L" if dom == 31 else str(dom) for dom in doms) or "*"
    return [f"{said} * {days}", *(["L 2 *"] if {29, 30}.intersection(doms) and 31 not in doms else [])]


def _instants(when: Moments, text: str, now: datetime, zone: tzinfo) -> list[datetime]:
    """Raise `TriggerInvalid`: one of them is over, or in no calendar, or ten years away."""
    local = now.astimezone(zone)
    try:
        found = [
            _placed(one, zone) if one.tzinfo is None else one.astimezone(UTC) for one in when.instants
        ] or [_next_at(when.day, clock, local, zone) for clock in when.clocks]
    except (ValueError, OverflowError) as error:
        if isinstance(error, TriggerInvalid):
            raise
        raise TriggerInvalid(_("{text} is no day of the calendar", text=f"{text!r}")) from error
    if when.is_vague and min(found) < now:
        found = [now + timedelta(hours=1)]
    if min(found) < now - _SLACK:
        over = min(found).astimezone(zone)
        raise TriggerInvalid(
            _(
                "{over} is in the past; it is {local} now",
                over=show_time(over, gettext_noop("%Y-%m-%d %H:%M")),
                local=show_time(local, gettext_noop("%Y-%m-%d %H:%M")),
            )
        )
    if max(found) > now + _FURTHEST:
        raise TriggerInvalid(_("{text} is too far in the future", text=text))
    return sorted({max(_whole(one), _whole(now + timedelta(seconds=1))) for one in found})


def _by_day(clock: TimeOfDay) -> int:
    """The hour on a certain day: "friday at 3" is in the afternoon, "friday at 8" in the morning."""
    return clock.hour + 12 if clock.is_spoken and clock.hour < _EARLY else clock.hour


def _next_at(day: Day | None, clock: TimeOfDay, local: datetime, zone: tzinfo) -> datetime:
    """The instant of a time of day on a day; without one, the next time that the clock shows it."""
    if not clock.is_spoken or (day is not None and day.offset != 0):
        return _instant_at(day, _by_day(clock), clock.minute, local, zone)
    # "at 6", which a person says of the next six o'clock at which people are awake
    hours = [hour for hour in (clock.hour, clock.hour + 12) if hour >= _EARLY]
    found = [_instant_at(day, hour, clock.minute, local, zone) for hour in hours]
    return min((one for one in found if one > local), default=found[-1])


def _instant_at(day: Day | None, hour: int, minute: int, local: datetime, zone: tzinfo) -> datetime:
    later = timedelta(days=hour // 24)
    clock = hour % 24, minute
    wall = datetime(local.year, local.month, local.day, *clock)  # noqa: DTZ001 - the wall's
    if day is None:
        later = timedelta(days=_placed(wall, zone) <= local)
    elif day.offset is not None:
        later += timedelta(days=day.offset)
    elif day.months:
        wall = _months_later(wall, day.months)
    elif day.date is not None:
        wall = _next_date(*day.date, wall, lambda wall: _placed(wall + later, zone) > local)
        if day.weekday not in (None, wall.weekday()):
            raise TriggerInvalid(
                _(
                    "{wall} is a {week}",
                    wall=show_time(wall, gettext_noop("%Y-%m-%d")),
                    week=_(WEEK[wall.weekday()]),
                )
            )
    else:
        later += timedelta(days=_days_to(day, wall))
        if not later and _placed(wall, zone) <= local:
            later = timedelta(days=7)
    return _placed(wall + later, zone)


def _next_date(
    year: int | None, month: int | None, dom: int, today: datetime, is_ahead: Callable[[datetime], bool]
) -> datetime:
    """The day with this date; what is None is that of the next one. Raises ValueError: there is none."""
    if month is None:
        months = (_months_later(today.replace(day=1), more) for more in range(4))  # no two in a row are short
        long_enough = (each for each in months if dom <= monthrange(each.year, each.month)[1])
        return next(each for each in (one.replace(day=dom) for one in long_enough) if is_ahead(each))
    wall = today.replace(year=year or today.year, month=month, day=dom)
    return wall if year or is_ahead(wall) else wall.replace(year=today.year + 1)


def _months_later(wall: datetime, months: int) -> datetime:
    """The same day of a later month, or its last one if it is shorter."""
    years, month = divmod(wall.month - 1 + months, 12)
    year = wall.year + years
    return wall.replace(year=year, month=month + 1, day=min(wall.day, monthrange(year, month + 1)[1]))


def _days_to(day: Day, today: datetime) -> int:
    """Days until a weekday. Raises `TriggerInvalid`: it can be that of this week or that of the next one."""
    coming = ((day.weekday or 0) - today.weekday()) % 7
    of_next_week = (day.weekday or 0) - today.weekday() + 7
    if not day.which:
        return coming
    if day.which == "next" and coming not in (0, of_next_week):
        dates = (today + timedelta(days=days) for days in (coming, of_next_week))
        one, two = (show_time(date, gettext_noop("%Y-%m-%d")) for date in dates)
        name = _(WEEK[day.weekday or 0])
        raise TriggerInvalid(
            _(
                "'next {name}' can be {one} or {two}; write the date that you mean",
                name=name,
                one=one,
                two=two,
            )
        )
    return of_next_week


def _placed(wall: datetime, zone: tzinfo) -> datetime:
    """Return the instant of a wall time: of two the first; a skipped one moves with the clocks."""
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def _whole(instant: datetime) -> datetime:
    """Round up to whole seconds."""
    whole = instant.astimezone(UTC).replace(microsecond=0)
    return whole if whole == instant else whole + timedelta(seconds=1)


def _positive(number: float, name: str) -> float:
    if not 0 < number <= _FURTHEST.total_seconds() / 60:
        raise TriggerInvalid(_("'{name}' must be more than 0, and less than ten years", name=name))
    return number


_EVERY_UNIT = {
    60: gettext_noop("every minute"),
    3600: gettext_noop("every hour"),
    86_400: gettext_noop("every day"),
}


def format_timing(timing: Timing, zone: str) -> str:
    """A timing in words, for people and models."""
    match timing:
        case Once():
            pattern = gettext_noop("%a %Y-%m-%d %H:%M %Z")
            times = list_of([show_time(one.astimezone(zone_of(zone)), pattern) for one in timing.instants])
            return _("once, on {time}" if len(timing.instants) == 1 else "on {time}", time=times)
        case Hook(name):
            return _("when the webhook {name} is called", name=name)
        case AddressWatch(seconds, _start):
            part = f" ({timing.part!r})" if timing.part else ""
            every = _every(seconds) + (_(", for the next check-in") if timing.for_check_in else "")
            return _("looks at {address}{part} {every}", address=timing.shown_address, part=part, every=every)
        case Interval(seconds, _):
            return _every(seconds)
        case _:
            return f"{_in_words(timing)} ({timing.zone})"


def _every(seconds: int) -> str:
    every = _EVERY_UNIT.get(seconds)
    return _(every) if every else _("every {span}", span=spoken(timedelta(seconds=seconds)))


def _in_words(timing: Cron) -> str:
    """``every 2 weeks on Monday at 09:00``; an expression of another form as it is."""
    found = [_FIELDS.fullmatch(each) for each in timing.expressions]
    fields = [each for each in found if each is not None]
    if len(fields) == len(found) and any(
        {"29", "30"}.intersection(each["dom"].split(",")) for each in fields
    ):
        # In February it is the last day instead.
        fields = [each for each in fields if each.group("dom", "month") != ("L", "2")]
        found = [*fields]
    if len(fields) < len(found) or len({each.group("dom", "month", "days") for each in fields}) > 1:
        return _("at {times}", times=timing.expression)
    times = sorted(
        f"{int(hour):02}:{int(each['minute']):02}" for each in fields for hour in each["hours"].split(",")
    )
    dom, month, days = fields[0].group("dom", "month", "days")
    if (dom != "*" and days != "*") or (month != "*" and (dom == "*" or not 1 <= int(month) <= 12)):
        return _("at {times}", times=timing.expression)
    days_in_words = _days_in_words(timing, dom, month, days)
    return _("{days} at {times}", days=days_in_words, times=list_of(times))


def _days_in_words(timing: Cron, dom: str, month: str, days: str) -> str:
    count, unit = timing.count, timing.unit
    if dom != "*" and unit == "months" and count % 12 == 0:
        count, month = count // 12, str(timing.since.month)
    if month != "*":
        name = _(calendar.month_name[int(month)])
        if dom == "L":
            return ngettext(
                "every year on the last day of {month}",
                "every {n} years on the last day of {month}",
                count,
                month=name,
            )
        return ngettext(
            "every year on {day} {month}", "every {n} years on {day} {month}", count, day=dom, month=name
        )
    named = {"*": gettext_noop("day"), "1-5": gettext_noop("weekday")}.get(days)
    named_days = dict.fromkeys(_(WEEK[(int(day[0]) - 1) % 7]) for day in days.split(",") if not named)
    which = _(named) if named else list_of([*named_days])
    last = _("the last day")
    in_month = [last if day == "L" else _("day {day}", day=day) for day in dom.split(",") if day != "*"]
    if (nth := days[1:].removeprefix("#")) and days[1] in "#L":
        ordinal = _(NTH_NAMES[-1 if nth == "L" else int(nth)])
        in_month = [_("the {ordinal} {weekday}", ordinal=ordinal, weekday=which)]
    on = list_of(in_month)
    if count > 1:
        on = on or (which if days != "*" else "")
        on = _(" on {day}", day=on) if on else ""
        return _("every {n} {unit}{on}", n=count, unit=_(_UNITS[unit]), on=on)
    return _("on {day} of every month", day=on) if on else _("every {day}", day=which)


def zone_name(*names: str) -> str:
    """The first of the names that says something; for ``local`` that of this machine."""
    named = next((name for name in names if name), "local")
    return local_zone_name() if named == "local" else named


def local_zone_name() -> str:
    """The name of this machine's zone in the IANA database; UTC if it cannot be told."""
    candidates = [os.environ.get("TZ", "").removeprefix(":")]
    try:
        parts = Path("/etc/localtime").resolve().parts
        if "zoneinfo" in parts:
            candidates.append("/".join(parts[parts.index("zoneinfo") + 1 :]))
        candidates.append(Path("/etc/timezone").read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        pass  # this machine keeps it elsewhere
    for name in candidates:
        try:
            if name:
                return time_zone(name).key
        except ValueError:
            continue
    return "UTC"
