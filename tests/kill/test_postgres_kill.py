"""
The queue in PostgreSQL under SIGKILL of the process that uses it: at the moments and by the oracle of
`test_store_kill.py`. What the dead process was just committing may be committed after its death.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kill.nursery import Nursery
from tests.kill.oracle import problems
from tests.kill.scenario import Scenario
from tests.kill.tally import SEED
from tests.kill.tally import chance as chance_of
from tests.kill.test_gateway_kill import judged, talk
from tests.kill.test_store_kill import MOMENTS, POLICIES, story
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.timeout(900)]


def url_of(server: PostgresServer) -> str:
    """A database with squidbot's tables."""
    return server.with_tables()


def test_killed_twenty_times_nothing_is_lost_or_doubled(queues, postgres: PostgresServer, tmp_path):
    """At named moments and at any moment, several times in one story."""
    chance = chance_of("queue in PostgreSQL")
    kills, number = 0, 0
    names = []
    while kills < 20:
        named = [f"{moment}#{chance.randint(1, 2)}" for moment in chance.sample(MOMENTS, 3)]
        deaths = [*named, chance.uniform(0.03, 0.4), chance.uniform(0.03, 0.4)]
        policy = POLICIES[number % 2]
        url = url_of(postgres)
        names.append(url.rpartition("/")[2])
        killed, wrong = story(
            queues, tmp_path / str(number), deaths, seed=SEED + number, policy=policy, url=url
        )
        assert not wrong, (number, deaths, wrong)
        kills += killed
        number += 1
        assert number < 20, "lives end before they can be killed"
    with postgres.admin() as db:
        query = "SELECT sum(deadlocks) FROM pg_stat_database WHERE datname = ANY(%s)"  # other tests make some
        assert db.execute(query, (names,)).fetchone() == (0,)


def test_the_oracle_sees_a_defect(queues, postgres: PostgresServer, tmp_path):
    """The control: messages that are acknowledged before they are accepted are lost."""
    _, wrong = story(
        queues, tmp_path / "broken", ["inbox.accept.before#2"], seed=2, policy="key", control="ack-first",
        url=url_of(postgres),
    )  # fmt: skip
    assert any("is lost" in problem for problem in wrong), wrong


@pytest.mark.parametrize("seed", range(3))
def test_the_whole_gateway_is_killed_at_random_moments(
    seed: int, nursery: Nursery, postgres: PostgresServer, tmp_path: Path
) -> None:
    """
    People keep talking while it is killed again and again: one answer each, in order, no tool twice, each line
    once in the history of the database, no history in the home; one of them consolidates meanwhile.
    """
    chance = chance_of(f"gateway on PostgreSQL {seed}")
    world = Scenario(
        tmp_path,
        nursery,
        policy=("same_key", "probe", "review")[seed],
        queue=chance.choice(["each", "merge"]),
        pause_s=0.02,
        consolidate_above=(0, 4, 0)[seed],
        store=url_of(postgres),
    )
    lives = 0
    while world.deaths < 10:
        world.burst(chance, chance.randint(3, 12))
        ended = world.live(kill_after_s=chance.uniform(0.05, 0.8), seed=chance.random())
        assert ended in (0, -signal.SIGKILL), world.log()[-4000:]
        lives += 1
        assert lives < 100, "it was never hit"
    world.live_until_quiet()
    judged(world)
    with postgres.admin(world.run.store.rpartition("/")[2]) as db:
        found = db.execute("SELECT count(*) FROM squidbot.all_consolidation").fetchone()
        assert found is not None and (found[0] > 0) == (seed == 1)


def test_a_simpler_gateway_is_found_out(nursery: Nursery, postgres: PostgresServer, tmp_path: Path) -> None:
    """The control: one that forgets which steps it has done lets a tool run twice."""
    world = Scenario(tmp_path, nursery, control="forgets_steps", store=url_of(postgres))
    talk(world)
    assert world.live(die="turns.complete.before") == -signal.SIGKILL
    world.live_until_quiet()
    assert any("the tool ran 2 times" in problem for problem in problems(world.evidence()))
