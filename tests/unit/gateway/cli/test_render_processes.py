"""How `squidbot status` names the processes on a database."""

from __future__ import annotations

from gateway.cli.render import _processes
from gateway.queue.lease import told
from gateway.queue.model import Cluster


def test_each_process_is_named_with_its_accounts() -> None:
    """Also one that stands by."""
    holders = ["host/1/x", "host/2/x"]
    cluster = Cluster(holders, {"matrix": holders[0], "": holders[0]})
    report = {"running": True, **told(cluster, configured=["matrix"], here=holders[1])}
    assert _processes(report) == [
        "processes on this database:",
        "  process 1 on host: matrix, heartbeat, jobs and terminal",
        "  process 2 on host (this one): standing by",
    ]
