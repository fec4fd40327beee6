"""``!remind``: makes, lists, changes and removes reminders."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agent_core.language import _, gettext_noop, ngettext
from agent_core.messages import EVERYBODY, Audience
from agent_core.text import one_line
from gateway.proactive.jobs.job_service import EVERYBODY_HERE, JobPlace, JobService, is_watch
from gateway.proactive.jobs.time_grammar import is_free_of_times, is_time, split_trailing_time, split_when
from gateway.proactive.jobs.time_syntax import Ambiguous, NotATime
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.proactive.jobs.triggers import TriggerInvalid
from gateway.store.model import Job, JobKind
from gateway.store.store_errors import TooManyJobs
from gateway.store.stores import Step, TurnStore
from gateway.turns.commands.chat_command_context import CommandContext, place_of
from gateway.turns.questions.question_text import safe_line

_HOW = gettext_noop("`!remind tomorrow at 8 call Tom` makes one")
_FOR_ME = re.compile(r"\A(?:me|mich)\s+(?:(?:to|that|dass)\s+)?", re.IGNORECASE)
_FILLING = re.compile(r"\A(?:to|that|dass|[-–—])\s+", re.IGNORECASE)
_NOT_PROVEN = gettext_noop("Your address is not verified, so you cannot schedule anything. Nothing was done.")
_LONGEST = 4000
_REMOVES = frozenset({"cancel", "remove", "stop", "delete"})
_CHANGES = frozenset({"change", "edit", "move", "reschedule", "update", "ändere", "ändern", "verschiebe"})
_TO = re.compile(r"\A(?:to|auf)\s+", re.IGNORECASE)
_ALL = frozenset({"all", "everything", "alle", "alles"})
_WORDS = re.compile(r"\w+")
_REMOVAL, _CHANGE = "remind_removal", "remind_change"
"""The kinds of the steps of commands about one: a number in the list means another job afterwards."""


def reminder_of(
    argument: str, split: Callable[[str], tuple[str, str]] = split_when
) -> tuple[TriggerRequest, str]:
    """The time and the text of a reminder. Raises `NotATime` or `Ambiguous`."""
    when, text = split(_FOR_ME.sub("", argument.strip(), count=1))
    return TriggerRequest(at=when), _FILLING.sub("", text.strip(), count=1) or text


class ReminderCommand:
    """Answers ``!remind``; ``owner`` are all addresses of the owner."""

    def __init__(self, jobs: JobService, turns: TurnStore, owner: Sequence[str]) -> None:
        self._jobs = jobs
        self._turns = turns
        self._owner = owner

    async def answer(self, asked: CommandContext) -> str:
        """Make, list, change or remove a reminder; return the answer. Raises StoreUnavailable; repeatable."""
        told = await _answer(self._jobs, place_of(asked, self._owner), asked, self._turns)
        # Nothing that somebody has written has a backtick here.
        return told.replace("`!remind", f"`{safe_line(asked.bot_name)}: !remind") if asked.bot_name else told


async def _answer(jobs: JobService, place: JobPlace, asked: CommandContext, turns: TurnStore) -> str:
    argument = asked.command.argument.strip()
    if not jobs.is_enabled:
        return _("My owner has switched off scheduling here. Nothing was done.")
    what, __, wanted = argument.partition(" ")
    if what.lower() in _REMOVES and wanted.strip():
        return await _remove(jobs, place, asked, turns, wanted.strip().strip("`\"'"))
    if argument.lower() in ("", "list", *_REMOVES):
        return await _listed(jobs, place)
    if not asked.message.sender.verified:
        return _NOT_PROVEN
    if what.lower() in _CHANGES and (told := await _change(jobs, place, asked, turns, wanted)) is not None:
        return told
    return await _make(jobs, place, argument, key=asked.turn.id)


async def _make(jobs: JobService, place: JobPlace, argument: str, *, key: str) -> str:
    if len(argument) > _LONGEST:
        return _("Nothing was scheduled: that is longer than {longest} characters.", longest=_LONGEST)
    try:
        whom, (request, text) = await read_argument(jobs, argument, place)
        job = await jobs.add(place, request, text=text, kind=JobKind.REMIND, key=key, whom=whom)
    except (Ambiguous, TriggerInvalid) as error:
        return _("Nothing was scheduled: {error}.", error=error)
    except NotATime as error:
        example = safe_line(one_line(error.example, 100))
        return _(
            "Nothing was scheduled: {error}. Write for example `!remind {example}`.",
            error=safe_line(str(error), 300),
            example=example,
        )
    except TooManyJobs as error:
        return _(error.public)
    mentions = job.context.notes.mentions or (_("you"),)
    who = _("everybody") if EVERYBODY in mentions else ", ".join(mentions)
    return _(
        "I will remind {who}, {timing_text}: {text}\n\n`!remind cancel {id}` removes it.",
        who=who,
        timing_text=jobs.timing_text(job, is_new=True),
        text=safe_line(job.text),
        id=job.id,
    )


async def read_argument(
    jobs: JobService, argument: str, place: JobPlace
) -> tuple[str, tuple[TriggerRequest, str]]:
    """The people, the time and the text, in either order. Raises `NotATime` or what `reminder_of` raises."""
    try:
        whom, what = _parse_argument(argument, place)
        if whom and not is_free_of_times(whom):  # perhaps "Ben tomorow", perhaps somebody called Frieda
            try:
                await jobs.mentioned_addresses(place, whom)
            except TriggerInvalid as error:
                why = _("I do not understand {whom} before {at}", whom=f"{whom!r}", at=f"{what[0].at!r}")
                raise NotATime(why, _("tomorrow at 8 {text}", text=what[1])) from error
        return whom, what
    except NotATime as problem:
        try:
            return await _parse_trailing_time(jobs, argument, place)
        except NotATime:
            raise problem from None


def _parse_argument(argument: str, place: JobPlace) -> tuple[str, tuple[TriggerRequest, str]]:
    """The people named in front of the time, the time and the text. Raises `NotATime`."""
    try:
        return "", reminder_of(argument)
    except NotATime as error:
        problem = error
    words = argument.split(" ") if not is_time(argument) else []
    for number in range(1, min(len(words), 20)):
        try:
            request, text = reminder_of(" ".join(words[number:]))
        except NotATime:
            continue
        whom = " ".join(words[:number]).rstrip(":,")
        if place.audience is Audience.GROUP or whom.lower() in EVERYBODY_HERE:
            return whom, (request, text)
        if not is_free_of_times(whom):
            break
        raise NotATime(
            _("I do not understand {whom} before {at}", whom=f"{whom!r}", at=f"{request.at!r}"),
            _("tomorrow at 8 {text}", text=text)
            if any(map(str.isdigit, whom))
            else f"{request.at} {whom} {text}",
        )
    raise problem


async def _parse_trailing_time(
    jobs: JobService, argument: str, place: JobPlace
) -> tuple[str, tuple[TriggerRequest, str]]:
    """Parse an argument with the time at its end. Raises `NotATime`."""
    request, text = reminder_of(argument, split_trailing_time)
    first, __, others = text.partition(" ")
    try:
        is_for_others = first.rstrip(":,").lower() in EVERYBODY_HERE or bool(
            place.audience is Audience.GROUP and await jobs.mentioned_addresses(place, first.rstrip(":,"))
        )
    except TriggerInvalid:
        is_for_others = False
    if not is_for_others:
        return "", (request, text)
    if not others.strip():
        raise TriggerInvalid(_("I do not know what to say {at}", at=f"{request.at!r}"))
    return first.rstrip(":,"), (request, _FILLING.sub("", others.strip(), count=1))


async def _listed(jobs: JobService, place: JobPlace) -> str:
    lines = [_list_line(line) for line in await jobs.jobs_with_lines(place)]
    if not lines:
        return _("Nothing is scheduled for you here. {how}.", how=_(_HOW))
    whose = (
        _("your scheduled jobs")
        if place.audience is Audience.DIRECT
        else _("the scheduled jobs of this room")
    )
    numbered = [f"{number}. {line}" for number, line in enumerate(lines, start=1)]
    how = ngettext(
        "`!remind cancel {n}` (or its words) removes it.",
        "`!remind cancel {n}` (or its words) removes the last one.",
        len(lines),
    )
    return "\n".join([_("These are {whose}:", whose=whose), "", *numbered, "", how])


def _list_line(line: str) -> str:
    return one_line(line, 200).replace("`", "'")


async def _remove(
    jobs: JobService, place: JobPlace, asked: CommandContext, turns: TurnStore, wanted: str
) -> str:
    """Remove one of the person's own, named by number, id or words; the same one if done again."""
    done = next((step.request for step in await turns.steps(asked.turn) if step.kind == _REMOVAL), None)
    if done is None:
        listed = list((await jobs.jobs_with_lines(place)).items())
        found = [(number, *each) for number, each in enumerate(listed, start=1)]
        meant = _meant(wanted, [each for each in found if place.owns(each[2])])
        others = () if meant else _meant(wanted, [each for each in found if not place.owns(each[2])])
        if len(meant) > 1:
            lines = [f"- `!remind cancel {number}`: {_list_line(line)}" for number, line, __ in meant]
            return "\n".join([_("Which one? Nothing was removed yet."), "", *lines])
        if len(others) == 1:
            return _(
                "Only {person} can remove that. Nothing was removed.", person=safe_line(others[0][2].person)
            )
        if not meant:
            return _("{no_such} Remove one at a time.", no_such=_no_such(wanted))
        ((__, line, job),) = meant
        done = {"id": job.id, "line": _list_line(line)}
        await turns.record_step_result(asked.turn, Step(0, _REMOVAL, job.id, done, {}))
    await jobs.plans.remove_job(done["id"])
    return _("Removed: {line}", line=done["line"])


