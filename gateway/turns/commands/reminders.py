"""``!remind``: when, and of what, in the words of a person. The reading is pure."""

from __future__ import annotations

import re

from agent_core.text import one_line
from gateway.proactive.jobs.service import JobService, Place
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, span_of
from gateway.proactive.jobs.triggers import TriggerInvalid
from gateway.queue.errors import TooManyJobs
from gateway.queue.model import JobKind
from gateway.turns.approvals.text import line
from gateway.turns.commands.asked import Asked

__all__ = ["about_reminders", "reminder_of"]

USE = (
    "Write `!remind in 2h TEXT`, `!remind 18:30 TEXT`, `!remind tomorrow 09:00 TEXT`, "
    "`!remind 2026-12-24 18:00 TEXT` or `!remind every day TEXT`; `!remind remove ID` takes one back. "
    "Nothing was done."
)
_UNIT = r"(?:s|sec|seconds?|m|min|mins|minutes?|h|hours?|d|days?|w|weeks?)"
_SPAN = re.compile(
    rf"(?P<how>in|every)\s+(?P<count>\d{{1,6}}(?:\.\d{{1,3}})?\s*)?(?P<unit>{_UNIT})\b[\s:,]*(?P<text>.*)",
    re.IGNORECASE | re.DOTALL,
)
_TIME = re.compile(
    r"(?:at\s+|on\s+)?(?P<at>(?:(?:today|tomorrow)[ ,]{0,2}(?:at )?|\d{4}-\d{2}-\d{2}[ T])?\d{1,2}:\d{2})"
    r"(?![\d:])[\s:,]*(?P<text>.*)",
    re.IGNORECASE | re.DOTALL,
)
_FILLING = re.compile(r"(?:to|that)\s+", re.IGNORECASE)
_NOT_PROVEN = "Whose address is not proven cannot have anything scheduled. Nothing was done."
_LONGEST = 4000
_REMOVES = frozenset({"remove", "stop", "delete"})


def reminder_of(argument: str) -> tuple[TriggerRequest, str] | None:
    """When, and what is to be said then; None if it cannot be read."""
    said = argument.strip()
    if said[:3].lower() == "me ":
        said = said[3:].lstrip()
    if found := _SPAN.fullmatch(said):
        unit = found["unit"].lower().replace("mins", "min")
        minutes = span_of(f"{(found['count'] or '1').strip()} {unit}")
        every = found["how"].lower() == "every"
        wish = TriggerRequest(every_minutes=minutes) if every else TriggerRequest(in_minutes=minutes)
    elif found := _TIME.fullmatch(said):
        at = found["at"]
        if at[0].isdigit() and "-" in at:  # a date, whose hour people write with one digit too
            day, clock = at[:10], at[11:]
            at = f"{day} {clock.zfill(5)}"
        wish = TriggerRequest(at=at)
    else:
        return None
    text = _FILLING.sub("", found["text"].strip(), count=1) if _FILLING.match(found["text"].strip()) else ""
    text = text or found["text"].strip()
    return (wish, text) if text else None


async def about_reminders(jobs: JobService, place: Place, asked: Asked) -> str:
    """
    Keep, list or remove a reminder; what is said to it.

    Raises:
        StoreUnavailable: Not now; it may be done again.
    """
    argument = asked.command.argument.strip()
    if not jobs.enabled:
        return "My owner has switched off that anything is scheduled here. Nothing was done."
    if not argument:
        return await _listed(jobs, place)
    what, _, wanted = argument.partition(" ")
    if what.lower() in _REMOVES and wanted.strip():
        return await _remove(jobs, place, wanted.strip().strip("`").lower())
    read = reminder_of(argument)
    if read is None or len(read[1]) > _LONGEST:
        return USE
    return await _add(jobs, place, *read, key=asked.turn.id) if asked.message.sender.verified else _NOT_PROVEN


async def _listed(jobs: JobService, place: Place) -> str:
    mine = ["- " + one_line(jobs.describe(job), 160).replace("`", "'") for job in await jobs.of(place)]
    if not mine:
        return f"Nothing is scheduled for you here. {USE.removesuffix(' Nothing was done.')}"
    return "\n".join(["This is scheduled for you:", "", *mine])


async def _remove(jobs: JobService, place: Place, name: str) -> str:
    job = next((job for job in await jobs.of(place) if job.id == name), None)
    if job is None or not await jobs.remove(job):
        return f"There is no reminder `{line(name)[:40]}` of yours here."
    return f"`{job.id}` is removed."


async def _add(jobs: JobService, place: Place, wish: TriggerRequest, text: str, *, key: str) -> str:
    try:
        job = await jobs.add(place, wish, text=text, kind=JobKind.REMIND, key=key)
    except TriggerInvalid as error:
        return f"Nothing was scheduled: {error}."
    except TooManyJobs as error:
        return error.public
    return (
        f"I will remind you, {jobs.timing_text(job)}: {line(job.text)}\n\n"
        f"`!remind remove {job.id}` takes it back."
    )
