"""
What other programs cost: a webhook's acceptance, a request of OpenAI's API, a look of a watch, and traces.

A real daemon with a Matrix account and the echo model, which takes no time. Acceptances take turns with the floor,
which does what none can do without: append to a file, fdatasync, commit to SQLite. The endpoint's overhead is the
time of a request without that of its turn, as the daemon's log says it. Strangers at the ports of webhooks and
endpoint send what is refused as fast as they can, in turns of the owner's with and without them.
"""

from __future__ import annotations

import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import yaml

from tests.bench.overhead import Floor
from tests.bench.rig import ROOT, Daemon, Rig, child_environment
from tests.bench.table import Figure, Goal, share
from tests.command_line import squidbot

_SECRET = "0123456789abcdef-secret"
_WATCHES = 5
_SENDERS = 4
_IDLE_CPU_S = 0.03
_LOADED = "import sys, gateway.app; print(sum(one.startswith('opentelemetry') for one in sys.modules))"

_STRANGER = """
import http.client, itertools, sys
paths = itertools.cycle(("/hooks/grafana", "/v1/chat/completions"))
headers = {"Authorization": "Bearer wrong", "Content-Type": "application/json"}
refused = 0
while True:
    link = http.client.HTTPConnection(sys.argv[1], timeout=10)
    try:
        for _ in range(100):
            link.request("POST", next(paths), b"{}" * 500, headers)
            link.getresponse().read()
            refused += 1
            if refused % 20 == 0:
                print(refused, flush=True)
    except (OSError, http.client.HTTPException):
        pass
"""


def measure(rig: Rig) -> list[Figure]:
    """Accept reports, answer requests, look at files, then start with and without traces."""
    daemon = rig.daemon(mail=False)
    _change(daemon, _with_reach)
    daemon.start()
    room = rig.room_with(daemon.name)
    rig.alice.send(room, "hello")
    rig.alice.wait_for_message(lambda one: one.sender.startswith(f"@{daemon.name}:"))
    _command(daemon, "cron", "add", "--hook", "grafana", "An alert:")
    count = 40 if rig.quick else 300
    figures = [
        *_of_hooks(rig, daemon, count),
        *_of_requests(rig, daemon, count),
        _of_strangers(rig, daemon, room),
        _of_looks(rig, daemon, 10 if rig.quick else 40),
    ]
    daemon.stop()
    return [*figures, *_of_traces(rig, daemon)]


def _with_reach(settings: dict[str, Any]) -> None:
    hook = {"secret": _SECRET, "text": "{title}", "per_minute": 10_000}
    settings["gateway"]["http"]["hooks"] = {"grafana": hook}
    settings["channels"]["api"] = {}
    settings["agents"] = {"schedule": {"min_interval_minutes": 0.01}}


def _with_traces(settings: dict[str, Any]) -> None:
    settings["gateway"]["traces"] = {"endpoint": "http://127.0.0.1:9/v1/traces"}  # nobody is there


def _change(daemon: Daemon, change: Any) -> None:
    config = daemon.home / "squidbot.yaml"
    settings = yaml.safe_load(config.read_text())
    change(settings)
    config.write_text(yaml.safe_dump(settings, sort_keys=False))


def _command(daemon: Daemon, *words: str) -> str:
    done = squidbot(daemon.home, *words)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr}")
    return str(done.stdout)


class _Client:
    """A program with one connection."""

    def __init__(self, daemon: Daemon, token: str) -> None:
        settings = yaml.safe_load((daemon.home / "squidbot.yaml").read_text())
        self._link = http.client.HTTPConnection(settings["gateway"]["http"]["listen"], timeout=60)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def post(self, path: str, body: Any, wanted: int) -> float:
        """Send a request and return how many milliseconds its answer took."""
        begun = time.perf_counter()
        self._link.request("POST", path, json.dumps(body), self._headers)
        answer = self._link.getresponse()
        text = answer.read()
        if answer.status != wanted:
            raise RuntimeError(f"{path}: {answer.status} {text[:200]!r}")
        return (time.perf_counter() - begun) * 1000


