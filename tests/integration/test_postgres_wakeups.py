"""The signals of the queue in PostgreSQL: the same tests as those of the embedded one."""

from __future__ import annotations

import pytest

from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.postgres_server import PostgresServer
from tests.unit.gateway.store.test_wakeups import (  # noqa: F401 - run here with the house below
    Harness,
    test_a_draft_is_told_to_whoever_asks_the_owner,
    test_a_job_that_is_due_sooner_is_told,
    test_lines_of_every_history_are_told,
    test_nothing_is_told_of_what_did_not_happen,
    test_what_a_person_lets_in_or_tries_again_is_told,
    test_what_came_is_told_with_whose_it_is,
    test_what_cannot_be_sent_yet_is_not_told,
    test_what_waits_is_told_with_when_it_is_due,
    test_what_was_behind_is_told,
    test_what_was_spent_is_told,
    test_whatever_can_be_sent_is_told,
    test_who_gives_a_turn_back_is_not_told_of_it,
    test_whoever_runs_a_turn_is_told_that_it_was_taken_away,
)

pytestmark = [pytest.mark.integration]


@pytest.fixture
async def house(postgres: PostgresServer):
    url = postgres.with_tables()
    wakeups, clock = Wakeups(), ManualClock()
    async with await PostgresQueue.open(url, clock=clock, wakeups=wakeups) as store:
        yield Harness(store, wakeups, clock)
