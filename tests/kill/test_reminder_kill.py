"""Reminders of appointments with a real calendar, whatever moment the process is killed at: each is told once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from devservers.calendars import CalendarServer
from tests.calendar_world import event, started
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import chance as chance_of
from tests.kill.test_tools_kill import ANN, seen

MOMENTS = [
    f"{name}.{when}"
    for name in (
        "calendar",
        "reminder",
        "reminders",
        "state.swap",
        "outbox.post",
        "outbox.sending",
        "outbox.record_send",
    )
    for when in ("before", "after")
]
LIFE_S = 20.0
APPOINTMENTS = 32
"""More than a check-in tells of one by one."""
BEFORE = 14
"""So many are there at first."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServer]:
    yield from started("radicale", tmp_path_factory)


def begin(server: CalendarServer, folder: Path, nursery: Nursery, **run: object) -> Scenario:
    """An empty calendar, and an owner who can be told."""
    for name in server.names():
        server.request("DELETE", f"{server.home}main/{name}")
    world = Scenario(folder, nursery, tools=True, calendar=(server.url, server.password), reminds=True, **run)
    world.say(ANN, "hello")
    world.live_until_quiet()
    return world


def plan(server: CalendarServer, number: int) -> None:
    """Put an appointment into the calendar that begins in a minute."""
    start = f"DTSTART:{datetime.now(UTC) + timedelta(minutes=1):%Y%m%dT%H%M%SZ}"
    data = event(f"visit-{number}", start, "DURATION:PT1H", summary=f"Visit {number}.")
    server.put(f"{server.home}main/{number}.ics", data)


def told(world: Scenario) -> Counter[str]:
    """How often each appointment was told."""
    return Counter(re.findall(r"Visit (\d+)\.", "\n".join(seen(world))))


def live_until_told(world: Scenario, count: int) -> None:
    """Live without a planned death until so many were told, and once more."""
    for _ in range(10):
        world.live(stays=True, kill_after_s=LIFE_S / 4)
        if len(told(world)) == count:
            break
    world.live(stays=True, kill_after_s=LIFE_S / 4)


@pytest.mark.timeout(1800)
def test_each_appointment_is_told_once(server: CalendarServer, nursery: Nursery, tmp_path: Path) -> None:
    """Each moment at its first passing and at a later one, and kills from outside; another appointment for each."""
    chance, world = chance_of("reminders"), begin(server, tmp_path, nursery)
    deaths = [f"{moment}#{chance.randint(1, 2)}" for moment in MOMENTS for _ in range(2)]
    deaths += [""] * 4
    chance.shuffle(deaths)
    for number in range(BEFORE):
        plan(server, number)
    for number, death in enumerate(deaths, BEFORE):
        if number < APPOINTMENTS:
            plan(server, number)
        world.live(stays=True, die=death, kill_after_s=LIFE_S / 5 if death else chance.uniform(0.3, 3))
    live_until_told(world, APPOINTMENTS)
    assert world.deaths >= len(deaths)
    assert told(world) == {str(number): 1 for number in range(APPOINTMENTS)}


def test_a_reminder_without_a_name_is_told_again(
    server: CalendarServer, nursery: Nursery, tmp_path: Path
) -> None:
    """The control: posted under no name, it is told after each kill."""
    world = begin(server, tmp_path, nursery, control="forgets_reminders")
    plan(server, 1)
    for _ in range(2):
        world.live(stays=True, die="outbox.record_send.after", kill_after_s=LIFE_S)
    live_until_told(world, 1)
    assert told(world)["1"] > 1
