"""How long a person waits for the commands that are typed most often, and for the daemon to end."""

from __future__ import annotations

import subprocess
import time

from tests.bench.rig import ROOT, Rig, child_environment
from tests.bench.table import Figure, Goal, median

_FLOOR_IS = "starting and ending Python"


def measure(rig: Rig) -> list[Figure]:
    """Call each several times in turn with an empty Python, with the daemon running and without it."""
    daemon = rig.daemon()
    daemon.start()
    times = 5 if rig.quick else 15
    home = ("--home", str(daemon.home))
    called = {
        "floor": ("-c", "pass"),
        "help": ("-m", "gateway", "--help"),
        "status": ("-m", "gateway", "status", *home),
    }
    rig.say("calling commands again and again")
    running: dict[str, list[float]] = {name: [] for name in called}
    for _ in range(times):
        for name, words in called.items():
            running[name].append(_took_ms(rig, *words))
    begun = time.perf_counter()
    daemon.stop()
    stopped_s = time.perf_counter() - begun
    alone = [_took_ms(rig, *called["status"]) for _ in range(times)]
    floor = median(running["floor"])
    return [
        Figure("squidbot --help", median(running["help"]), "ms", Goal("<", 150), floor, _FLOOR_IS),
        Figure(
            "squidbot status, daemon running",
            median(running["status"]),
            "ms",
            Goal("<", 200),
            floor,
            _FLOOR_IS,
        ),
        Figure("squidbot status, no daemon", median(alone), "ms", Goal("<", 600), floor, _FLOOR_IS),
        Figure("SIGTERM to the end of the idle daemon", stopped_s, "s", Goal("<", 1)),
    ]


def _took_ms(rig: Rig, *words: str) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [rig.python, *words], cwd=ROOT, env=child_environment(), check=True, stdout=subprocess.DEVNULL
    )
    return (time.perf_counter() - begun) * 1000
