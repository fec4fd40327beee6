"""
The process that is killed: a whole gateway whose heartbeat ticks four times a second and that has jobs to do.

``python -m tests.kill.proactive_child`` loads everything once and forks a gateway for each line of JSON (`Life`) on
its standard input; it answers each with how that one ended. Time runs 240 times as fast as it should, for all
lives of a folder from the same beginning, so a killed gateway has missed what fell due meanwhile.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import anyio

from channels.heartbeat import channel as heartbeat_channel
from channels.heartbeat.channel import HeartbeatChannel
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.store.stores import StoreUnavailable
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from tests.clock import EPOCH
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import FileLoopbackServer, LoopbackChannel
from tests.kill.forking import serve
from tests.kill.points import Striker, StrikingQueue

FACTOR = 240.0
_TICK = re.compile(r"check-in of \w+, (\S+ \S+)")
_QUIET_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Life:
    """
    One life.

    Args:
        folder: Where home and servers are.
        die: The moment of its death; empty: none.
        target: ``matrix`` or ``email``.
        kill_after_s: It is killed from outside after so long.
        to_the_end: It ends by itself when nothing is left to do.
    """

    folder: str
    die: str = ""
    target: str = "matrix"
    kill_after_s: float = 30.0
    to_the_end: bool = False


class FastClock:
    """A clock that runs `FACTOR` times as fast, from the birth of a folder on."""

    def __init__(self, folder: Path) -> None:
        self._birth = (folder / "born").stat().st_mtime

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=(time.time() - self._birth) * FACTOR)

    def monotonic(self) -> float:
        return time.monotonic()


class Minutes(StreamingModel):
    """A model whose answers say for which minute or job they are."""

    async def answer(self, messages, tools):
        question = messages[-1].content
        tick = _TICK.search(question)
        await anyio.sleep(0.02)
        yield f"alert {tick[1]}" if tick else f"answer to {question.splitlines()[-1]}"


def settings_for(target: str) -> Settings:
    """The settings of all lives."""
    return Settings.model_validate(
        {
            "owner": {
                "aliases": [
                    {"channel": "matrix", "address": "@ann:hs.test"},
                    {"channel": "email", "address": "ann@mail.test"},
                ]
            },
            "agents": {
                "heartbeat": {
                    "interval_minutes": 1.0,
                    "timezone": "UTC",
                    "target": {"matrix": "matrix:@ann:hs.test", "email": "email:ann@mail.test"}[target],
                    "alert_after_missed": 0,
                    "digest": {"at": "00:03"},
                },
                "schedule": {"misfire": "plain", "timezone": "UTC"},
            },
        }
    )


async def _live(life: Life) -> int:
    folder = Path(life.folder)
    home, clock, striker = open_home(folder / "home"), FastClock(folder), Striker(life.die)
    servers = {name: FileLoopbackServer(folder / name) for name in ("matrix", "email")}
    settings = settings_for(life.target)
    heartbeat_channel.sleep = lambda seconds: anyio.sleep(seconds / FACTOR)  # type: ignore[attr-defined]
    channels = {
        "matrix": (LoopbackChannel(servers["matrix"], name="matrix", point=striker), "each"),
        "email": (LoopbackChannel(servers["email"], name="email", email_style=True, point=striker), "each"),
    }
    built = await build(
        settings,
        home,
        Overrides(
            clock=clock,
            channels=channels,  # type: ignore[arg-type]
            heartbeat=lambda log: HeartbeatChannel(
                settings.agents.heartbeat.schedule(),
                checklist=home.root / "workspace" / "HEARTBEAT.md",
                clock=clock,
                again_after=timedelta(0),
                log=log,
            ),
            models={"demo": Minutes()},
            allow_from={"matrix": ("*",), "email": ("*",)},
            wrap_queue=lambda queue: StrikingQueue(queue, striker),  # type: ignore[arg-type, return-value]
        ),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_hurry, built)
        if life.to_the_end:
            tasks.start_soon(_stop_when_quiet, built)
        await built.run()
        tasks.cancel_scope.cancel()
    return 0


async def _hurry(built: Gateway) -> None:
    """The schedule and the digest wait in real seconds; here they must look more often."""
    while True:
        await anyio.sleep(0.05)
        built.proactive.scheduler._news.set()
        with suppress(StoreUnavailable):  # it has just been closed
            await built.proactive.monitor.check_once()


async def _stop_when_quiet(built: Gateway) -> None:
    store = getattr(built.store, "_inner", built.store)
    quiet = 0
    while quiet < _QUIET_LOOKS:
        await anyio.sleep(0.1)
        stats = await store.maintenance.stats()
        busy = [stats.inbox["ready"], stats.inbox["running"]]
        busy += [stats.outbox[state] for state in ("pending", "sending", "uncertain")]
        quiet = quiet + 1 if not any(busy) and not await store.jobs.jobs() else 0
    built.stop()


if __name__ == "__main__":
    serve(Life, partial(anyio.run, _live))
