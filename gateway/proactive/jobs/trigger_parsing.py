"""
Parses times as people and models write them into triggers. Pure, but for this machine's own time zone.

A model is good at filling in forms and bad at sums, so it may say "in so many minutes" and a bare "09:00",
and does not have to know what day it is tomorrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from gateway.proactive.jobs.triggers import (
    Interval,
    Once,
    Timing,
    TriggerInvalid,
    checked_cron,
    next_after,
    shortest_gap,
    zone_of,
)
from gateway.system.durations import spoken

_WEEK = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_WEEKDAYS = {day.lower(): number for number, day in enumerate((*_WEEK[1:], _WEEK[0]))}
_CLOCK = re.compile(
    rf"(?:(?P<day>today|tomorrow|{'|'.join(_WEEKDAYS)})[ T,]*(?:at )?)?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::\d{2})?",
    re.IGNORECASE,
)
_SPAN = re.compile(
    r"(\d{1,6}(?:\.\d{1,3})?)\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)?", re.IGNORECASE
)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_AT_A_TIME = re.compile(r"(?P<minute>\d{1,2}) (?P<hour>\d{1,2}) \* \* (?P<day>\*|1-5|[0-7])")
_DAYS = {"*": "day", "1-5": "weekday"}
_SLACK = timedelta(minutes=1)
_FURTHEST = timedelta(days=366 * 10)


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """
    A request for a trigger; exactly one of the first four is set.

    Args:
        at: A time: ``2026-11-22 09:00`` (with an offset or without), ``09:00``, ``tomorrow 09:00``,
            ``friday 09:00``.
        zone: Whose wall clock; a name of the IANA database.
    """

    at: str = ""
    in_minutes: float | None = None
    every_minutes: float | None = None
    cron: str = ""
    zone: str = ""


def request_of(given: Mapping[str, Any]) -> TriggerRequest:
    """The request in the arguments of a tool. Raises `TimingInvalid`: a value is of the wrong kind."""

    def number(name: str) -> float | None:
        value = given.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TriggerInvalid(f"'{name}' must be a number")
        try:
            return float(value)
        except OverflowError as error:
            raise TriggerInvalid(f"'{name}' is too large") from error

    return TriggerRequest(
        at=str(given.get("at") or "").strip(),
        in_minutes=number("in_minutes"),
        every_minutes=number("every_minutes"),
        cron=str(given.get("cron") or "").strip(),
        zone=str(given.get("timezone") or "").strip(),
    )


def parse_request(request: TriggerRequest, now: datetime, *, zone: str, min_interval: timedelta) -> Timing:
    """
    Parse a request into a trigger.

    Args:
        zone: The zone that is meant if none is said.
        min_interval: Repeated jobs may not come more often.

    Raises:
        TimingInvalid: It is no time, it is over, or it is too often; the text says what to do instead.
    """
    said = [
        bool(request.at),
        request.in_minutes is not None,
        request.every_minutes is not None,
        bool(request.cron),
    ]
    if sum(said) != 1:
        raise TriggerInvalid(
            "say when, with exactly one of at, in (in_minutes), every (every_minutes) or cron"
        )
    timing = _timing(request, now, request.zone or zone)
    gap = shortest_gap(timing, now)
    if gap is not None and gap < min_interval:
        raise TriggerInvalid(f"that is too often: {spoken(min_interval)} is the shortest interval")
    return timing


def _timing(request: TriggerRequest, now: datetime, zone: str) -> Timing:
    if request.cron:
        timing = checked_cron(request.cron, zone)
        if next_after(timing, now) is None:
            raise TriggerInvalid(f"{request.cron!r} never occurs")
        return timing
    if request.every_minutes is not None:
        seconds = round(_positive(request.every_minutes, "every_minutes") * 60)
        return Interval(max(seconds, 1), _whole(now + timedelta(seconds=seconds)))
    if request.in_minutes is not None:
        return Once(_whole(now + timedelta(minutes=_positive(request.in_minutes, "in_minutes"))))
    return Once(_moment(request.at, now, zone_of(zone)))


def _moment(text: str, now: datetime, zone: tzinfo) -> datetime:
    local = now.astimezone(zone)
    clock = _CLOCK.fullmatch(text)
    try:
        if clock is not None:
            wall = datetime(local.year, local.month, local.day, int(clock["hour"]), int(clock["minute"]))  # noqa: DTZ001 - the wall's
            day = (clock["day"] or "").lower()
            if day == "tomorrow" or (not day and _placed(wall, zone) <= now):
                wall += timedelta(days=1)
            elif day in _WEEKDAYS:
                wall += timedelta(days=(_WEEKDAYS[day] - wall.weekday()) % 7)
                if _placed(wall, zone) <= now:
                    wall += timedelta(days=7)
            moment = _placed(wall, zone)
        else:
            given = datetime.fromisoformat(text)
            if "T" not in text.upper() and ":" not in text:
                raise TriggerInvalid(f"{text!r} has no time of day; write for example '{text} 09:00'")
            moment = _placed(given, zone) if given.tzinfo is None else given.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        if isinstance(error, TriggerInvalid):
            raise
        raise TriggerInvalid(
            f"{text!r} is not a time; write '2026-11-22 09:00', '09:00', 'tomorrow 09:00' or 'friday 09:00'"
        ) from error
    if moment < now - _SLACK:
        raise TriggerInvalid(f"{text} is in the past; it is {local:%Y-%m-%d %H:%M} now")
    if moment > now + _FURTHEST:
        raise TriggerInvalid(f"{text} is too far in the future")
    return max(_whole(moment), _whole(now + timedelta(seconds=1)))


def _placed(wall: datetime, zone: tzinfo) -> datetime:
    """
    The instant of a wall time. One that occurs twice is the first; one that is skipped is as much later as
    the clocks are moved.
    """
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def _whole(instant: datetime) -> datetime:
    """In whole seconds, not earlier."""
    whole = instant.astimezone(UTC).replace(microsecond=0)
    return whole if whole == instant else whole + timedelta(seconds=1)


def _positive(number: float, name: str) -> float:
    if not 0 < number <= _FURTHEST.total_seconds() / 60:
        raise TriggerInvalid(f"'{name}' must be more than 0, and less than ten years")
    return number


def span_of(text: str) -> float:
    """Minutes from ``90``, ``90m``, ``1.5h``, ``2 days``. Raises `TimingInvalid`: it is no span."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise TriggerInvalid(f"{text!r} is not a duration; write 30m, 2h or 1d")
    return float(found[1]) * _UNITS[(found[2] or "m")[0].casefold()] / 60


def format_timing(timing: Timing, zone: str) -> str:
    """A timing in words, for people and models."""
    match timing:
        case Once(instant):
            return f"once, on {instant.astimezone(zone_of(zone)):%a %Y-%m-%d %H:%M %Z}"
        case Interval(seconds, _):
            return f"every {spoken(timedelta(seconds=seconds))}"
        case _:
            return f"{_in_words(timing.expression)} ({timing.zone})"


def _in_words(expression: str) -> str:
    """``every Monday at 09:00``; an expression of another form as it is."""
    found = _AT_A_TIME.fullmatch(expression)
    if found is None:
        return f"at {expression}"
    day = _DAYS.get(found["day"]) or _WEEK[int(found["day"]) % 7]
    return f"every {day} at {int(found['hour']):02}:{int(found['minute']):02}"


def zone_named(*names: str) -> str:
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
                return ZoneInfo(name).key
        except (KeyError, ValueError, OSError):
            continue
    return "UTC"