def _of_hooks(rig: Rig, daemon: Daemon, count: int) -> list[Figure]:
    rig.say(f"{2 * count} reports")
    floor, one = Floor(rig.made_folder("reach-floor")), _Client(daemon, _SECRET)
    took_ms = []
    for number in range(count):
        floor.once()
        took_ms.append(one.post("/hooks/grafana", {"title": f"alert {number}"}, 202))
    bare_ms = statistics.median(floor.took_ms)

    def send(sender: int) -> None:
        client = _Client(daemon, _SECRET)
        for number in range(count // _SENDERS):
            client.post("/hooks/grafana", {"title": f"{sender} {number}"}, 202)

    begun, cpu_s = time.perf_counter(), daemon.cpu_s
    with ThreadPoolExecutor(_SENDERS) as senders:
        list(senders.map(send, range(_SENDERS)))
    sent = count // _SENDERS * _SENDERS
    rate, busy_s = sent / (time.perf_counter() - begun), daemon.cpu_s - cpu_s
    return [
        Figure(
            "a webhook's acceptance over the bare commit, p50",
            statistics.median(took_ms) - bare_ms,
            "ms",
            Goal("<", 5),
            floor=bare_ms,
            floor_is="append + fdatasync + SQLite commit",
        ),
        Figure(
            "webhooks accepted in a second of one core",
            sent / busy_s,
            "/s",
            Goal(">=", 200),
            note=f"{_SENDERS} senders, {rate:.0f} a second; sending the reports to Matrix meanwhile counts, too",
        ),
    ]


def _of_requests(rig: Rig, daemon: Daemon, count: int) -> list[Figure]:
    rig.say(f"{count} requests of OpenAI's API")
    token = json.loads(_command(daemon, "tokens", "add", "bench", "--json"))["token"]
    client, ask = _Client(daemon, token), {"role": "user", "content": "hello"}
    whole_ms, turn_ms = [], []
    for _ in range(count):
        before = len(daemon.log())
        whole_ms.append(client.post("/v1/chat/completions", {"model": "squidbot", "messages": [ask]}, 200))
        while not (found := re.findall(r'"turn\.answered".*?"took_s":([\d.]+)', daemon.log()[before:])):
            time.sleep(0.005)
        turn_ms.append(float(found[0]) * 1000)
    over = [whole - turn for whole, turn in zip(whole_ms, turn_ms, strict=True)]
    turn = statistics.median(turn_ms)
    return [
        Figure(
            "the endpoint's overhead over its turn, p50",
            statistics.median(over),
            "ms",
            Goal("<", 15),
            floor=turn,
            floor_is="the turn",
        )
    ]


def _of_strangers(rig: Rig, daemon: Daemon, room: str) -> Figure:
    """The owner's answers in a room, in turns without and with strangers at both doors."""
    rounds, refused = 2 if rig.quick else 6, 0
    rig.say(f"{2 * rounds} rounds with and without strangers")
    took_ms: dict[bool, list[float]] = {False: [], True: []}
    _wait_until_idle(daemon)
    for number in range(2 * rounds):
        flooded = number % 2 == 1
        with _strangers(daemon) if flooded else nullcontext([]) as counts:
            for each in range(10):
                begun, said = time.perf_counter(), f"hello {number} {each}."
                rig.alice.send(room, said)
                rig.alice.wait_for_message(lambda one, said=said: said in one.body)  # type: ignore[misc]
                took_ms[flooded].append((time.perf_counter() - begun) * 1000)
        refused += sum(counts)
    before, after = (share(took_ms[flooded], 0.95) for flooded in (False, True))
    note = f"p95 {before:.0f} and {after:.0f} ms; {refused} requests of {_SENDERS} strangers were refused"
    return Figure(
        "the owner's answer beside strangers at both doors, relative to one without",
        after / before if refused else None,
        "x",
        Goal("<", 2),
        note=note,
    )


@contextmanager
def _strangers(daemon: Daemon) -> Iterator[list[int]]:
    """Programs without a secret, as if on other machines; afterwards how many requests each had refused."""
    listen, counts = (
        yaml.safe_load((daemon.home / "squidbot.yaml").read_text())["gateway"]["http"]["listen"],
        [],
    )
    begin = ["nice", "-n", "19", sys.executable, "-c", _STRANGER, listen]
    running = [subprocess.Popen(begin, stdout=subprocess.PIPE, text=True) for _ in range(_SENDERS)]
    try:
        time.sleep(1)
        yield counts
    finally:
        for each in running:
            each.kill()
            counts += [int(line) for line in each.communicate()[0].split()[-1:]]


def _of_looks(rig: Rig, daemon: Daemon, seconds: int) -> Figure:
    rig.say(f"looks of {_WATCHES} watches for {seconds} s")
    _wait_until_idle(daemon)
    for number in range(_WATCHES):
        (daemon.home / "workspace" / f"{number}.md").write_text("line\n" * 1000)
        _command(daemon, "watch", "add", f"{number}.md", "--kind", "file", "--every", "1s")
    time.sleep(2)
    cpu_s, looks = daemon.cpu_s, daemon.log().count('"watch.looked"')
    time.sleep(seconds)
    looks = daemon.log().count('"watch.looked"') - looks
    took_ms = (daemon.cpu_s - cpu_s) * 1000 / max(looks, 1)
    note = f"a file of 1,000 lines without news, {looks} looks; with all that the idle daemon does"
    return Figure(
        "processor time of a watch's look", took_ms if looks else None, "ms", Goal("<", 20), note=note
    )


def _wait_until_idle(daemon: Daemon) -> None:
    for _ in range(60):
        cpu_s = daemon.cpu_s
        time.sleep(1)
        if daemon.cpu_s - cpu_s < _IDLE_CPU_S:
            return


def _of_traces(rig: Rig, daemon: Daemon) -> list[Figure]:
    rig.say("starts with and without traces")
    daemon.python = sys.executable  # that of the others has no OpenTelemetry
    found = {}
    for name in ("off", "on"):
        if name == "on":
            _change(daemon, _with_traces)
        starts = []
        for _ in range(1 if rig.quick else 5):
            starts.append(daemon.start())
            time.sleep(2)
            memory = daemon.rss_mb
            daemon.stop()
        found[name] = statistics.median(starts), memory
    loaded = subprocess.run(
        [sys.executable, "-c", _LOADED], cwd=ROOT, env=child_environment(), capture_output=True, check=True
    )
    (off_s, off_mb), (on_s, on_mb) = found["off"], found["on"]
    return [
        Figure(
            "modules of OpenTelemetry that are loaded while traces are off",
            int(loaded.stdout),
            "",
            Goal("=", 0),
        ),
        Figure("start with traces", on_s, "s", floor=off_s, floor_is="the same without"),
        Figure("resident memory, idle, with traces", on_mb, "MB", floor=off_mb, floor_is="the same without"),
    ]
