"""Times that come back after months: short months, leap days, summer time, and what is asked back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gateway.proactive.jobs.time_grammar import split_trailing_time
from gateway.proactive.jobs.time_syntax import Ambiguous
from gateway.proactive.jobs.trigger_parsing import TriggerRequest, format_timing, parse_request, timing_of
from gateway.proactive.jobs.triggers import TriggerInvalid, newest_due, next_after, parse_timing
from gateway.turns.commands.reminder_command import reminder_of

BERLIN = ZoneInfo("Europe/Berlin")


def runs(said: str, now: str, count: int = 4, zone: str = "Europe/Berlin") -> list[str]:
    """The first runs of a time that is said at ``now``, on the wall clock, from what is stored."""
    wall = ZoneInfo(zone)
    after: datetime | None = datetime.fromisoformat(now).replace(tzinfo=wall).astimezone(UTC)
    assert after is not None
    timing = parse_timing(str(timing_of(said, after, zone)))
    found = []
    for _ in range(count):
        assert after is not None
        after = next_after(timing, after)
        assert after is not None
        found.append(f"{after.astimezone(wall):%Y-%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("said", "now", "due"),
    [
        ("every 3 months", "2026-11-28 15:30", "2027-02-28 2027-05-28 2027-08-28 2027-11-28"),
        ("alle 3 Monate", "2026-11-28 15:30", "2027-02-28 2027-05-28 2027-08-28 2027-11-28"),
        ("jeden dritten Monat", "2026-11-28 15:30", "2027-02-28 2027-05-28 2027-08-28 2027-11-28"),
        ("every 3 months", "2026-08-31 15:30", "2026-11-30 2027-02-28 2027-05-31 2027-08-31"),
        ("every 3 months on the 31st", "2026-08-31 15:30", "2026-09-30 2026-12-31 2027-03-31 2027-06-30"),
        ("every 3 months", "2026-11-30 08:00", "2027-02-28 2027-05-30 2027-08-30 2027-11-30"),
        ("every quarter", "2027-11-29 08:00", "2028-02-29 2028-05-29 2028-08-29 2028-11-29"),
        ("every other month on the 1st", "2026-11-28 15:30", "2026-12-01 2027-02-01 2027-04-01 2027-06-01"),
        ("every 5 months", "2026-11-28 15:30", "2027-04-28 2027-09-28 2028-02-28 2028-07-28"),
        ("alle halbe Jahr", "2026-11-28 15:30", "2027-05-28 2027-11-28 2028-05-28 2028-11-28"),
        ("every year", "2028-02-29 15:30", "2029-02-28 2030-02-28 2031-02-28 2032-02-29"),
        ("every 2 years on 3 May", "2026-11-28 15:30", "2027-05-03 2029-05-03 2031-05-03 2033-05-03"),
        ("every first monday", "2026-11-28 15:30", "2026-12-07 2027-01-04 2027-02-01 2027-03-01"),
        ("jeden letzten Freitag", "2026-11-28 15:30", "2026-12-25 2027-01-29 2027-02-26 2027-03-26"),
        ("alle 2 Monate am ersten Montag", "2026-11-28 15:30", "2026-12-07 2027-02-01 2027-04-05 2027-06-07"),
    ],
)
def test_it_comes_back_on_the_same_day_or_the_last_one(said: str, now: str, due: str) -> None:
    """At nine by the clock on the wall, in winter and in summer; without a day it is counted from today."""
    assert runs(said, now) == [f"{day} 09:00" for day in due.split()]


@pytest.mark.parametrize(
    ("said", "now", "zone", "due"),
    [
        # in the night to 2027-03-28 the hour from 2 to 3 is left out, to 2026-10-25 it comes twice
        ("every last sunday of the month at 02:30", "2027-03-01 10:00", "Europe/Berlin", "2027-03-28 03:00"),
        ("every last sunday of the month at 02:30", "2026-10-01 10:00", "Europe/Berlin", "2026-10-25 02:30"),
        ("every month on the 1st at 00:00", "2026-11-30 23:30", "Pacific/Auckland", "2026-12-01 00:00"),
        ("every 3 months", "2026-12-01 00:30", "Pacific/Auckland", "2027-03-01 09:00"),
    ],
)
def test_the_day_is_that_of_the_zone(said: str, now: str, zone: str, due: str) -> None:
    """Where it is tomorrow already, tomorrow counts."""
    assert runs(said, now, 1, zone) == [due]


def test_what_was_missed_comes_once() -> None:
    """After a year without power the newest of four is due."""
    now = datetime(2026, 11, 28, 15, 30, tzinfo=BERLIN)
    timing = timing_of("every 3 months", now, "Europe/Berlin")
    later = datetime(2027, 12, 1, tzinfo=BERLIN)
    assert newest_due(timing, now.astimezone(UTC), later) == datetime(2027, 11, 28, 8, tzinfo=UTC)
    assert newest_due(timing, now.astimezone(UTC), datetime(2026, 12, 29, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("every 3 months", "every 3 months on day 28 at 09:00 (Europe/Berlin)"),
        ("every 2 months on the last friday", "every 2 months on the last Friday at 09:00 (Europe/Berlin)"),
        ("yearly", "every year on 28 November at 09:00 (Europe/Berlin)"),
        ("every 2 years at 18:00", "every 2 years on 28 November at 18:00 (Europe/Berlin)"),
        ("every 2 weeks on monday", "every 2 weeks on Monday at 09:00 (Europe/Berlin)"),
    ],
)
def test_it_is_told_in_words(said: str, words: str) -> None:
    """As it was understood."""
    now = datetime(2026, 11, 28, 15, 30, tzinfo=BERLIN)
    assert format_timing(timing_of(said, now, "Europe/Berlin"), "Europe/Berlin") == words


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("every third friday", ["every 3 weeks on friday", "the third friday of every month"]),
        ("jeden vierten Montag", ["every 4 weeks on monday", "the fourth monday of every month"]),
        ("the last friday of the month", ["the last friday of every month"]),
        ("first friday", ["the first friday of every month"]),
        ("am ersten Montag im Monat", ["the first monday of every month"]),
    ],
)
def test_what_can_be_two_things_is_asked_with_lines_to_copy(said: str, lines: list[str]) -> None:
    """Each can be read."""
    with pytest.raises(Ambiguous) as asked:
        reminder_of(f"{said} yoga")
    for line in lines:
        assert f"'{line}'" in str(asked.value)
        assert reminder_of(f"{line} yoga")[0].at == line


@pytest.mark.parametrize("said", ["every 11 years", "every 200 months", "every 3 months at midnight"])
def test_what_cannot_be_kept_is_refused(said: str) -> None:
    """Midnight would be that of the day after."""
    wish = TriggerRequest(at=said)
    now = datetime(2026, 11, 28, tzinfo=UTC)
    with pytest.raises(TriggerInvalid, match=r"less than ten years|end of a day"):
        parse_request(wish, now, zone="UTC", min_interval=timedelta(minutes=1))


@pytest.mark.parametrize(
    ("said", "when", "text"),
    [
        ("pay rent every 3 months", "every 3 months", "pay rent"),
        ("Miete jeden letzten Freitag", "jeden letzten Freitag", "Miete"),
        ("fix the lamp on the 3rd floor tomorrow", "tomorrow", "fix the lamp on the 3rd floor"),
    ],
)
def test_it_may_stand_behind_the_text(said: str, when: str, text: str) -> None:
    """An ordinal that counts something else is no time."""
    assert reminder_of(said, split_trailing_time) == (TriggerRequest(at=when), text)
