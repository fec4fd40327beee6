"""The durable queue alone, under load; what is measured and how is told in `tests.bench.store`."""

from __future__ import annotations

import json

from tests.bench.rig import Rig, in_child
from tests.bench.table import Figure, Goal


def measure(rig: Rig) -> list[Figure]:
    """200 sessions of 20 messages with a handler of 10 ms, and the same with each fsync 5 ms slower."""
    load = {"sessions": 50} if rig.quick else {}
    rig.say("4,000 messages through the store")
    runs = [in_child("tests.bench.store", json.dumps(load)) for _ in range(1 if rig.quick else 3)]
    plain = max(runs, key=lambda run: run["msg_s"])  # whatever else runs here can only make it slower
    slow = in_child("tests.bench.store", json.dumps(load | {"fsync_delay_s": 0.005}))
    figures = [
        Figure(
            "throughput, from messages to committed answers",
            plain["msg_s"],
            "/s",
            Goal(">=", 3000),
            note=f"the best of {', '.join(str(run['msg_s']) for run in runs)}",
        ),
        Figure("the same until each was sent", plain["msg_s_sent"], "/s"),
        Figure("order violations", sum(run["order_violations"] for run in runs), "", Goal("=", 0)),
        Figure("accepting one: p99", plain["accept_ms"]["p99"], "ms"),
        Figure("processor time of a message", plain["cpu_ms_per_message"], "ms"),
        Figure("resident memory at most", plain["rss_mib"] * 2**20 / 1e6, "MB"),
    ]
    if "skipped" in slow:
        return [*figures, Figure("throughput with 5 ms more per fsync", None, "/s", note=slow["skipped"])]
    return [
        *figures,
        Figure("throughput with 5 ms more per fsync", slow["msg_s"], "/s"),
        Figure("order violations with 5 ms more per fsync", slow["order_violations"], "", Goal("=", 0)),
        Figure("accepting one then: p99", slow["accept_ms"]["p99"], "ms"),
    ]
