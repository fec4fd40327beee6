"""How `squidbot status` names the processes on a database."""

from __future__ import annotations

from gateway.cli.render import _processes
from gateway.queue.lease import told
from gateway.queue.model import Cluster


def test_a_worker_is_named_with_what_it_has_in_hand() -> None:
    """Beside daemons with accounts, and one that stands by."""
    holders = [f"host/{number}/x" for number in range(1, 5)]
    cluster = Cluster(
        holders,
        {"matrix": holders[0], "": holders[0]},
        workers=holders[2:],
        turns={holders[2]: 1, holders[3]: 3},
    )
    report = {"running": True, **told(cluster, configured=["matrix"], here=holders[2])}
    assert _processes(report) == [
        "processes on this database:",
        "  process 1 on host: matrix, heartbeat, jobs and terminal",
        "  process 2 on host: standing by",
        "  process 3 on host (this one): worker, 1 turn in hand",
        "  process 4 on host: worker, 3 turns in hand",
    ]
