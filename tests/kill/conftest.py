"""
What the kill tests share.

``SQUIDBOT_KILLS`` says how many random kills there are (besides those at named moments), ``SQUIDBOT_KILL_SEED``
which moments they hit, and ``SQUIDBOT_KILL_LEDGER`` names the file of a run that can be resumed (``make kill``).
Without ``SQUIDBOT_KILLS`` the sweeps over named moments are sampled, see `_beyond_sample`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kill.scenario import Nursery
from tests.kill.tally import SEED, TALLY, THOROUGH, Ledger

if TYPE_CHECKING:
    from devservers import Credentials, MailPeer, MailServer, Synapse
    from tests.kill.cluster_world import Cluster
    from tests.postgres_server import PostgresServer

HERE = Path(__file__).parent
DEFAULT_KILLS = 20
LEDGER = os.environ.get("SQUIDBOT_KILL_LEDGER", "")
HITS = "sigkills"

_hits: Counter[str] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test below this folder; pytest asks this file about no other."""
    item.add_marker("kill")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not THOROUGH and not any("::" in argument for argument in config.args):
        _leave_out(config, items, _beyond_sample(items))
    ledger = Ledger.read(Path(LEDGER)) if LEDGER else None
    if ledger is not None:
        _leave_out(config, items, {item.nodeid for item in items if item.nodeid in ledger.passed})


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: set[str]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def _beyond_sample(items: list[pytest.Item]) -> set[str]:
    """
    Return the cases of sweeps over a parameter ``moment`` that only ``make kill`` runs.

    A call finds the same state before itself as after the call before, so of ``X.before`` and ``X.after`` the second
    stays. What is swept besides, as the number of the passing, is dealt to the moments in turn. Controls are no sweep.
    """
    sweeps: dict[str, list[Any]] = {}
    for item in items:
        call = getattr(item, "callspec", None)
        if call and isinstance(call.params.get("moment"), str) and item.path.is_relative_to(HERE):
            if "control" not in call.params:
                sweeps.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out: set[str] = set()
    for cases in sweeps.values():
        moments = {case.callspec.params["moment"]: case.callspec.indices["moment"] for case in cases}
        kept = sorted(
            place
            for moment, place in moments.items()
            if ".before" not in moment or moment.replace(".before", ".after") not in moments
        )
        others = [name for name in cases[0].callspec.indices if name != "moment"]
        counts = {name: 1 + max(case.callspec.indices[name] for case in cases) for name in others}
        for case in cases:
            place = case.callspec.indices["moment"]
            if place not in kept or any(
                (kept.index(place) - case.callspec.indices[name]) % counts[name] for name in others
            ):
                left_out.add(case.nodeid)
    return left_out


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


@pytest.fixture(scope="session")
def queues() -> Iterator[Nursery]:
    """Forks queues without a gateway; one for all tests."""
    with Nursery("tests.kill.store_child") as one:
        yield one
