"""What `!remind` understands: when, and of what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_core.language import speaking
from agent_core.messages import Audience, SessionKey
from gateway.proactive.jobs.config import ScheduleConfig
from gateway.proactive.jobs.job_service import JobPlace, JobService
from gateway.proactive.jobs.time_grammar import read_when
from gateway.proactive.jobs.time_syntax import Ambiguous, Calendar, NotATime
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, format_timing
from gateway.proactive.jobs.triggers import Cron, TriggerInvalid, checked_cron
from gateway.store.model import Job, JobKind
from gateway.turns.commands.reminder_command import ReminderCommand, read_argument, reminder_of
from tests.clock import EPOCH, ManualClock
from tests.inbound import inbound
from tests.rows import rows


@rows(
    ("said", "why"),
    [
        ("on the 3rd floor fix the lamp", "I am not sure whether 'floor fix the lamp'"),
        ("am 3. Stock die Lampe tauschen", "I am not sure whether 'Stock die Lampe tauschen'"),
        ("every 0 months pay the rent", "I do not understand"),
        ("every first weekday clean", "I do not understand"),
        ("every year on 30 february party", "No year has a day 30 in month 2"),
    ],
)
def test_what_is_no_day_of_the_month_is_refused(said: str, why: str) -> None:
    """The controls are days that there are."""
    with pytest.raises(NotATime, match=why):
        reminder_of(said)
    for said in ("on the 3rd: fix the lamp", "on the 3rd to fix the lamp", "on the 3rd, fix the lamp"):
        assert reminder_of(said)[0].at == "on the 3rd"
    assert reminder_of("every year on 29 february party")[0].at == "every year on 29 february"


@rows(
    ("said", "when", "text"),
    [
        ("in 2h call Tom", "in 2h", "call Tom"),
        ("in 2h tell me that Tom goes to bed", "in 2h", "tell me that Tom goes to bed"),
        ("me in 2 hours to call Tom", "in 2 hours", "call Tom"),
        ("in 2 h 30 min take the cake out", "in 2 h 30 min", "take the cake out"),
        ("in 2 hours: 30 people come", "in 2 hours", "30 people come"),
        ("every 2 hours drink", "every 2 hours", "drink"),
        ("every day take pills", "every day", "take pills"),
        ("every day 2 pills", "every day", "2 pills"),
        ("every day 09:00 take pills", "every day 09:00", "take pills"),
        ("every day 09:00 and 21:00 take pills", "every day 09:00 and 21:00", "take pills"),
        ("every 2 weeks on monday bins", "every 2 weeks on monday", "bins"),
        ("every 2 days 09:00 x", "every 2 days 09:00", "x"),
        ("every weekday at 8am: stand up", "every weekday at 8am", "stand up"),
        ("18:00 every day call", "18:00 every day", "call"),
        ("every Sunday 18:30 that it is late", "every Sunday 18:30", "it is late"),
        ("18:30 call Tom", "18:30", "call Tom"),
        ("18:30 2 eggs", "18:30", "2 eggs"),
        ("18:30 tea/coffee 1/2 litre", "18:30", "tea/coffee 1/2 litre"),
        ("09:00 and 21:00 take the pill", "09:00 and 21:00", "take the pill"),
        ("at 9 call Tom", "at 9", "call Tom"),
        ("12am sleep", "12am", "sleep"),
        ("tonight dinner", "tonight", "dinner"),
        ("tomorrow 9pm, call", "tomorrow 9pm", "call"),
        ("18:00 tomorrow call", "18:00 tomorrow", "call"),
        ("friday 9:00 call", "friday 9:00", "call"),
        ("on Friday at 9am, to call Tom", "on Friday at 9am", "call Tom"),
        ("tomorrow at 9 call", "tomorrow at 9", "call"),
        ("tomorrow at 8: call", "tomorrow at 8", "call"),
        ("in 2 days at 9 x", "in 2 days at 9", "x"),
        ("on 2026-12-24 at 18:00 gifts", "on 2026-12-24 at 18:00", "gifts"),
        ("2026-12-24T9:00 gifts", "2026-12-24T9:00", "gifts"),
        ("04.12.2026 18:00 party", "04.12.2026 18:00", "party"),
        ("mich morgen um 9 dass Tom kommt", "morgen um 9", "Tom kommt"),
        ("Übermorgen um 18.30 Uhr Müll", "Übermorgen um 18.30 Uhr", "Müll"),
        ("jeden Montag um 8 Müll", "jeden Montag um 8", "Müll"),
        ("18 Uhr Abendessen", "18 Uhr", "Abendessen"),
        ("at 8 in the evening call", "at 8 in the evening", "call"),
        ("in 2 hours and a half call", "in 2 hours and a half", "call"),
        ("tomorrow at midnight sleep", "tomorrow at midnight", "sleep"),
        ("monday morning run", "monday morning", "run"),
    ],
)
def test_what_is_understood(said: str, when: str, text: str) -> None:
    """A time of the day behind "every day" is when it comes, not what is said then."""
    assert reminder_of(said) == (TriggerRequest(at=when), text)


@rows(
    "said",
    [
        "",
        "in 2 hours",
        "tomorrow 09:00",
        "tomorrow 9 call",
        "in 2h 18:30 train",
        "in 2 hours 30 call",
        "in an hour or so x",
        "in 2 days 25:00 x",
        "every 2 weeks on monday 9 x",
        "every day until friday x",
        "every day at 9 for 5 days x",
        "18:00 and 5 friends",
        "18:00 to 19:00 x",
        "18:00 CET call",
        "9am Europe/London tomorrow call",
        "5pm 12/24 gifts",
        "18:00 sunday roast",
        "6pm 7pm x",
        "every day 25:00 x",
        "13pm x",
        "9amused x",
        "18:30:00 x",
        "9:5 x",
        "friday 9 call",
        "freitag 9 call",
        "18 Uhr 3 call",
        "9am in the morning call",
        "9:00 on mondays call",
        "morgen um 9 bis 10 x",
        "in 1,500 seconds x",
        "friday 25:00 call",
    ],
)
def test_what_could_be_misread_is_asked_again(said: str) -> None:
    """No time, no text, or a time that would become part of the text: the answer says how to write it."""
    with pytest.raises(NotATime):
        reminder_of(said)


def test_a_date_with_two_readings_is_asked_back() -> None:
    """Both are named, so that one can be copied."""
    with pytest.raises(Ambiguous, match="can be 2026-04-12 or 2026-12-04"):
        reminder_of("04/12/2026 18:00 party")


@rows(
    ("expression", "words"),
    [
        ("0 9 * * *", "every day at 09:00 (Europe/Berlin)"),
        ("30 18 * * 7", "every Sunday at 18:30 (Europe/Berlin)"),
        ("0 8 * * 1-5", "every weekday at 08:00 (Europe/Berlin)"),
        ("*/5 9 * * *", "at */5 9 * * * (Europe/Berlin)"),
        ("0 9,21 * * 1,4", "every Monday and Thursday at 09:00 and 21:00 (Europe/Berlin)"),
        ("30 8 * * * | 0 21 * * *", "every day at 08:30 and 21:00 (Europe/Berlin)"),
        ("0 9 1 * 1", "at 0 9 1 * 1 (Europe/Berlin)"),
        ("0 9 1 * *", "on day 1 of every month at 09:00 (Europe/Berlin)"),
        ("0 9 3 5 *", "every year on 3 May at 09:00 (Europe/Berlin)"),
        ("0 9 L 2 *", "every year on the last day of February at 09:00 (Europe/Berlin)"),
        ("0 9 1,L * *", "on day 1 and the last day of every month at 09:00 (Europe/Berlin)"),
        ("0 9 30 * * | 0 9 L 2 *", "on day 30 of every month at 09:00 (Europe/Berlin)"),
        ("0 9 * * 1#1", "on the first Monday of every month at 09:00 (Europe/Berlin)"),
        ("0 9 * * 5L", "on the last Friday of every month at 09:00 (Europe/Berlin)"),
        ("0 9 1 * 5L", "at 0 9 1 * 5L (Europe/Berlin)"),
        ("0 9 * 5 *", "at 0 9 * 5 * (Europe/Berlin)"),
    ],
)
def test_repeated_times_are_told_in_words(expression: str, words: str) -> None:
    """An expression of cron is for those who have written one."""
    timing = checked_cron(expression, "Europe/Berlin")
    assert isinstance(timing, Cron)
    assert format_timing(timing, "UTC") == words


class _People:
    """A room in which Ben is, or somebody else."""

    is_enabled = True

    def __init__(self, name: str = "ben") -> None:
        self._name = name

    async def mentioned_addresses(self, place: JobPlace, whom: str) -> list[str]:
        if whom.lower() not in (self._name, "us"):
            raise TriggerInvalid("I know nobody called that here")
        return ["@ben:hs.test"]


@pytest.mark.parametrize(
    ("said", "audience", "whom", "text"),
    [
        ("call mum tomorrow at 6", Audience.DIRECT, "", "call mum"),
        ("call mum tomorrow at 6", Audience.GROUP, "", "call mum"),
        ("Ben call the school tomorrow at 6", Audience.GROUP, "Ben", "call the school"),
        ("us to eat dinner tomorrow at 6", Audience.GROUP, "us", "eat dinner"),
        ("Ben call the school tomorrow at 6", Audience.DIRECT, "", "Ben call the school"),
    ],
)
async def test_the_time_behind_the_text_keeps_the_name_in_front(
    said: str, audience: Audience, whom: str, text: str
) -> None:
    """In a room the first word may be a person."""
    place = JobPlace(SessionKey("matrix", "!r"), "matrix", "@ann:hs.test", audience)
    assert await read_argument(cast("JobService", _People()), said, place) == (
        whom,
        (TriggerRequest(at="tomorrow at 6"), text),
    )


@pytest.mark.parametrize(
    ("said", "example"),
    [
        ("first thing tomorrow mail", "tomorrow first thing mail"),
        ("every first weekday book club", "every 2 hours call Tom"),
        ("every now and then stretch", "every 2 hours call Tom"),
        ("stretch every now and then", "every 2 hours call Tom"),
        ("tomorow at 9 milk", "tomorrow at 8 call Tom"),
        ("12/24 5pm gifts", "tomorrow at 8 gifts"),
        ("gate 5pm open", "5pm gate open"),
    ],
)
async def test_an_example_says_what_was_probably_meant(said: str, example: str) -> None:
    """Never with a part of the time as the text."""
    place = JobPlace(SessionKey("matrix", "!r"), "matrix", "@ann:hs.test")
    with pytest.raises(NotATime) as refused:
        await read_argument(cast("JobService", _People()), said, place)
    assert refused.value.example == example


async def test_what_is_no_name_may_be_a_time_with_a_slip() -> None:
    """The control is somebody whose name is like a word for a day."""
    place = JobPlace(SessionKey("matrix", "!r"), "matrix", "@ann:hs.test", Audience.GROUP)
    with pytest.raises(NotATime, match="I do not understand 'tomorow' before 'at 9'"):
        await read_argument(cast("JobService", _People()), "tomorow at 9 milk", place)
    found = await read_argument(cast("JobService", _People("frieda")), "Frieda at 9 milk", place)
    assert found == ("Frieda", (TriggerRequest(at="at 9"), "milk"))


@pytest.mark.parametrize("said", ["every first monday", "jeden 2. Freitag", "on friday at 9"])
async def test_a_time_alone_says_nothing(said: str) -> None:
    """A part of it is no other time, and what is before that is nobody."""
    for audience in (Audience.GROUP, Audience.DIRECT):
        place = JobPlace(SessionKey("matrix", "!r"), "matrix", "@ann:hs.test", audience)
        with pytest.raises(NotATime, match=f"what to say '{said}'"):
            await read_argument(cast("JobService", _People()), said, place)


@rows(
    ("said", "days"),
    [
        ("every monday to thursday at 7", (0, 1, 2, 3)),
        ("every mon-thu at 7", (0, 1, 2, 3)),
        ("every friday through monday at 7", (0, 4, 5, 6)),
        ("montags bis donnerstags um 7", (0, 1, 2, 3)),
        ("jeden Montag bis Mittwoch und Samstag um 7", (0, 1, 2, 5)),
        ("every weekday except friday at 7", (0, 1, 2, 3)),
        ("every day except sunday at 7", (0, 1, 2, 3, 4, 5)),
        ("jeden Werktag außer Freitag um 7", (0, 1, 2, 3)),
        ("jeden Tag außer Samstag und Sonntag um 7", (0, 1, 2, 3, 4)),
        ("every monday at 7", (0,)),
    ],
)
def test_days_in_a_row_and_days_left_out(said: str, days: tuple[int, ...]) -> None:
    """The last one is the control."""
    when = read_when(said)
    assert isinstance(when, Calendar)
    assert when.weekdays == days
    assert reminder_of(f"{said} school bus") == (TriggerRequest(at=said), "school bus")


@rows(
    "said",
    ["every weekday except at 7 bus", "every day but friday the 13th at 7 bus", "every monday to at 7 bus"],
)
def test_days_left_out_that_are_not_understood(said: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(NotATime):
        reminder_of(said)


def test_what_stands_behind_a_day_may_be_the_text() -> None:
    """The word in between is no end of a range then."""
    assert reminder_of("every monday to call Tom") == (TriggerRequest(at="every monday"), "call Tom")


async def test_a_name_and_a_time_say_nothing() -> None:
    """The name is not what is said."""
    place = JobPlace(SessionKey("matrix", "!r"), "matrix", "@ann:hs.test")
    with pytest.raises(TriggerInvalid, match="what to say 'tomorrow at 6'"):
        await read_argument(cast("JobService", _People()), "us tomorrow at 6", place)


async def test_a_direct_list_says_where_a_job_of_another_place_comes() -> None:
    """The control is a job of the conversation in which the list is asked for."""
    here, room = SessionKey("matrix", "!dm:hs.test"), SessionKey("matrix", "!club:hs.test")
    mail = SessionKey("email", "thread")
    ann = "@ann:hs.test"
    kept = [
        Job("a", JobKind.REMIND, text, "in 5m", where, "@bot:hs.test", ann, EPOCH, audience)
        for text, where, audience in (
            ("here", here, Audience.DIRECT),
            ("club", room, Audience.GROUP),
            ("mail", mail, Audience.DIRECT),
        )
    ]

    async def jobs() -> list[Job]:
        return kept

    plans: Any = SimpleNamespace(jobs=jobs)
    place = JobPlace(here, "@bot:hs.test", ann, persons=[ann])
    for for_model, name, shown in (
        (False, "", "another room"),
        (False, "The `[Club](x)`", "the room “The Club(x)”"),
        (True, "Club", "another room"),
    ):
        service = JobService(
            plans,
            ScheduleConfig(),
            zone="UTC",
            clock=ManualClock(),
            room_name={room: name, here: "", mail: ""}.__getitem__,
        )
        lines = list(await service.jobs_with_lines(place, for_model=for_model))
        assert [line.partition(" (comes")[2] for line in lines] == [
            "",
            f" in {shown}, by matrix)",
            " in another conversation, by email)",
        ]


@pytest.mark.parametrize("language", ["en", "de"])
async def test_a_refusal_is_said_to_its_end(language: str) -> None:
    """However long the words of the language are."""
    command = SimpleNamespace(
        argument="am Freitag am Mittag oder am Abend mit den Kindern zum Schwimmbad gehen"
    )
    asked = SimpleNamespace(
        command=command,
        message=inbound(SessionKey("matrix", "!r"), "@ann:hs.test", f"!remind {command.argument}"),
        turn=SimpleNamespace(id="t", place=SessionKey("matrix", "!r")),
        session=SimpleNamespace(since=0),
        is_owner=False,
        bot_name="",
    )
    with speaking(language):
        told = await ReminderCommand(cast("JobService", _People()), cast("Any", None), ()).answer(
            cast("Any", asked)
        )
    assert told.partition(": ")[2].startswith(("I am not sure whether", "Ich bin nicht sicher, ob")), told
    assert "…" not in told
