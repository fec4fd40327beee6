"""
The queue in PostgreSQL under SIGKILL of the process that uses it: at the moments and by the oracle of
`test_store_kill.py`. What the dead process was just committing may be committed after its death.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.queue.postgres.store import migrate
from tests.kill.tally import SEED
from tests.kill.tally import chance as chance_of
from tests.kill.test_store_kill import MOMENTS, POLICIES, Nursery, story
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all tests of this file."""
    one = Nursery()
    yield one
    one.close()


def url_of(server: PostgresServer) -> str:
    """A database with squidbot's tables."""
    url = server.url(server.new_database())
    migrate(url)
    return url


def test_killed_twenty_times_nothing_is_lost_or_doubled(nursery, postgres: PostgresServer, tmp_path):
    """At named moments and at any moment, several times in one story."""
    chance = chance_of("queue in PostgreSQL")
    kills, number = 0, 0
    while kills < 20:
        named = [f"{moment}#{chance.randint(1, 2)}" for moment in chance.sample(MOMENTS, 3)]
        deaths = [*named, chance.uniform(0.03, 0.4), chance.uniform(0.03, 0.4)]
        policy = POLICIES[number % 2]
        killed, wrong = story(
            nursery, tmp_path / str(number), deaths, seed=SEED + number, policy=policy, url=url_of(postgres)
        )
        assert not wrong, (number, deaths, wrong)
        kills += killed
        number += 1
        assert number < 20, "lives end before they can be killed"
    with postgres.admin() as db:
        assert db.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone() == (0,)


def test_the_oracle_sees_a_defect(nursery, postgres: PostgresServer, tmp_path):
    """The control: messages that are acknowledged before they are accepted are lost."""
    _, wrong = story(
        nursery, tmp_path / "broken", ["inbox.accept.before#2"], seed=2, policy="key", control="ack-first",
        url=url_of(postgres),
    )  # fmt: skip
    assert any("is lost" in problem for problem in wrong), wrong