async def _change(
    jobs: JobService, place: JobPlace, asked: CommandContext, turns: TurnStore, argument: str
) -> str | None:
    """Give one, named by number or id, another time, the same one if done again; None if none is named."""
    done = next((step.request for step in await turns.steps(asked.turn) if step.kind == _CHANGE), None)
    if done is None:
        named, __, when = argument.strip().partition(" ")
        named, when = named.strip("`:."), _TO.sub("", when.strip(" :,"))
        listed = enumerate((await jobs.jobs_with_lines(place)).values(), start=1)
        job = next((each for number, each in listed if named in (each.id, str(number))), None)
        if job is None or is_watch(job):
            return _no_such(named) if named.isdecimal() and is_time(when) else None
        if not place.owns(job):
            return _("Only {person} can change that. Nothing was changed.", person=safe_line(job.person))
        try:
            timing = await jobs.check_timing(place, TriggerRequest(at=when))
        except TriggerInvalid as error:
            return _(
                "Nothing was changed: {error}. `!remind change {id} tomorrow at 9` gives it another time; "
                "for other words make a new one, and `!remind cancel {id}` removes this one.",
                error=safe_line(str(error), 300),
                id=job.id,
            )
        done = {"id": job.id, "timing": str(timing)}
        await turns.record_step_result(asked.turn, Step(0, _CHANGE, job.id, done, {}))
    changed = await jobs.change_time(done["id"], done["timing"])
    if changed is None:
        return _("There is no such reminder any more.")
    told = jobs.timing_text(changed, is_new=True)
    return _("Changed: {timing_text}: {text}", timing_text=told, text=safe_line(changed.text))


def _no_such(named: str) -> str:
    return _(
        "There is no reminder `{named}` of yours here; `!remind` lists them.", named=safe_line(named)[:40]
    )


def _meant(wanted: str, mine: list[tuple[int, str, Job]]) -> list[tuple[int, str, Job]]:
    """Those that the id or the number names, else those with this text, else those with these words in it."""
    said = wanted.casefold()
    if said in _ALL:
        return mine
    for fits in (
        lambda each: each[2].id == said,
        lambda each: str(each[0]) == said,
        lambda each: each[2].text.casefold() == said,
        lambda each: set(_WORDS.findall(said)) <= set(_WORDS.findall(each[2].text.casefold())),
        lambda each: all(word in each[2].text.casefold() for word in said.split()),
    ):
        if found := [each for each in mine if fits(each)]:
            return found
    return []
