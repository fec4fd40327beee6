"""
The durable queue, killed at every boundary of its port and at random moments, and started again until done.

The oracle looks at what really happened: nothing lost, nothing seen twice, everything in order, no tool run
twice, each history line once, and a sound database. `CONTROLS` are defects that it must see.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kill.nursery import Nursery
from tests.kill.store_child import ADAPTERS, POINTS, Life
from tests.kill.store_oracle import problems
from tests.kill.tally import SEED, TALLY
from tests.kill.tally import chance as chance_of

pytestmark = [pytest.mark.kill, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("SQUIDBOT_KILLS", "12"))
ROOT = Path(__file__).parents[2]
LIVES = 60
CALLS = [
    "maintenance.recover",
    "inbox.position",
    "inbox.accept",
    "turns.open_sessions",
    "turns.claim",
    "turns.steps",
    "turns.record_step_start",
    "turns.record_step_result",
    "turns.retry",
    "turns.complete",
    "turns.dead_letter",
    "turns.due_in",
    "journal.lines",
    "journal.delete_filed_lines",
    "outbox.next_sends",
    "outbox.next_send_in",
    "outbox.sending",
    "outbox.uncertain",
    "outbox.record_failure",
    "outbox.record_send",
    "maintenance.stats",
]
MOMENTS = [f"{call}.{when}" for call in CALLS for when in ("before", "after")] + POINTS
POLICIES = ("key", "probe")
MISSED_AT_MOST = 0.5


def story(
    nursery: Nursery, folder: Path, deaths: Sequence[str | float], *, seed: int, policy: str, **more: str
) -> tuple[int, list[str]]:
    """
    Live until all is done, and die meanwhile: at named moments (texts) or after seconds (numbers).

    Returns how often it was killed, and what the oracle found.
    """
    folder.mkdir(parents=True)
    kills, waiting = 0, list(deaths)
    for _ in range(LIVES):
        life = Life(str(folder), seed, policy, **more)
        if waiting:
            death = waiting.pop(0)
            named = {"strike": death} if isinstance(death, str) else {"kill_after_s": death}
            life = Life(str(folder), seed, policy, **named, **more)
        end = nursery.live(life)
        kills += end == -signal.SIGKILL
        TALLY["of the queue alone"] += end == -signal.SIGKILL
        if end == 0 and not waiting:
            return kills, problems(folder, seed=seed, policy=policy)
        if end not in (0, -signal.SIGKILL):
            return kills, [f"a life ended with {end}", (folder / "log").read_text()[-3000:]]
    return kills, ["it was not done in time"]


@pytest.mark.smoke
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_killed_at_named_moments(queues, tmp_path, adapter):
    """Dying before or after any call of the port, twice in a row, costs nobody anything."""
    chance = chance_of("named moments of the queue")
    stories = [(moment, policy) for moment in MOMENTS for policy in POLICIES]
    chance.shuffle(stories)
    kills = 0
    chosen = stories[: max(4, KILLS // 3)]
    for number, (moment, policy) in enumerate(chosen):
        deaths = [f"{moment}#{chance.randint(1, 2)}", f"{moment}#1"]
        killed, wrong = story(
            queues, tmp_path / str(number), deaths, seed=SEED + number, policy=policy, adapter=adapter
        )
        assert not wrong, (deaths, policy, wrong)
        kills += killed
    # A second life may have nothing left that leads to its moment.
    assert kills >= len(chosen) * 2 * (1 - MISSED_AT_MOST)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_killed_at_random_moments(queues, tmp_path, adapter, policy):
    """Dying at any moment, several times in one story, costs nobody anything."""
    chance = chance_of(f"queue {policy}")
    kills, number, wanted = 0, 0, max(2, KILLS // 6)
    while kills < wanted:
        deaths = [chance.uniform(0.005, 0.12) for _ in range(4)]
        killed, wrong = story(
            queues, tmp_path / str(number), deaths, seed=SEED + number, policy=policy, adapter=adapter
        )
        assert not wrong, (number, deaths, wrong)
        kills += killed
        number += 1
        assert number < 20 + KILLS, "lives end before they can be killed"


def test_every_moment_exists(queues, tmp_path):
    """An ordinary life passes each named moment, so that none of the kills above is an empty one."""
    kills, wrong = story(queues, tmp_path / "story", [], seed=1, policy="key")
    assert (kills, wrong) == (0, [])
    passed = set((tmp_path / "story" / "trace").read_text().split())
    assert passed >= set(MOMENTS)


CONTROLS = [
    ("ack-first", "inbox.accept.before#2", "key", "is lost"),
    ("memory-dedupe", "upstream.ack.before#2", "key", "was answered as"),
    ("send-first", "turns.complete.before#3", "key", "was answered as"),
    ("fresh-keys", "provider.taken#2", "key", "was answered as"),
    ("no-probe", "provider.taken#2", "probe", "was answered as"),
    ("forget-steps", "turns.complete.before#1", "key", "the tool ran"),
    ("history-twice", "journal.delete_filed_lines.before#2", "key", "the history has"),
    ("newest-first", "", "key", "out of order"),
]


@pytest.mark.parametrize(
    ("control", "moment", "policy", "seen"), CONTROLS, ids=[each[0] for each in CONTROLS]
)
def test_the_oracle_sees_a_defect(queues, tmp_path, control, moment, policy, seen):
    """With the defect the oracle finds it; without, the same death leaves nothing to find."""
    deaths = [moment] if moment else []
    _, wrong = story(queues, tmp_path / "sound", deaths, seed=2, policy=policy)
    assert not wrong
    _, wrong = story(queues, tmp_path / "broken", deaths, seed=2, policy=policy, control=control)
    assert any(seen in problem for problem in wrong), wrong
