"""What `!remind` understands: when, and of what."""

from __future__ import annotations

import pytest

from gateway.proactive.jobs.trigger_parsing import TriggerRequest, format_timing
from gateway.proactive.jobs.triggers import Cron, checked_cron
from gateway.turns.commands.reminders import reminder_of


@pytest.mark.parametrize(
    ("said", "when", "text"),
    [
        ("in 2h call Tom", TriggerRequest(in_minutes=120), "call Tom"),
        ("me in 2 hours to call Tom", TriggerRequest(in_minutes=120), "call Tom"),
        ("in 2h 18:30 train", TriggerRequest(in_minutes=120), "18:30 train"),
        ("every 2 hours drink", TriggerRequest(every_minutes=120), "drink"),
        ("every day take pills", TriggerRequest(every_minutes=1440), "take pills"),
        ("every day 2 pills", TriggerRequest(every_minutes=1440), "2 pills"),
        ("every day 09:00 take pills", TriggerRequest(cron="0 9 * * *"), "take pills"),
        ("every weekday at 8am: stand up", TriggerRequest(cron="0 8 * * 1-5"), "stand up"),
        ("every Sunday 18:30 that it is late", TriggerRequest(cron="30 18 * * 0"), "it is late"),
        ("18:30 call Tom", TriggerRequest(at="18:30"), "call Tom"),
        ("at 9 call Tom", TriggerRequest(at="09:00"), "call Tom"),
        ("12am sleep", TriggerRequest(at="00:00"), "sleep"),
        ("tomorrow 9pm, call", TriggerRequest(at="tomorrow 21:00"), "call"),
        ("friday 9:00 call", TriggerRequest(at="friday 09:00"), "call"),
        ("on Friday at 9am, to call Tom", TriggerRequest(at="friday 09:00"), "call Tom"),
        ("tomorrow at 9 call", TriggerRequest(at="tomorrow 09:00"), "call"),
        ("on 2026-12-24 at 18:00 gifts", TriggerRequest(at="2026-12-24 18:00"), "gifts"),
        ("2026-12-24T9:00 gifts", TriggerRequest(at="2026-12-24 09:00"), "gifts"),
    ],
)
def test_what_is_understood(said: str, when: TriggerRequest, text: str) -> None:
    """A time of the day behind "every day" is when it comes, not what is said then."""
    assert reminder_of(said) == (when, text)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "in 2 hours",
        "tomorrow 09:00",
        "tomorrow 9 call",
        "every 2 days 09:00 x",
        "in 2 days at 9 x",
        "every day 25:00 x",
        "13pm x",
        "9amused x",
        "18:30:00 x",
        "9:5 x",
        "friday 9 call",
        "friday call",
        "freitag 9:00 call",
        "friday 25:00 call",
    ],
)
def test_what_could_be_misread_is_asked_again(said: str) -> None:
    """No time, no text, or a time that would become part of the text: the answer says how to write it."""
    assert reminder_of(said) is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 9 * * *", "every day at 09:00 (Europe/Berlin)"),
        ("30 18 * * 7", "every Sunday at 18:30 (Europe/Berlin)"),
        ("0 8 * * 1-5", "every weekday at 08:00 (Europe/Berlin)"),
        ("*/5 9 * * *", "at */5 9 * * * (Europe/Berlin)"),
        ("0 9 1 * *", "at 0 9 1 * * (Europe/Berlin)"),
    ],
)
def test_repeated_times_are_told_in_words(expression: str, words: str) -> None:
    """An expression of cron is for those who have written one."""
    timing = checked_cron(expression, "Europe/Berlin")
    assert isinstance(timing, Cron)
    assert format_timing(timing, "UTC") == words
