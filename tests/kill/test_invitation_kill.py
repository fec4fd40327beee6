"""
An invitation that is accepted, or answered with another time, whatever moment the process is killed at: in the
calendar once, and one reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from channels.base import Redelivery
from devservers.calendars import CalendarServer
from tests.calendar_world import started
from tests.doubles.loopback import FileLoopbackServer
from tests.kill.conftest import random_kills
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import chance as chance_of
from tests.kill.test_tools_kill import ANN, DECIDING, approve_all, seen
from tests.mail_invitations import OUTLOOK_UID, outlook

RANDOM_KILLS, _ = random_kills()
MOMENTS = [
    f"{name}.{when}"
    for name in (
        "turns.record_step_start",
        "calendar",
        "outbox.post",
        "turns.record_step_result",
        "turns.complete",
        "outbox.record_send",
    )
    for when in ("before", "after")
]
ACCEPT, PROPOSE = "accept", "propose"
WRITTEN = {ACCEPT: ("REPLY", "ACCEPTED"), PROPOSE: ("COUNTER", "TENTATIVE")}
"""The method of the reply, and the state in which it and the calendar have the owner."""


@pytest.fixture(scope="module", params=["radicale", "xandikos"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CalendarServer]:
    yield from started(request.param, tmp_path_factory)


def begin(
    server: CalendarServer, folder: Path, nursery: Nursery, answer: str = ACCEPT, **run: object
) -> Scenario:
    """An empty calendar, and a message that answers an invitation."""
    for name in server.names():
        server.request("DELETE", f"{server.home}main/{name}")
    world = Scenario(
        folder,
        nursery,
        tools=True,
        max_attempts=20,
        calendar=(server.url, server.password),
        invitation=outlook("bob@corp.test", ["owner@mail.test"]),
        **run,
    )
    start = ', "start": "2026-12-02 15:00"' if answer == PROPOSE else ""
    world.say(ANN, f'do answer_invitation {{"file": "0123456789ab", "answer": "{answer}"{start}}}')
    return world


def replies(world: Scenario) -> list[str]:
    """What the organizer has got."""
    server = FileLoopbackServer(world.folder / "mail", redelivery=Redelivery(world.run.policy))
    server.refresh()
    return [each.context.itip for each in server.seen("dm-bob@corp.test")]


def problems(world: Scenario, server: CalendarServer, answer: str = ACCEPT) -> list[str]:
    """What must not be, as seen from outside."""
    found, (method, state) = list[str](), WRITTEN[answer]
    stored = [server.request("GET", f"{server.home}main/{name}")[1] for name in server.names()]
    whole = [re.sub(r"\r?\n[ \t]", "", text) for text in stored]
    if len(stored) != 1 or OUTLOOK_UID not in whole[0] or f"PARTSTAT={state}" not in whole[0]:
        found.append(f"stored: {stored}")
    sent = [(f"METHOD:{method}" in text, text.count(f"PARTSTAT={state}")) for text in replies(world)]
    if sent != [(True, 1)]:
        found.append(f"replies: {replies(world)}")
    world.server.refresh()
    answers = [text for text in seen(world) if text.startswith("re: #1")]
    if len(answers) != 1 or "unknown" in answers[0] or "Error: T" in answers[0]:
        found.append(f"answers: {answers}")
    return found


@pytest.mark.parametrize(
    ("answer", "moment"),
    [*((ACCEPT, one) for one in (*MOMENTS, *DECIDING)), *((PROPOSE, one) for one in MOMENTS)],
)
def test_killed_at_a_moment(
    answer: str, moment: str, server: CalendarServer, nursery: Nursery, tmp_path: Path
) -> None:
    """Before and after the yes; nothing happens before it."""
    world, answered = begin(server, tmp_path, nursery, answer), set[str]()
    world.live(die=moment)
    world.live_until_quiet()
    assert server.names() == []
    assert replies(world) == []
    while approve_all(world, answered):
        for count in (1, 2):
            world.live(die=f"{moment}#{count}")
        world.live_until_quiet()
    assert world.deaths
    assert len(answered) == 1
    assert problems(world, server, answer) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_random(server: CalendarServer, nursery: Nursery, tmp_path: Path) -> None:
    """Seeded moments and kills from outside."""
    chance, story, hits = chance_of("invitations"), 0, 0
    while hits < RANDOM_KILLS:
        story += 1
        assert story < 5 * RANDOM_KILLS
        answer, answered = (ACCEPT, PROPOSE)[story % 2], set[str]()
        world = begin(server, tmp_path / str(story), nursery, answer, pause_s=0.02, seed=story)
        world.live_until_quiet()
        while approve_all(world, answered):
            for _ in range(chance.randint(2, 4)):
                if chance.random() < 0.6:
                    world.live(die=f"{chance.choice(MOMENTS)}#{chance.randint(1, 2)}")
                else:
                    world.live(kill_after_s=chance.uniform(0.3, 4))
            world.live_until_quiet()
        hits += world.deaths
        assert problems(world, server, answer) == [], (story, world.deaths)


@pytest.mark.parametrize("answer", [ACCEPT, PROPOSE])
def test_a_reply_that_does_not_follow_from_the_step_is_found_out(
    answer: str, server: CalendarServer, nursery: Nursery, tmp_path: Path
) -> None:
    """The control: killed between the post and the journal, a second one is sent."""
    world = begin(server, tmp_path, nursery, answer, control="forgets_steps_of_calendars")
    answered = set[str]()
    world.live_until_quiet()
    while approve_all(world, answered):
        world.live(die="turns.record_step_result.before#1")
        world.live_until_quiet()
    assert any("replies" in each for each in problems(world, server, answer))
