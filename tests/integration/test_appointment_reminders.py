"""What check-ins tell of the calendar: each appointment once, over restarts and outages, and without a model."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from devservers.calendars import CalendarServer
from gateway.proactive import appointment_reminders
from gateway.proactive.appointment_reminders import AppointmentReminders
from tests.calendar_world import event, started
from tests.clock import EPOCH, ManualClock
from tests.proactive_world import ANN, Harness, house

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def calendar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServer]:
    yield from started("radicale", tmp_path_factory)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch, calendar: CalendarServer) -> list[str]:
    """What each look that was made came to; an empty calendar."""
    found, look = [], AppointmentReminders.check_once

    async def looked(self: AppointmentReminders) -> None:
        try:
            await look(self)
        except Exception as error:
            found.append(type(error).__name__)
            raise
        found.append("")

    monkeypatch.setattr(AppointmentReminders, "check_once", looked)
    monkeypatch.setattr(appointment_reminders, "_CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(appointment_reminders, "_RETRY_S", 0.05)
    for name in calendar.names():
        calendar.request("DELETE", f"{calendar.home}main/{name}")
    return found


def world(root: Path, calendar: CalendarServer, clock: ManualClock, chat: Any = None, **dav: Any) -> Any:
    account = {"url": calendar.url, "username": "you", "password": calendar.password, **dav}
    beat = {"interval_minutes": 30.0}
    there = {} if chat is None else {"chat": chat}
    return house(root, checklist=None, heartbeat=beat, clock=clock, more={"tools": {"dav": account}}, **there)


def put(calendar: CalendarServer, uid: str, minutes: float, *lines: str, summary: str = "Dentist") -> None:
    start = f"DTSTART:{EPOCH + timedelta(minutes=minutes):%Y%m%dT%H%M%SZ}"
    calendar.put(
        f"{calendar.home}main/{uid}.ics", event(uid, start, "DURATION:PT1H", *lines, summary=summary)
    )


def alarm(trigger: str) -> tuple[str, ...]:
    return ("BEGIN:VALARM", "ACTION:DISPLAY", "DESCRIPTION:x", f"TRIGGER:{trigger}", "END:VALARM")


async def after_a_look(home: Harness, looks: list[str]) -> list[str]:
    """What the owner was told, after two more looks."""
    count = len(looks)
    await home.until(lambda: len(looks) >= count + 2)
    return [each.text for each in home.alerts()]


async def test_what_is_near_is_told_once(calendar: CalendarServer, looks: list[str], tmp_path: Path) -> None:
    """Neither the rest of the day nor a restart says anything again, and no model is asked."""
    put(calendar, "near", 30, "LOCATION:Main `St`", summary="Dentist [now](http://evil.test)")
    put(calendar, "later", 85, summary="Tea")
    put(calendar, "gone", 20, "STATUS:CANCELLED", summary="Gone")
    put(calendar, "free", 20, "TRANSP:TRANSPARENT", summary="Birthday")
    clock = ManualClock()
    async with world(tmp_path, calendar, clock) as home:
        await home.asked(ANN, "hello")
        await home.until(lambda: len(home.alerts()) == 1)
        (told,) = await after_a_look(home, looks)
        assert "`Dentist [now](http://evil.test)` (`Main 'St'`)" in told
        assert "\n" not in told
        clock.advance(30 * 60)
        assert len(await after_a_look(home, looks)) == 1
        assert len(home.model.asked) == 1
    async with world(tmp_path, calendar, clock) as home:
        assert await after_a_look(home, looks) == []
        clock.advance(45 * 60)
        await home.until(lambda: len(home.alerts()) == 1)
        (told,) = await after_a_look(home, looks)
        assert "`Tea`" in told
        assert home.model.asked == []


async def test_an_alarm_says_when(calendar: CalendarServer, looks: list[str], tmp_path: Path) -> None:
    """A day before, and the start is not told again."""
    put(calendar, "alarm", 24 * 60 + 45, *alarm("-P1D"), summary="Flight")
    put(calendar, "other", 5, summary="Tea")
    clock = ManualClock()
    async with world(tmp_path, calendar, clock) as home:
        await home.asked(ANN, "hello")
        await home.until(lambda: len(home.alerts()) == 1)
        assert "Tea" in (await after_a_look(home, looks))[0]
        clock.advance(30 * 60)
        await home.until(lambda: len(home.alerts()) == 2)
        assert "Flight" in (await after_a_look(home, looks))[1]
        clock.advance(24 * 3600)
        assert len(await after_a_look(home, looks)) == 2


async def test_more_than_a_few_at_once_are_all_told(
    calendar: CalendarServer, looks: list[str], tmp_path: Path
) -> None:
    """Those beyond the limit come in one message, once."""
    for number in range(23):
        put(calendar, f"n{number}", 20, summary=f"Talk {number:02}")
    async with world(tmp_path, calendar, ManualClock()) as home:
        await home.asked(ANN, "hello")
        await home.until(lambda: len(home.alerts()) == 21)
        told = "\n".join(await after_a_look(home, looks))
        assert [told.count(f"`Talk {number:02}`") for number in range(23)] == [1] * 23


async def test_after_a_restart_more_are_told_and_none_again(
    calendar: CalendarServer, looks: list[str], tmp_path: Path
) -> None:
    """In the same check-in: one that begins before all others, and one that begins last."""
    for number in range(23):
        put(calendar, f"n{number}", 20, summary=f"Talk {number:02}")
    clock = ManualClock()
    async with world(tmp_path, calendar, clock) as home:
        chat = home.chat
        await home.asked(ANN, "hello")
        await home.until(lambda: len(home.alerts()) == 21)
    put(calendar, "early", 10, summary="Talk 23")
    put(calendar, "late", 25, summary="Talk 24")
    async with world(tmp_path, calendar, clock, chat=chat) as home:
        await home.until(lambda: "Talk 24" in "".join(each.text for each in home.alerts()))
        told = "\n".join(await after_a_look(home, looks))
        assert [told.count(f"`Talk {number:02}`") for number in range(25)] == [1] * 25


async def test_an_outage_is_made_up_for(calendar: CalendarServer, looks: list[str], tmp_path: Path) -> None:
    """The server is away at the check-in, and back before the next."""
    put(calendar, "near", 20)
    calendar.kill()
    async with world(tmp_path, calendar, ManualClock()) as home:
        await home.asked(ANN, "hello")
        await home.until(lambda: "WebFailed" in looks or "ToolFailed" in looks)
        assert home.alerts() == []
        calendar.launch()
        await home.until(lambda: len(home.alerts()) == 1)


@pytest.mark.parametrize("off", [{"remind": False}, {"allow": "none"}])
async def test_it_can_be_switched_off(
    calendar: CalendarServer, looks: list[str], tmp_path: Path, off: dict[str, Any]
) -> None:
    put(calendar, "near", 20)
    async with world(tmp_path, calendar, ManualClock(), **off) as home:
        await home.asked(ANN, "hello")
        assert looks == []
        assert home.alerts() == []


async def test_nothing_near_is_nothing_said(
    calendar: CalendarServer, looks: list[str], tmp_path: Path
) -> None:
    put(calendar, "later", 300)
    clock = ManualClock()
    async with world(tmp_path, calendar, clock) as home:
        await home.asked(ANN, "hello")
        for _ in range(3):
            assert await after_a_look(home, looks) == []
            clock.advance(30 * 60)
        assert len(home.model.asked) == 1
        assert set(looks) == {""}
