"""An appointment, whatever moment the process is killed at: made once, changed once, cancelled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devservers.calendars import CalendarServer
from tests.calendar_world import event, started
from tests.kill.conftest import random_kills
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import chance as chance_of
from tests.kill.test_tools_kill import ANN, PLACE, approve_all, seen

RANDOM_KILLS, _ = random_kills()
MOMENTS = [
    "model.answered",
    *(
        f"{name}.{when}"
        for name in ("turns.record_step_start", "calendar", "turns.record_step_result", "turns.complete")
        for when in ("before", "after")
    ),
]
OLD, GONE = "DTSTART:20261202T120000Z", "DTSTART:20261202T140000Z"


@pytest.fixture(scope="module", params=["radicale", "xandikos"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CalendarServer]:
    yield from started(request.param, tmp_path_factory)


def begin(server: CalendarServer, folder: Path, nursery: Nursery, **run: object) -> Scenario:
    """A calendar with two appointments, and a message that makes, changes and cancels one each."""
    for name in server.names():
        server.request("DELETE", f"{server.home}main/{name}")
    server.put(f"{server.home}main/old.ics", event("old", OLD, "DURATION:PT1H", summary="Lunch"))
    server.put(f"{server.home}main/gone.ics", event("gone", GONE, "DURATION:PT1H", summary="Tea"))
    world = Scenario(
        folder, nursery, tools=True, max_attempts=20, calendar=(server.url, server.password), **run
    )
    world.say(
        ANN,
        'do calendar {"action": "create", "summary": "Dentist", "start": "2026-12-03 09:30"};'
        ' calendar {"action": "change", "id": "main/old.ics", "summary": "Brunch"};'
        ' calendar {"action": "cancel", "id": "main/gone.ics"}',
    )
    return world


def problems(world: Scenario, server: CalendarServer) -> list[str]:
    """What must not be, as seen from outside."""
    found = []
    names = server.names()
    made = [name for name in names if name.startswith("squidbot-")]
    if len(made) != 1:
        found.append(f"{len(made)} appointments were made")
    if "gone.ics" in names:
        found.append("the cancelled one is there")
    changed = server.request("GET", f"{server.home}main/old.ics")[1]
    if "SUMMARY:Brunch" not in changed or "SEQUENCE:1" not in changed:
        found.append(f"not changed once: {changed}")
    world.server.refresh()
    answers = [each.text for each in world.server.seen(PLACE) if each.text.startswith("re: #1")]
    if len(answers) != 1 or "unknown" in answers[0] or "Error" in answers[0]:
        found.append(f"answers: {answers}")
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_moment(moment: str, server: CalendarServer, nursery: Nursery, tmp_path: Path) -> None:
    """Three deaths at the same moment, later each time."""
    world = begin(server, tmp_path, nursery)
    for count in (1, 2, 3):
        world.live(die=f"{moment}#{count}")
    world.live_until_quiet()
    assert world.deaths
    assert problems(world, server) == []


def test_killed_after_what_was_approved(server: CalendarServer, nursery: Nursery, tmp_path: Path) -> None:
    """Each change is asked about once and shown as it will be; the version that was approved is gone after it."""
    world, answered = begin(server, tmp_path, nursery, ask="calendar"), set[str]()
    world.live_until_quiet()
    while approve_all(world, answered):
        world.live(die="calendar.after#1")
        world.live_until_quiet()
    assert world.deaths == 3
    assert len(answered) == 3
    asked = "\n".join(seen(world))
    assert all(
        each in asked for each in ("Dentist", "Thu 2026-12-03 09:30", "Lunch", "Brunch", "Tea", "(gone)")
    )
    assert problems(world, server) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_random(server: CalendarServer, nursery: Nursery, tmp_path: Path) -> None:
    """Seeded moments and kills from outside."""
    chance, story, hits = chance_of("calendars"), 0, 0
    while hits < RANDOM_KILLS:
        story += 1
        assert story < 5 * RANDOM_KILLS
        world = begin(server, tmp_path / str(story), nursery, pause_s=0.02, seed=story)
        for _ in range(chance.randint(2, 4)):
            if chance.random() < 0.6:
                world.live(die=f"{chance.choice(MOMENTS)}#{chance.randint(1, 4)}")
            else:
                world.live(kill_after_s=chance.uniform(0.3, 4))
        world.live_until_quiet()
        hits += world.deaths
        assert problems(world, server) == [], (story, world.deaths)


def test_names_that_do_not_follow_from_the_step_are_found_out(
    server: CalendarServer, nursery: Nursery, tmp_path: Path
) -> None:
    """The control: killed between the server's yes and the journal, a second one is made."""
    world = begin(server, tmp_path, nursery, control="forgets_steps_of_calendars")
    world.live(die="calendar.after#1")
    world.live_until_quiet()
    assert "2 appointments were made" in problems(world, server)
