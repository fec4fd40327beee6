"""Times as ordinary people type them, in English and German, and what is like them and must be asked back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gateway.proactive.jobs.time_grammar import read_when, split_trailing_time, split_when
from gateway.proactive.jobs.time_syntax import Ambiguous, NotATime
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, parse_request, timing_of
from gateway.proactive.jobs.triggers import Cron, Interval, Once, TriggerInvalid
from gateway.turns.commands.reminder_command import reminder_of
from tests.rows import rows

BERLIN = ZoneInfo("Europe/Berlin")
SATURDAY = datetime(2026, 11, 28, 15, 30, tzinfo=BERLIN)


def local(said: str, now: datetime = SATURDAY) -> str:
    """The first run of a time, on the wall clock of Berlin."""
    timing = timing_of(said, now.astimezone(UTC), "Europe/Berlin")
    assert isinstance(timing, Once)
    return f"{timing.instants[0].astimezone(BERLIN):%a %d %b %H:%M}"


ONCE = [
    # clocks
    ("7.30pm", "Sat 28 Nov 19:30"),
    ("7.30 p.m.", "Sat 28 Nov 19:30"),
    ("at 7.30", "Sun 29 Nov 07:30"),
    ("um 18.30", "Sat 28 Nov 18:30"),
    ("18 Uhr 30", "Sat 28 Nov 18:30"),
    ("18:30 Uhr", "Sat 28 Nov 18:30"),
    ("half past six", "Sat 28 Nov 18:30"),
    ("at half past six pm", "Sat 28 Nov 18:30"),
    ("quarter to 8", "Sat 28 Nov 19:45"),
    ("a quarter past 4", "Sat 28 Nov 16:15"),
    ("quarter to one", "Sun 29 Nov 12:45"),
    ("ten to eight", "Sat 28 Nov 19:50"),
    ("20 past 5", "Sat 28 Nov 17:20"),
    ("5 minutes to 8", "Sat 28 Nov 19:55"),
    ("halb sieben", "Sat 28 Nov 18:30"),
    ("um halb 7", "Sat 28 Nov 18:30"),
    ("halb eins", "Sun 29 Nov 12:30"),
    ("viertel nach 7", "Sat 28 Nov 19:15"),
    ("Viertel vor acht", "Sat 28 Nov 19:45"),
    ("fünf vor acht", "Sat 28 Nov 19:55"),
    ("10 nach 8", "Sat 28 Nov 20:10"),
    ("um sieben", "Sat 28 Nov 19:00"),
    ("um sieben Uhr abends", "Sat 28 Nov 19:00"),
    ("um sieben Uhr", "Sat 28 Nov 19:00"),
    ("um ein Uhr", "Sun 29 Nov 13:00"),
    ("seven o'clock", "Sat 28 Nov 19:00"),
    ("noon", "Sun 29 Nov 12:00"),
    ("Mittag", "Sun 29 Nov 12:00"),
    ("midnight", "Sun 29 Nov 00:00"),
    ("um Mitternacht", "Sun 29 Nov 00:00"),
    ("12:30 in the afternoon", "Sun 29 Nov 12:30"),
    # an hour that does not say which half of the day
    ("at 6", "Sat 28 Nov 18:00"),
    ("at 9", "Sat 28 Nov 21:00"),
    ("at 3", "Sun 29 Nov 15:00"),
    ("at 12", "Sun 29 Nov 12:00"),
    ("at 06", "Sun 29 Nov 06:00"),
    ("today at 9", "Sat 28 Nov 21:00"),
    ("heute um 8", "Sat 28 Nov 20:00"),
    ("tomorrow at 3", "Sun 29 Nov 15:00"),
    ("tomorrow at 3 in the morning", "Sun 29 Nov 03:00"),
    ("tomorrow at 03:00", "Sun 29 Nov 03:00"),
    ("morgen um 8", "Sun 29 Nov 08:00"),
    ("morgen um 6", "Sun 29 Nov 06:00"),
    ("at 8pm tonight", "Sat 28 Nov 20:00"),
    ("at 8 tomorrow evening", "Sun 29 Nov 20:00"),
    ("um 8 heute Abend", "Sat 28 Nov 20:00"),
    ("um 8 morgen früh", "Sun 29 Nov 08:00"),
    ("Fr. 9 Uhr", "Fri 04 Dec 09:00"),
    ("Mo um halb 9", "Mon 30 Nov 08:30"),
    ("Sat. 9am", "Sat 05 Dec 09:00"),
    # a day without a time
    ("tomorrow", "Sun 29 Nov 09:00"),
    ("tmrw", "Sun 29 Nov 09:00"),
    ("morgen", "Sun 29 Nov 09:00"),
    ("am Freitag", "Fri 04 Dec 09:00"),
    ("friday", "Fri 04 Dec 09:00"),
    ("on fri", "Fri 04 Dec 09:00"),
    ("saturday", "Sat 05 Dec 09:00"),
    ("next week", "Sat 05 Dec 09:00"),
    ("24 december", "Thu 24 Dec 09:00"),
    ("24.12.", "Thu 24 Dec 09:00"),
    ("24.12.26", "Thu 24 Dec 09:00"),
    ("24. Dez. 18 Uhr", "Thu 24 Dec 18:00"),
    ("today", "Sat 28 Nov 16:30"),
    ("Friday 4 December", "Fri 04 Dec 09:00"),
    ("Thursday, December 24th, 2026 at 6pm", "Thu 24 Dec 18:00"),
    ("Freitag, 4.12. um 9", "Fri 04 Dec 09:00"),
    ("am Freitag, den 4. Dezember um 18 Uhr", "Fri 04 Dec 18:00"),
    ("Fr. 4.12.26 18:00", "Fri 04 Dec 18:00"),
    # parts of the day
    ("in the morning", "Sun 29 Nov 09:00"),
    ("am Abend", "Sat 28 Nov 20:00"),
    ("am Morgen um 8", "Sun 29 Nov 08:00"),
    ("morgen früh", "Sun 29 Nov 09:00"),
    ("morgen Mittag", "Sun 29 Nov 12:00"),
    ("Freitagabend um halb acht", "Fri 04 Dec 19:30"),
    ("u\u0308bermorgen um 10", "Mon 30 Nov 10:00"),
    # from now
    ("in 1h30", "Sat 28 Nov 17:00"),
    ("1h30", "Sat 28 Nov 17:00"),
    ("1 h 30", "Sat 28 Nov 17:00"),
    ("in 1 Std 30", "Sat 28 Nov 17:00"),
    ("in 2 Std. 30 Min.", "Sat 28 Nov 18:00"),
    ("10 minutes", "Sat 28 Nov 15:40"),
    ("90min", "Sat 28 Nov 17:00"),
    ("in 10 minutes from now", "Sat 28 Nov 15:40"),
    ("two days from now", "Mon 30 Nov 15:30"),
    ("in half an hour", "Sat 28 Nov 16:00"),
    ("in einer halben Stunde", "Sat 28 Nov 16:00"),
    ("in a quarter of an hour", "Sat 28 Nov 15:45"),
    ("in einer Dreiviertelstunde", "Sat 28 Nov 16:15"),
    ("in anderthalb Stunden", "Sat 28 Nov 17:00"),
    ("in zwanzig Minuten", "Sat 28 Nov 15:50"),
    # by the calendar
    ("in 2 months", "Thu 28 Jan 09:00"),
    ("in 2 Monaten um 10", "Thu 28 Jan 10:00"),
    ("in einem Monat", "Mon 28 Dec 09:00"),
    ("a month from now", "Mon 28 Dec 09:00"),
    ("in half a year", "Fri 28 May 09:00"),
    ("in a year", "Sun 28 Nov 09:00"),
    ("next month", "Mon 28 Dec 09:00"),
    ("on the 3rd", "Thu 03 Dec 09:00"),
    ("on the 3rd at 5pm", "Thu 03 Dec 17:00"),
    ("am 3.", "Thu 03 Dec 09:00"),
    ("am 3. um 10", "Thu 03 Dec 10:00"),
    ("5pm on the 3rd", "Thu 03 Dec 17:00"),
    ("am 28.", "Mon 28 Dec 09:00"),
    ("on the 31st", "Thu 31 Dec 09:00"),
]
EVERY = [
    ("jeden Abend um 20 Uhr", "0 20 * * *"),
    ("jeden Abend um halb neun", "30 20 * * *"),
    ("every weekday at 8", "0 8 * * 1-5"),
    ("every monday at 3", "0 15 * * 1"),
    ("every day at 7.30pm", "30 19 * * *"),
    ("every monday 7.30", "30 7 * * 1"),
    ("weekends at 10", "0 10 * * 6,0"),
    ("mon-fri at 9", "0 9 * * 1-5"),
    ("Mon - Fri 8:30", "30 8 * * 1-5"),
    ("monday to friday at 7", "0 7 * * 1-5"),
    ("9:00 mon-fri", "0 9 * * 1-5"),
    ("every mon-thu", "0 9 * * 1,2,3,4"),
    ("mondays to fridays", "0 9 * * 1-5"),
    ("mo-fr um 9", "0 9 * * 1-5"),
    ("Mo.-Fr. um 9", "0 9 * * 1-5"),
    ("jeden Mo bis Do um 8", "0 8 * * 1,2,3,4"),
    ("Montag bis Freitag um 6:30", "30 6 * * 1-5"),
    ("sat-sun at 10", "0 10 * * 6,0"),
    ("weekly monday 9am", "0 9 * * 1"),
    ("jeden Tag um halb sieben", "30 6 * * *"),
    ("jeden Montag", "0 9 * * 1"),
    ("every 1st of the month", "0 9 1 * *"),
    ("am 1. jedes Monats um 8", "0 8 1 * *"),
    ("monatlich am 15.", "0 9 15 * *"),
    ("jeden 1.", "0 9 1 * *"),
    ("every month on the 1st and 15th", "0 9 1,15 * *"),
    ("every first monday", "0 9 * * 1#1"),
    ("every first monday of the month at 6pm", "0 18 * * 1#1"),
    ("jeden ersten Montag im Monat", "0 9 * * 1#1"),
    ("every month first monday", "0 9 * * 1#1"),
    ("jeden Monat am ersten Montag", "0 9 * * 1#1"),
    ("jeden zweiten Freitag im Monat", "0 9 * * 5#2"),
    ("every 3rd tuesday of the month", "0 9 * * 2#3"),
    ("the last friday of every month", "0 9 * * 5L"),
    ("jeden letzten Freitag", "0 9 * * 5L"),
    ("am letzten Freitag jedes Monats um 8", "0 8 * * 5L"),
    ("every last day of the month", "0 9 L * *"),
    ("am letzten Tag jedes Monats", "0 9 L * *"),
    ("every month on the 31st", "0 9 L * *"),
    ("every month on the 30th", "0 9 30 * * | 0 9 L 2 *"),
    ("every month", "0 9 28 * *"),
    ("every year on 29 february", "0 9 L 2 *"),
    ("every year on 3 May", "0 9 3 5 *"),
    ("jedes Jahr am 3. Mai um 10", "0 10 3 5 *"),
    # the time of day in front
    ("at 7am every weekday", "0 7 * * 1-5"),
    ("8am daily", "0 8 * * *"),
    ("9:00 every day", "0 9 * * *"),
    ("um 18 Uhr jeden Montag", "0 18 * * 1"),
    ("every last day of month at 9", "0 9 L * *"),
]
TEXT_FIRST = [
    ("call mum tomorrow at 6", "tomorrow at 6", "call mum"),
    ("me to call mum, tomorrow at 6", "tomorrow at 6", "call mum"),
    ("Mama anrufen am Freitag", "am Freitag", "Mama anrufen"),
    ("pizza in 20 min", "in 20 min", "pizza"),
    ("buy 2 tickets for 8 people on friday at 10", "on friday at 10", "buy 2 tickets for 8 people"),
    ("pay rent on the 3rd", "on the 3rd", "pay rent"),
    ("Pille jeden Abend um acht", "jeden Abend um acht", "Pille"),
    ("bins every other Friday", "every other Friday", "bins"),
]
NOT_TEXT_FIRST = [
    ("tickets for friday", "tomorrow at 8 call Tom"),
    ("ask Tom about tomorrow", "tomorrow at 8 call Tom"),
    ("yoga on monday and thursday", "tomorrow at 8 call Tom"),
    ("call Tom at 3 tomorrow evening at 8", "tomorrow at 8 call Tom"),
    ("twice a day at 9", "tomorrow at 8 call Tom"),
    ("tomorow milk at 9", "tomorrow at 8 call Tom"),
    ("on wensday milk at 9", "tomorrow at 8 call Tom"),
    ("yesterday at 6", "tomorrow at 8 call Tom"),
    ("practice 10 minutes", "in 10 minutes practice"),
    ("buy milk", "tomorrow at 8 call Tom"),
]


@rows(("said", "due"), ONCE)
def test_it_is_understood_whole_and_before_a_text(said: str, due: str) -> None:
    """On a Saturday at 15:30 in Berlin; what follows is the text, also behind a colon."""
    assert local(said) == due
    # Behind an ordinal a word may be what it counts ("on the 3rd floor"), so that is asked.
    for between in (": ", ", ") if said.endswith(("3rd", "31st", "3.", "28.")) else (" ", ": ", ", "):
        request, text = reminder_of(f"{said}{between}call mum")
        assert (local(request.at), text) == (due, "call mum")


@rows(("said", "cron"), EVERY)
def test_a_repetition_is_understood_whole_and_before_a_text(said: str, cron: str) -> None:
    """Hours before six are those of the afternoon, others as they are said."""
    for at in (said, reminder_of(f"{said}: Tabletten")[0].at):
        assert timing_of(at, SATURDAY, "Europe/Berlin") == Cron(cron, "Europe/Berlin")


@rows(("said", "when", "text"), TEXT_FIRST)
def test_the_time_may_stand_behind_the_text(said: str, when: str, text: str) -> None:
    """Nothing before it may belong to it."""
    assert reminder_of(said, split_trailing_time) == (TriggerRequest(at=when), text)


@rows(("said", "example"), NOT_TEXT_FIRST)
def test_a_text_that_may_hold_a_part_of_the_time_is_asked_back(said: str, example: str) -> None:
    """So that no part of the time is said instead of meant."""
    with pytest.raises(NotATime) as refused:
        reminder_of(said, split_trailing_time)
    assert refused.value.example == example


@rows(
    ("said", "now", "due"),
    [
        ("in 1 month", "2027-01-31 10:00", "Sun 28 Feb 09:00"),
        ("on the 31st", "2027-01-31 10:00", "Wed 31 Mar 09:00"),
        ("on the 30th", "2027-01-30 10:00", "Tue 30 Mar 09:00"),
        ("on the 3rd", "2027-01-03 08:00", "Sun 03 Jan 09:00"),
        ("on the 3rd", "2026-12-03 10:00", "Sun 03 Jan 09:00"),
        ("in 2 months", "2026-12-31 10:00", "Sun 28 Feb 09:00"),
    ],
)
def test_short_months_and_the_end_of_the_year(said: str, now: str, due: str) -> None:
    """A month later is the same day or the last; a day that a month has not is that of the next."""
    assert local(said, datetime.fromisoformat(now).replace(tzinfo=BERLIN)) == due


@rows("said", ["jeden 2. Freitag", "every 2nd friday", "alle zwei Wochen freitags"])
def test_every_other_friday(said: str) -> None:
    """In figures, too."""
    timing = timing_of(said, SATURDAY, "Europe/Berlin")
    assert isinstance(timing, Cron)
    assert (timing.expression, timing.count, timing.unit) == ("0 9 * * 5", 2, "weeks")


def test_a_time_of_day_in_front_of_what_is_no_repetition() -> None:
    """Negative control: other words behind it are asked about as before, and one time of day is enough."""
    with pytest.raises(NotATime):
        reminder_of("18:00 every cloud has a silver lining")
    with pytest.raises(TriggerInvalid):
        timing_of("at 7am every weekday at 8", SATURDAY, "Europe/Berlin")
    timing = timing_of("8pm every other day", SATURDAY, "Europe/Berlin")
    assert isinstance(timing, Cron)
    assert (timing.expression, timing.count, timing.unit) == ("0 20 * * *", 2, "days")


@rows(
    ("said", "weeks", "expression"),
    [
        ("every 2 weeks monday at 7", 2, "0 7 * * 1"),
        ("every 3 weeks fri 18:00", 3, "0 18 * * 5"),
        ("alle 2 Wochen Montag um 7", 2, "0 7 * * 1"),
    ],
)
def test_a_weekday_behind_some_weeks_needs_no_on(said: str, weeks: int, expression: str) -> None:
    """With a time of day it can be nothing else."""
    timing = timing_of(said, SATURDAY, "Europe/Berlin")
    assert isinstance(timing, Cron)
    assert (timing.expression, timing.count, timing.unit) == (expression, weeks, "weeks")


@rows(
    "said",
    [
        "mon-fri coffee",
        "every so to do the list at 9",
        "every 2 weeks monday market",
        "so to do it at 9",
        "every 2 hours monday at 7 x",
    ],
)
def test_days_that_are_no_days_for_certain(said: str) -> None:
    """Negative control: without a time of day, or with a word that is another one in English, it is asked back."""
    with pytest.raises((NotATime, Ambiguous)):
        split_when(said)


@rows("said", ["every half hour", "alle halbe Stunde", "every 30 minutes"])
def test_each_half_hour(said: str) -> None:
    """Counted from now."""
    timing = timing_of(said, SATURDAY, "Europe/Berlin")
    assert isinstance(timing, Interval)
    assert timing.seconds == 1800


@rows(
    ("said", "example"),
    [
        # a time that is not at the beginning, or in two places
        ("tomorrow call mum at 6", "tomorrow at 6 call mum"),
        ("friday evening call mum at 8", "friday evening at 8 call mum"),
        ("every day take pills at 9", "every day at 9 take pills"),
        ("in 3 days call mum at noon", "in 3 days at noon call mum"),
        ("30 minutes yoga at 18:00", "30 minutes: yoga at 18:00"),
        # what may belong to the time
        ("tomorrow 9 call", "tomorrow at 9 call"),
        ("tomorrow eight call", "tomorrow at eight call"),
        ("friday december at 4 call", "friday at 4 december call"),
        ("in 2 hours 30 people", "in 2 hours: 30 people"),
        ("1 h, 30 people", "1 h: 30 people"),
        ("18 Uhr 2 Eier", "18 Uhr: 2 Eier"),
        ("friday the 13th party", "friday: the 13th party"),
        ("am 1. Advent Kerzen", "am 1.: Advent Kerzen"),
        ("in 2 months 30 people", "in 2 months: 30 people"),
        ("um fünf vor halb acht los", "um fünf: vor halb acht los"),
        ("at 8 and nine people", "at 8: and nine people"),
        ("18:00 to midnight dance", "18:00: to midnight dance"),
        ("at 9 : 30 call", "at 9: 30 call"),
        ("18:00 IST call", "18:00: IST call"),
        ("tomorrow 10.000 steps", "tomorrow: 10.000 steps"),
        ("on the 3rd fix the lamp", "on the 3rd: fix the lamp"),
        ("on the 3rd floor fix the lamp", "on the 3rd: floor fix the lamp"),
        ("am 3. Stock die Lampe tauschen", "am 3.: Stock die Lampe tauschen"),
        ("every 2nd floor clean", "every 2nd: floor clean"),
        # nothing to say
        ("tomorrow", "tomorrow call Tom"),
        ("in 2 hours:", "in 2 hours call Tom"),
        # no time
        ("", "tomorrow at 8 call Tom"),
        ("someday call", "tomorrow at 8 call Tom"),
        ("sun cream", "tomorrow at 8 call Tom"),
        ("sat nav update", "tomorrow at 8 call Tom"),
        ("5 minutes of yoga", "tomorrow at 8 call Tom"),
        ("2 hours before dinner", "tomorrow at 8 call Tom"),
        ("half six tea", "tomorrow at 8 call Tom"),
        ("dreiviertel acht los", "tomorrow at 8 call Tom"),
        ("do laundry", "tomorrow at 8 call Tom"),
        ("2 days from the start", "tomorrow at 8 call Tom"),
        ("at 2 tomorrow night call", "tomorrow at 8 call Tom"),
        ("um ein Buch zu lesen", "tomorrow at 8 call Tom"),
        ("7.30 call", "tomorrow at 8 call Tom"),
        ("at 13pm call", "tomorrow at 8 call Tom"),
        ("at 18:30:00 call", "tomorrow at 8 call Tom"),
        ("quarter to 25 call", "tomorrow at 8 call Tom"),
        ("3. Milch", "tomorrow at 8 call Tom"),
        ("on the 40th call", "tomorrow at 8 call Tom"),
        ("on the 2nd of next call", "on the 2nd: of next call"),
        ("tonight at 2 call", "tonight: at 2 call"),
    ],
)
def test_what_may_be_misread_is_asked_with_an_example_that_is_understood(said: str, example: str) -> None:
    """The example is what was probably meant."""
    with pytest.raises(NotATime) as refused:
        reminder_of(said)
    assert refused.value.example == example
    if not said.startswith("tonight"):
        reminder_of(example)


@rows("said", ["18h Essen", "6h tea", "24h call", "11h30 call"])
def test_an_hour_that_may_be_a_span_is_asked_back(said: str) -> None:
    """In "18h" some see a clock; "in 18h" and "5h" can only be a span."""
    with pytest.raises(Ambiguous, match=r"can be \d+:[03]0 or 'in \d+h(30)?'"):
        reminder_of(said)
    assert local("in 18h") == "Sun 29 Nov 09:30"
    assert local("5h") == "Sat 28 Nov 20:30"


@rows(
    ("said", "now", "due"),
    [
        ("at 6", "2026-11-28 05:00", "Sat 28 Nov 06:00"),
        ("at 6", "2026-11-28 06:00", "Sat 28 Nov 18:00"),
        ("at 6", "2026-11-28 18:00", "Sun 29 Nov 06:00"),
        ("halb sieben", "2026-11-28 22:00", "Sun 29 Nov 06:30"),
        ("at 5", "2026-11-28 22:00", "Sun 29 Nov 17:00"),
        ("today at 3", "2026-11-28 10:00", "Sat 28 Nov 15:00"),
        ("noon", "2026-11-28 11:59", "Sat 28 Nov 12:00"),
        ("tomorrow", "2026-12-31 23:59", "Fri 01 Jan 09:00"),
        ("midnight", "2026-12-31 23:00", "Fri 01 Jan 00:00"),
        ("half past six", "2026-12-31 19:00", "Fri 01 Jan 06:30"),
        ("31.12.", "2026-12-31 10:00", "Fri 31 Dec 09:00"),
        ("1 january", "2026-12-31 10:00", "Fri 01 Jan 09:00"),
        ("next week", "2026-12-28 10:00", "Mon 04 Jan 09:00"),
        ("tomorrow", "2028-02-28 10:00", "Tue 29 Feb 09:00"),
        # in the night to 2026-03-29 the hour from 2 to 3 is left out, to 2026-10-25 it comes twice
        ("tomorrow", "2026-03-28 10:00", "Sun 29 Mar 09:00"),
        ("tomorrow at 02:30", "2026-03-28 10:00", "Sun 29 Mar 03:30"),
        ("in 1h30", "2026-03-29 01:00", "Sun 29 Mar 03:30"),
        ("at 6", "2026-03-29 01:00", "Sun 29 Mar 06:00"),
        ("tomorrow", "2026-10-24 10:00", "Sun 25 Oct 09:00"),
        ("in half an hour", "2026-10-25 02:45", "Sun 25 Oct 02:15"),
        ("half past six", "2026-10-25 02:45", "Sun 25 Oct 06:30"),
    ],
)
def test_at_the_edges_of_days_years_and_summer_time(said: str, now: str, due: str) -> None:
    """The next one at which people are awake, by the clock on the wall."""
    assert local(said, datetime.fromisoformat(now).replace(tzinfo=BERLIN)) == due


def test_what_is_over_today_is_said() -> None:
    """A day that is named is meant: no reminder comes tomorrow instead."""
    for said in ("today at 3", "today 09:00", "heute Mittag"):
        with pytest.raises(TriggerInvalid, match="in the past"):
            local(said)


def test_a_refusal_names_what_was_not_understood_and_an_example() -> None:
    """One sentence, for the command line and the model."""
    wish = TriggerRequest(at="tomorrow at 8 CET")
    with pytest.raises(TriggerInvalid) as refused:
        parse_request(wish, SATURDAY, zone="UTC", min_interval=timedelta(minutes=1))
    assert str(refused.value) == (
        "I do not understand 'CET' in 'tomorrow at 8 CET'; write for example 'tomorrow at 8'"
    )
    with pytest.raises(
        TriggerInvalid, match=r"'every now and then' as a time; write for example 'every 2 hours'$"
    ):
        local("every now and then")


def test_a_date_with_another_day_of_the_week_is_refused() -> None:
    """One of both is a mistake, and nobody knows which."""
    with pytest.raises(TriggerInvalid, match="2026-12-04 is a Friday"):
        local("Thursday 4 December")


def test_short_words_that_are_days_elsewhere_stay_words() -> None:
    """A German "do" and "so" are names of days before a time only."""
    for said in ("tomorrow do laundry", "every monday and thursday 9:00 do laundry", "at 6pm do laundry"):
        assert reminder_of(said)[1] == "do laundry"


def test_a_long_text_takes_no_time_of_its_own() -> None:
    """Only its beginning is looked at; what stands far behind is text."""
    text = "call mum " * 50_000
    assert split_when(f"in 2 hours {text}")[0] == "in 2 hours"
    with pytest.raises(NotATime):
        read_when(f"tomorrow {text}")


def test_the_zone_of_a_place_is_read() -> None:
    """By the names of the time zone database, in English and as a German adjective; the day is the one there."""
    for said, due in (
        ("9am London time", "Sun 29 Nov 10:00"),
        ("um 9 Uhr Londoner Zeit", "Sun 29 Nov 10:00"),
        ("tomorrow at 9 New York time", "Sun 29 Nov 15:00"),
        ("tomorrow at 9 (New York time)", "Sun 29 Nov 15:00"),
        ("9am Europe/London", "Sun 29 Nov 10:00"),
        ("tomorrow 9am America/New_York", "Sun 29 Nov 15:00"),
        ("9am Eastern time", "Sat 28 Nov 15:00"),
        ("tomorrow 9am Tokyo time", "Sun 29 Nov 01:00"),
    ):
        assert local(said, SATURDAY - timedelta(hours=2)) == due, said
    assert timing_of("every monday 9am London time", SATURDAY, "Europe/Berlin") == Cron(
        "0 9 * * 1", "Europe/London"
    )
    assert reminder_of("at 9am London time: call Jim") == (
        TriggerRequest(at="at 9am London time"),
        "call Jim",
    )
    assert reminder_of("call Jim tomorrow at 9 London time", split_trailing_time)[1] == "call Jim"


def test_what_may_be_a_zone_and_is_unknown_is_asked_back() -> None:
    """A place that the database does not name, or several do; what is no place is text."""
    for said in (
        "9 Uhr Wiener Zeit anrufen",
        "9am london time call Jim",
        "9am Central European time call",
        "9am Europe/Londn call",
        "9am West time call",
    ):
        with pytest.raises(NotATime, match="belongs to the time"):
            reminder_of(said)
    for text in ("bed time", "Essen Zeit", "Jim time", "Berlin/Paris trip", "it is time to go"):
        assert reminder_of(f"at 6pm {text}")[1] == text


def test_bounds_of_a_repetition_are_no_text() -> None:
    """They would be said at every hour of the night."""
    for said in (
        "every 15 minutes between 9 and 17 stretch",
        "every hour from 9 to 17 water",
        "jede Stunde zwischen 9 und 17 Uhr Wasser",
        "every day at 9 until friday pills",
    ):
        with pytest.raises(NotATime, match="belongs to the time"):
            reminder_of(said)
    assert reminder_of("every 2 hours: between meals drink")[1] == "between meals drink"


def test_a_dash_between_time_and_text_is_no_text() -> None:
    """Also the long one of a phone."""
    assert [reminder_of(f"tomorrow 10:00 {dash} milk")[1] for dash in "-–—"] == ["milk"] * 3
    assert reminder_of("tomorrow 10:00: -5 degrees")[1] == "-5 degrees"
