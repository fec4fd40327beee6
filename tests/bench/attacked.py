"""
What the owner notices of a command that uses up what it can: the time of a turn, and how late the loop is.

A gateway runs in this process with a model that answers at once. The owner asks one question after the other,
in turns without and with an attack in the sandbox of the shell, each for the same time: so a machine that is
busy with something else is busy for both.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio

from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.sandbox.command_sandbox import CommandSandbox
from agent_core.sandbox.rights import Limits
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal
from tests.integration.gateway_world import World, world

_PYTHON = "/usr/bin/python3 -I -S -c"
_ATTACKS: Mapping[str, str] = {
    "a fork bomb": f"""{_PYTHON} '
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
'""",
    "sessions without end": f"""{_PYTHON} '
import os, time
for _ in range(20):
    if os.fork() == 0:
        break
while True:
    if os.getsid(0) != os.getpid():
        os.setsid()
    until = time.monotonic() + 0.003
    while time.monotonic() < until:
        pass
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
'; sleep 60""",
    "yes": "while :; do yes | head -c 4000000 > /dev/null; done",
    "memory": f"""while :; do {_PYTHON} '
held = []
while True:
    held.append(bytearray(1 << 20))
    held[-1][::4096] = bytes([1]) * 256
'; done""",
    "a full disk": "while :; do dd if=/dev/zero of=big bs=1M count=400 conv=fsync 2> /dev/null; rm big; done",
}
_LAG_EVERY_S = 0.005
_AFTER_S = 0.5
"""An attack has this long to begin."""


def measure(rig: Rig) -> list[Figure]:
    """Ask with and without each attack."""
    return anyio.run(_measured, rig)


async def _measured(rig: Rig) -> list[Figure]:
    home = rig.folder / "attacked"
    (home / "workspace").mkdir(parents=True)
    sandbox = CommandSandbox(
        workspace=home / "workspace",
        home=home,
        private_in=home / "commands",
        readable=[Path(sys.base_prefix)],
        limits=replace(Limits(), output_bytes=10**12),
    )
    proof = await sandbox.prove()
    if not proof.held:
        return [Figure("the owner's p95 under attack", None, "x", Goal("<", 2), note=str(proof))]
    rounds, seconds = (1, 1.5) if rig.quick else (4, 4.0)
    figures = []
    async with world(home / "gateway", models={"demo": _AtOnce()}) as one:
        await _asked(one, 0.5)
        for name, command in _ATTACKS.items():
            rig.say(f"attacked by {name}")
            calm: tuple[list[float], list[float]] = ([], [])
            under: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                await _into(calm, one, seconds)
                async with _attack(sandbox, command, seconds + 60):
                    await _into(under, one, seconds)
            before, after = _p95(calm[0]), _p95(under[0])
            lag = f"lag of the loop p95 {_p95(under[1]):.1f} ms, without {_p95(calm[1]):.1f}"
            note = f"{after:.0f} ms, without {before:.0f}; {len(under[0])} turns; {lag}; {proof.told}"
            what = f"a turn's p95 beside {name}, over one without"
            figures.append(Figure(what, after / before, "x", Goal("<", 2), note=note))
    return figures


async def _into(found: tuple[list[float], list[float]], one: World, seconds: float) -> None:
    turns, lags = await _asked(one, seconds)
    found[0].extend(turns)
    found[1].extend(lags)


async def _asked(one: World, seconds: float) -> tuple[list[float], list[float]]:
    """How long each turn took, and how late the loop was, in milliseconds."""
    turns: list[float] = []
    lags: list[float] = []

    async def look() -> None:
        while True:
            begun = time.perf_counter()
            await anyio.sleep(_LAG_EVERY_S)
            lags.append((time.perf_counter() - begun - _LAG_EVERY_S) * 1000)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begun = time.perf_counter()
            await one.asked("how are you?", within_s=60)
            turns.append((time.perf_counter() - begun) * 1000)
        tasks.cancel_scope.cancel()
    return turns, lags


@asynccontextmanager
async def _attack(sandbox: CommandSandbox, command: str, seconds: float) -> AsyncIterator[None]:
    async def again() -> None:
        while True:
            await sandbox.run(command, seconds=seconds)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again)
        await anyio.sleep(_AFTER_S)
        yield
        tasks.cancel_scope.cancel()


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


class _AtOnce:
    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        async def answer() -> AsyncIterator[ModelChunk]:
            yield "fine"

        return answer()
