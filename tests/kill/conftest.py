"""
What the kill tests share.

``SQUIDBOT_KILLS`` says how many random kills there are (besides those at named moments), ``SQUIDBOT_KILL_SEED``
which moments they hit, and ``SQUIDBOT_KILL_LEDGER`` names the file of a run that can be resumed (``make kill``).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kill.scenario import Nursery
from tests.kill.tally import SEED, TALLY, Ledger

if TYPE_CHECKING:
    from devservers import Credentials, MailPeer, MailServer, Synapse
    from tests.kill.cluster_world import Cluster
    from tests.postgres_server import PostgresServer

HERE = Path(__file__).parent
DEFAULT_KILLS = 20
LEDGER = os.environ.get("SQUIDBOT_KILL_LEDGER", "")
HITS = "sigkills"

_hits: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("kill")
    ledger = Ledger.read(Path(LEDGER)) if LEDGER else None
    if ledger is not None:
        done = [item for item in items if item.nodeid in ledger.passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in ledger.passed]


def random_kills() -> tuple[int, int]:
    """How many random kills there shall be: on the loopback server, and on the real ones."""
    wanted = int(os.environ.get("SQUIDBOT_KILLS", DEFAULT_KILLS))
    real = max(2, wanted // 10)
    return max(2, wanted - real), real


@pytest.fixture
def cluster_server(postgres: PostgresServer) -> PostgresServer:
    """The database of `cluster`; whoever does something to it has one of its own."""
    return postgres


@pytest.fixture
def cluster(
    synapse: Synapse,
    mail_server: MailServer,
    cluster_server: PostgresServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_mailbox: Callable[[str], MailPeer],
    tmp_path: Path,
) -> Iterator[Cluster]:
    """Real daemons on one database, between a real Synapse and a real mail server."""
    from tests.kill.cluster_world import Cluster

    made = Cluster(synapse, mail_server, cluster_server, fresh_credentials, fresh_mailbox, tmp_path)
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep with the test's report how many SIGKILLs hit in it, also for reports that cross processes."""
    before = TALLY.copy()
    try:
        return (yield)
    finally:
        item.user_properties.append((HITS, dict(TALLY - before)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" or "PYTEST_XDIST_WORKER" in os.environ:
        return
    properties: dict[str, Any] = dict(report.user_properties)
    if HITS in properties:
        _hits.update(properties[HITS])
        if report.passed and LEDGER and (ledger := Ledger.read(Path(LEDGER))) is not None:
            ledger.note(report.nodeid, properties[HITS])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _hits:
        named = ", ".join(f"{count} {what}" for what, count in sorted(_hits.items()))
        terminalreporter.write_line(f"SIGKILLs that hit: {sum(_hits.values())} ({named}); seed {SEED}")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks gateways; one for all tests."""
    with Nursery() as one:
        yield one
