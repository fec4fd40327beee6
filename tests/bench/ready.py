"""From the start of the process until ``/readyz`` says that both channels are connected and caught up."""

from __future__ import annotations

import subprocess
import time

from tests.bench.rig import ROOT, Rig, child_environment
from tests.bench.table import Figure, Goal, median

_FLOOR = "import aioimaplib, aiohttp, nio"


def measure(rig: Rig) -> list[Figure]:
    """Start and stop one daemon several times, and beside it a Python that imports only what both need."""
    daemon = rig.daemon()
    rig.say("starting the daemon again and again")
    first_s = daemon.start()
    daemon.stop()
    ready, floor, idle = [], [], []
    for _ in range(2 if rig.quick else 5):
        floor.append(_python(rig, _FLOOR))
        idle.append(_python(rig, "pass"))
        ready.append(daemon.start())
        daemon.stop()
    return [
        Figure(
            f"from start to ready, Matrix and mail connected (median of {len(ready)})",
            median(ready),
            "s",
            Goal("<", 1.5),
            floor=median(floor),
            floor_is="python, importing nio, aiohttp and aioimaplib",
            note=f"from {min(ready):.2f} to {max(ready):.2f} s; python alone {median(idle):.2f} s",
        ),
        Figure("the first start on a new home, with both logins", first_s, "s"),
    ]


def _python(rig: Rig, code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([rig.python, "-c", code], cwd=ROOT, env=child_environment(), check=True)
    return time.perf_counter() - begun
