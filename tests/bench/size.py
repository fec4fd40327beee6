"""How much memory the idle daemon takes, by its channels, with and without litellm; how much it stirs."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from tests.bench.rig import ROOT, Daemon, Rig, child_environment
from tests.bench.table import Figure, Goal

_FLOOR = (
    "import aioimaplib, aiohttp, nio, pydantic, json\n"
    "for line in open('/proc/self/status'):\n"
    "    if line.startswith('VmRSS:'): print(json.dumps(int(line.split()[1]) * 1024 / 1e6))"
)
_SETTLE_S = 3.0
_LITELLM_LIMIT_S = 90.0


def measure(rig: Rig) -> list[Figure]:
    """Look at a daemon that has nothing to do, then let it answer once through litellm."""
    daemon = rig.daemon()
    daemon.start()
    time.sleep(_SETTLE_S)
    seconds = 5 if rig.quick else 25
    rig.say(f"watching the idle daemon for {seconds} s")
    cpu_s, wake_ups, begun = daemon.cpu_s, daemon.wake_ups, time.perf_counter()
    time.sleep(seconds)
    took_s = time.perf_counter() - begun
    cpu_percent = (daemon.cpu_s - cpu_s) / took_s * 100
    woken = (daemon.wake_ups - wake_ups) / took_s
    idle_mb = daemon.rss_mb
    _ask(rig, daemon)
    asked_mb = daemon.rss_mb
    daemon.stop()
    floor = subprocess.run(
        [rig.python, "-c", _FLOOR], cwd=ROOT, env=child_environment(), stdout=subprocess.PIPE, check=True
    )
    return [
        Figure(
            "resident memory, idle, with Matrix (encrypted) alone",
            _idle_mb(rig.daemon(mail=False)),
            "MB",
            Goal("<", 100),
        ),
        Figure(
            "resident memory, idle, with mail alone",
            _idle_mb(rig.daemon(chat=False)),
            "MB",
            Goal("<", 100),
        ),
        Figure(
            "resident memory, idle, with both, litellm not started",
            idle_mb,
            "MB",
            Goal("<", 100),
            floor=json.loads(floor.stdout),
            floor_is="python with nio, aiohttp, aioimaplib and pydantic",
        ),
        Figure("the same after its first answer through Matrix", asked_mb, "MB"),
        Figure(
            "processor time while idle",
            cpu_percent,
            "%",
            Goal("<", 0.5),
            note=f"{woken:.1f} wake-ups a second",
        ),
        *_with_litellm(rig),
    ]


def _idle_mb(daemon: Daemon) -> float:
    daemon.start()
    time.sleep(_SETTLE_S)
    taken_mb = daemon.rss_mb
    daemon.stop()
    return taken_mb


def _with_litellm(rig: Rig) -> list[Figure]:
    fake = subprocess.Popen(
        [sys.executable, "-m", "tests.doubles.openai_server"],
        cwd=ROOT,
        env=child_environment(),
        stdout=subprocess.PIPE,
    )
    try:
        assert fake.stdout is not None
        api_base = fake.stdout.readline().decode().split()[-1]
        daemon = rig.daemon(
            {
                "providers": {"fake": {"api_base": api_base, "api_key": "x"}},
                "models": {"x": {"provider": "fake", "model": "openai/x", "client": "litellm"}},
                "pools": {"main": ["x"]},
            }
        )
        ready_s = daemon.start()
        rig.say("waiting for litellm, which comes up beside the daemon")
        begun = time.perf_counter()
        while "child_process.started" not in daemon.log():
            if time.perf_counter() - begun > _LITELLM_LIMIT_S:
                raise RuntimeError(f"litellm does not start: {daemon.log()[-2000:]}")
            time.sleep(0.1)
        beside_s = ready_s + time.perf_counter() - begun
        rig.say("asking a question that needs litellm")
        first_s = _ask(rig, daemon)
        time.sleep(_SETTLE_S)
        after_mb, litellm_mb = daemon.rss_mb, daemon.children_mb
        daemon.stop()
    finally:
        fake.kill()
        fake.wait()
    return [
        Figure(
            "resident memory of the daemon after its first answer through litellm",
            after_mb,
            "MB",
            Goal("<", 100),
            note=f"ready after {ready_s:.2f} s",
        ),
        Figure(
            "resident memory of litellm's process at that time",
            litellm_mb,
            "MB",
            note=f"ready {beside_s:.1f} s after the daemon's start",
        ),
        Figure("first question to answer through litellm, invitation to a room included", first_s, "s"),
    ]


def _ask(rig: Rig, daemon: Daemon) -> float:
    """One question in a new room; how long its answer took."""
    room = rig.room_with(daemon.name)
    begun = time.perf_counter()
    rig.alice.send(room, "hello")
    rig.alice.wait_for_message(lambda event: event.room_id == room, timeout_s=60)
    return time.perf_counter() - begun
