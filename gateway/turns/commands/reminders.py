"""``!remind``: makes, lists and removes reminders."""

from __future__ import annotations

import re

from agent_core.messages import EVERYBODY, Audience
from agent_core.text import one_line
from gateway.proactive.jobs.service import EVERYBODY_HERE, JobPlace, JobService
from gateway.proactive.jobs.time_grammar import EXAMPLES, Ambiguous, split_when
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.proactive.jobs.triggers import TriggerInvalid
from gateway.queue.errors import TooManyJobs
from gateway.queue.model import JobKind
from gateway.turns.approvals.text import safe_line
from gateway.turns.commands.asked import CommandContext

USE = (
    "Write `!remind TIME TEXT`, such as `!remind in 2 h 30 min call Tom`; a time is "
    + EXAMPLES.replace("'", "`")
    + ". `!remind remove ID` removes a reminder. In a room, `!remind us 18:30 TEXT` and `!remind NAME 18:30 "
    "TEXT` notify others. Nothing was done."
)
_FILLING = re.compile(r"(?:to|that|dass)\s+", re.IGNORECASE)
_NOT_PROVEN = "Your address is not verified, so you cannot schedule anything. Nothing was done."
_LONGEST = 4000
_MOST_WORDS = 20
_REMOVES = frozenset({"remove", "stop", "delete"})


def reminder_of(argument: str) -> tuple[TriggerRequest, str] | None:
    """The time and the text of a reminder; None if it cannot be read. Raises `Ambiguous`."""
    said = argument.strip()
    if said[:5].lower().startswith(("me ", "mich ")):
        said = said.partition(" ")[2].lstrip()
    if (split := split_when(said)) is None:
        return None
    when, text = split[0], split[1].strip()
    text = _FILLING.sub("", text, count=1) or text
    return (TriggerRequest(at=when), text) if text else None


async def about_reminders(jobs: JobService, place: JobPlace, asked: CommandContext) -> str:
    """Make, list or remove a reminder; return the answer. Raises StoreUnavailable; repeatable."""
    argument = asked.command.argument.strip()
    if not jobs.is_enabled:
        return "My owner has switched off scheduling here. Nothing was done."
    if argument.lower() in ("", "list"):
        return await _listed(jobs, place)
    what, _, wanted = argument.partition(" ")
    if what.lower() in _REMOVES and wanted.strip():
        return await _remove(jobs, place, wanted.strip().strip("`").lower())
    try:
        whom, read = "", reminder_of(argument)
        if read is None:
            whom, read = _of_others(argument)
        if place.audience is Audience.DIRECT and whom and whom.lower() not in EVERYBODY_HERE:
            read = None
    except Ambiguous as error:
        return f"Nothing was scheduled: {error}."
    if read is None or len(read[1]) > _LONGEST or not asked.message.sender.verified:
        return USE if asked.message.sender.verified else _NOT_PROVEN
    return await _add(jobs, place, *read, key=asked.turn.id, whom=whom)


def _of_others(argument: str) -> tuple[str, tuple[TriggerRequest, str] | None]:
    """The people named in front of the time of a reminder, and the rest; None if it cannot be read."""
    words = argument.split(" ")
    for number in range(1, min(len(words), _MOST_WORDS)):
        if (read := reminder_of(" ".join(words[number:]))) is not None:
            return " ".join(words[:number]).rstrip(":,"), read
    return "", None


async def _listed(jobs: JobService, place: JobPlace) -> str:
    mine = ["- " + one_line(told, 200).replace("`", "'") for told in await jobs.jobs_with_lines(place)]
    if not mine:
        return f"Nothing is scheduled for you here. {USE.removesuffix(' Nothing was done.')}"
    whose = "your scheduled jobs" if place.audience is Audience.DIRECT else "the scheduled jobs of this room"
    return "\n".join([f"These are {whose}:", "", *mine])


async def _remove(jobs: JobService, place: JobPlace, name: str) -> str:
    job = next((job for job in await jobs.own_jobs(place) if job.id == name), None)
    if job is None or not await jobs.remove(job):
        return f"There is no reminder `{safe_line(name)[:40]}` of yours here."
    return f"`{job.id}` is removed."


async def _add(
    jobs: JobService, place: JobPlace, request: TriggerRequest, text: str, *, key: str, whom: str
) -> str:
    try:
        job = await jobs.add(place, request, text=text, kind=JobKind.REMIND, key=key, whom=whom)
    except TriggerInvalid as error:
        return f"Nothing was scheduled: {error}."
    except TooManyJobs as error:
        return error.public
    mentions = job.context.notes.mentions or ("you",)
    who = "everybody" if EVERYBODY in mentions else ", ".join(mentions)
    return (
        f"I will remind {who}, {jobs.timing_text(job, is_new=True)}: {safe_line(job.text)}\n\n"
        f"`!remind remove {job.id}` removes it."
    )
