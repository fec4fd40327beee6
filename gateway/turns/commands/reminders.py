"""``!remind``: reads times as people write them, and makes, lists and removes reminders."""

from __future__ import annotations

import re

from agent_core.messages import EVERYBODY, MENTIONS, Audience
from agent_core.text import one_line
from gateway.proactive.jobs.service import JobService, Place
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, span_of
from gateway.proactive.jobs.triggers import TriggerInvalid
from gateway.queue.errors import TooManyJobs
from gateway.queue.model import JobKind
from gateway.turns.approvals.text import line
from gateway.turns.commands.asked import Asked

USE = (
    "Write `!remind in 2h TEXT`, `!remind 18:30 TEXT`, `!remind tomorrow 09:00 TEXT`, `!remind friday "
    "9:00 TEXT`, `!remind 2026-12-24 18:00 TEXT` or `!remind every day 09:00 TEXT`; `!remind remove ID` "
    "removes one. In a room, `!remind us 18:30 TEXT` and `!remind NAME 18:30 TEXT` notify others. Nothing "
    "was done."
)
_UNIT = r"(?:s|sec|seconds?|m|min|mins|minutes?|h|hours?|d|days?|w|weeks?)"
_SPAN = re.compile(
    rf"(?P<how>in|every)\s+(?P<count>\d{{1,6}}(?:\.\d{{1,3}})?\s*)?(?P<unit>{_UNIT})\b[\s:,]*(?P<text>.*)",
    re.IGNORECASE | re.DOTALL,
)
_CLOCK = (
    r"(?P<sure>at\s+)?(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?(?![\d:])(?:\s?(?P<half>[ap]m)\b)?"
    r"(?!\w)[\s:,]*(?P<text>.*)"
)
_WEEK = "sunday|monday|tuesday|wednesday|thursday|friday|saturday"
_ONCE = re.compile(
    rf"(?:on\s+)?(?:(?P<day>today|tomorrow|{_WEEK}|\d{{4}}-\d{{2}}-\d{{2}})[ ,T]{{1,2}})?{_CLOCK}",
    re.IGNORECASE | re.DOTALL,
)
_DAYS = {"day": "*", "weekday": "1-5"} | {day: str(number) for number, day in enumerate(_WEEK.split("|"))}
_EACH = re.compile(rf"every\s+(?P<day>{'|'.join(_DAYS)})[ ,]{{1,2}}{_CLOCK}", re.IGNORECASE | re.DOTALL)
_BEGINS_WITH_TIME = re.compile(r"(?:at\s+)?\d{1,2}(?::\d{2}|\s?[ap]m\b)|at\s+\d", re.IGNORECASE)
_FILLING = re.compile(r"(?:to|that)\s+", re.IGNORECASE)
_NOT_PROVEN = "Your address is not verified, so you cannot schedule anything. Nothing was done."
_LONGEST = 4000
_MOST_WORDS = 20
_REMOVES = frozenset({"remove", "stop", "delete"})


def reminder_of(argument: str) -> tuple[TriggerRequest, str] | None:
    """The time and the text of a reminder; None if it cannot be read."""
    said = argument.strip()
    if said[:3].lower() == "me ":
        said = said[3:].lstrip()
    if (each := _EACH.fullmatch(said)) and (clock := _clock_of(each)):
        found, (hour, minute) = each, clock
        request = TriggerRequest(cron=f"{minute} {hour} * * {_DAYS[each['day'].lower()]}")
    elif span := _SPAN.fullmatch(said):
        found, unit = span, span["unit"].lower().replace("mins", "min")
        if unit[0] in "dw" and _BEGINS_WITH_TIME.match(span["text"]):
            return None  # "in 2 days 09:00 …" is no span
        minutes = span_of(f"{(span['count'] or '1').strip()} {unit}")
        every = span["how"].lower() == "every"
        request = TriggerRequest(every_minutes=minutes) if every else TriggerRequest(in_minutes=minutes)
    elif (once := _ONCE.fullmatch(said)) and (clock := _clock_of(once)):
        found, (hour, minute) = once, clock
        day = (once["day"] or "").lower()
        request = TriggerRequest(at=f"{day} {hour:02}:{minute:02}".strip())
    else:
        return None
    text = found["text"].strip()
    text = _FILLING.sub("", text, count=1) or text
    return (request, text) if text else None


def _clock_of(found: re.Match[str]) -> tuple[int, int] | None:
    """Hour and minute; None for a number that need not be a time, or is none."""
    hour, half = int(found["hour"]), (found["half"] or "").lower()
    if not (found["sure"] or found["minute"] or half):
        return None
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    minute = int(found["minute"] or 0)
    return (hour, minute) if hour < 24 and minute < 60 else None


async def about_reminders(jobs: JobService, place: Place, asked: Asked) -> str:
    """
    Make, list or remove a reminder; returns the answer.

    Raises:
        StoreUnavailable: Not now; it may be done again.
    """
    argument = asked.command.argument.strip()
    if not jobs.enabled:
        return "My owner has switched off scheduling here. Nothing was done."
    if not argument:
        return await _listed(jobs, place)
    what, _, wanted = argument.partition(" ")
    if what.lower() in _REMOVES and wanted.strip():
        return await _remove(jobs, place, wanted.strip().strip("`").lower())
    whom, read = "", reminder_of(argument)
    if read is None and place.audience is Audience.GROUP:
        whom, read = _of_others(argument)
    if read is None or len(read[1]) > _LONGEST:
        return USE
    if not asked.message.sender.verified:
        return _NOT_PROVEN
    return await _add(jobs, place, *read, key=asked.turn.id, whom=whom)


def _of_others(argument: str) -> tuple[str, tuple[TriggerRequest, str] | None]:
    """The people named in front of the time of a reminder, and the rest; None if it cannot be read."""
    words = argument.split(" ")
    for number in range(1, min(len(words), _MOST_WORDS)):
        if (read := reminder_of(" ".join(words[number:]))) is not None:
            return " ".join(words[:number]).rstrip(":,"), read
    return "", None


async def _listed(jobs: JobService, place: Place) -> str:
    mine = ["- " + one_line(told, 200).replace("`", "'") for told in await jobs.shown(place)]
    if not mine:
        return f"Nothing is scheduled for you here. {USE.removesuffix(' Nothing was done.')}"
    whose = "your scheduled jobs" if place.audience is Audience.DIRECT else "the scheduled jobs of this room"
    return "\n".join([f"These are {whose}:", "", *mine])


async def _remove(jobs: JobService, place: Place, name: str) -> str:
    job = next((job for job in await jobs.of(place) if job.id == name), None)
    if job is None or not await jobs.remove(job):
        return f"There is no reminder `{line(name)[:40]}` of yours here."
    return f"`{job.id}` is removed."


async def _add(
    jobs: JobService, place: Place, request: TriggerRequest, text: str, *, key: str, whom: str
) -> str:
    try:
        job = await jobs.add(place, request, text=text, kind=JobKind.REMIND, key=key, whom=whom)
    except TriggerInvalid as error:
        return f"Nothing was scheduled: {error}."
    except TooManyJobs as error:
        return error.public
    mentions = job.context.get(MENTIONS, ["you"])
    who = "everybody" if EVERYBODY in mentions else ", ".join(mentions)
    return (
        f"I will remind {who}, {jobs.timing_text(job)}: {line(job.text)}\n\n`!remind remove {job.id}` "
        "removes it."
    )
