"""
The durable queue with people who change their minds, killed where that matters and at random moments.

Whatever was accepted ends in exactly one way: an answer, an apology, or somebody's wish that there be none. A
turn that somebody was told is stopped is never answered, a draft is sent once or not at all, and what was let
out of quarantine is answered once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kill.nursery import Nursery
from tests.kill.person_child import POINTS
from tests.kill.person_oracle import problems, rejected_drafts
from tests.kill.store_child import Life
from tests.kill.tally import SEED, TALLY
from tests.kill.tally import chance as chance_of

pytestmark = [pytest.mark.kill, pytest.mark.timeout(1200)]

KILLS = int(os.environ.get("SQUIDBOT_KILLS", "12"))
LIVES = 40
MOMENTS = [
    *POINTS,
    *(
        f"{call}.{when}"
        for call in (
            "inbox.accept",
            "outbox.approve",
            "outbox.reject",
            "inbox.admit",
            "turns.claim",
            "turns.complete",
        )
        for when in ("before", "after")
    ),
    "provider.taken",
    "upstream.ack.before",
]


def story(
    nursery: Nursery, folder: Path, deaths: Sequence[str | float], *, seed: int, control: str = ""
) -> tuple[int, list[str]]:
    """Live until all is done, and die meanwhile; returns how often it was killed, and what is wrong."""
    folder.mkdir(parents=True)
    kills, waiting = 0, list(deaths)
    for _ in range(LIVES):
        death = waiting.pop(0) if waiting else ""
        named = {"strike": death} if isinstance(death, str) else {"kill_after_s": death}
        end = nursery.live(Life(str(folder), seed, "key", story="person", control=control, **named))
        kills += end == -signal.SIGKILL
        TALLY["during edits and withdrawals"] += end == -signal.SIGKILL
        if end == 0 and not waiting:
            return kills, problems(folder, seed=seed)
        if end not in (0, -signal.SIGKILL):
            return kills, [f"a life ended with {end}", (folder / "log").read_text()[-3000:]]
    return kills, ["it was not done in time"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_where_somebody_changes_his_mind(queues, tmp_path, moment):
    """Dying there, and there again in the next life, costs nobody anything, and undoes no decision."""
    kills, seed = 0, 0
    while kills < (2 if KILLS < 100 else 20):
        killed, wrong = story(queues, tmp_path / str(seed), [moment, f"{moment}#2"], seed=seed)
        assert not wrong, (seed, wrong)
        kills, seed = kills + killed, seed + 1
        assert seed < 12 + 10 * kills, f"{moment} is hardly ever passed"


def test_killed_at_random_moments(queues, tmp_path):
    """Dying at any moment, several times in one story, costs nobody anything, and undoes no decision."""
    chance = chance_of("people")
    kills, number, drafts = 0, 0, 0
    while kills < max(6, KILLS // 3):
        deaths = [chance.uniform(0.01, 0.12) for _ in range(4)]
        killed, wrong = story(queues, tmp_path / str(number), deaths, seed=SEED + number)
        assert not wrong, (number, deaths, wrong)
        kills += killed
        drafts += rejected_drafts(tmp_path / str(number))
        number += 1
        assert number < 20 + KILLS, "lives end before they can be killed"
    assert drafts, "nobody has rejected anything"


CONTROLS = [
    ("stops-by-heart", "turn.stopping", "answered all the same"),
    ("approves-anew", "outbox.post.after", "was shown 2 times"),
    ("forgets-notes", "turns.complete.after", "not taken out"),
    ("admits-anew", "inbox.drop.before", "was shown 2 times|the tool ran 2 times"),
]


@pytest.mark.parametrize(("control", "moment", "seen"), CONTROLS, ids=[each[0] for each in CONTROLS])
def test_the_oracle_sees_a_decision_that_is_forgotten(queues, tmp_path, control, moment, seen):
    """A simpler way to stop, to approve and to let in is found out after one death in some story."""
    found: list[str] = []
    for seed in range(12):  # on a busy machine a story may pass the moment by
        if found:
            break
        _, wrong = story(queues, tmp_path / str(seed), [moment], seed=seed, control=control)
        found += [problem for problem in wrong if any(word in problem for word in seen.split("|"))]
    assert found, wrong
