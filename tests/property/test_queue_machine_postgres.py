"""Whatever is asked of the queue in PostgreSQL, in whatever order, it answers like the model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sql.engine import Store, journal_lines
from tests.contract.test_queue_catches import SendsDrafts
from tests.doubles.broken_queue import with_defect
from tests.postgres_server import PostgresServer
from tests.property.queue_rules import StoreMachine
from tests.property.test_queue_machine import ForgetsRetryTimes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
_SETTINGS = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def machine_on(server: PostgresServer, tables: str, kind: type[Store] | None = None) -> type[StoreMachine]:
    """The machine of the embedded queue, each example on a database of its own."""

    class OnPostgres(StoreMachine):
        def __init__(self) -> None:
            super().__init__()
            self.url = server.url(server.new_database(template=tables))

        def open(self) -> None:
            opened = PostgresQueue.open(self.url, clock=self.clock, journal=journal_lines)
            self.store = with_defect(self.run(opened), kind)

        def teardown(self) -> None:
            super().teardown()
            with server.admin() as db:
                db.execute(f"DROP DATABASE {self.url.rpartition('/')[2]} WITH (FORCE)")

    return OnPostgres


def test_it_answers_like_the_model(postgres: PostgresServer, tables: str):
    run_state_machine_as_test(machine_on(postgres, tables), settings=_SETTINGS)


@pytest.mark.parametrize("kind", [ForgetsRetryTimes, SendsDrafts])
def test_the_machine_sees_a_broken_store(postgres: PostgresServer, tables: str, kind: type[Store]):
    """A store with one defect does not get through."""
    found = settings(_SETTINGS, max_examples=300, database=None, phases=[Phase.generate], derandomize=True)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_on(postgres, tables, kind), settings=found)
