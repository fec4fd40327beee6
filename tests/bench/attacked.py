"""
What the owner notices of an attack elsewhere: the time of a turn, and how late the loop is.

A gateway runs in this process with a model that answers at once. The owner asks one question after the other, in
turns without and with an attack, each for the same time: so a machine that is busy with something else is busy for
both. The attacks are commands in the sandbox of the shell that use up what they can, and calls of MCP servers that
misbehave. Another figure is how long the loop waits while a hostile page is read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio

from agent_core.children.command_sandbox import CommandSandbox, SandboxFolders
from agent_core.children.rights import Ceilings
from agent_core.errors import AgentError
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.tools.mcp.config import McpSettings
from agent_core.tools.mcp.servers import McpServers
from agent_core.tools.web.web_fetch import WebFetchTool
from gateway.cli.output import quiet_logs
from gateway.system.clock import SystemClock
from tests.bench.rig import Rig
from tests.bench.table import Figure, Goal, median
from tests.integration.gateway_world import Scenario, world
from tests.web_world import client, http, server

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
_MISBEHAVIOURS = ("flood", "large", "parts", "garbage", "many_tools", "crash")
"""Of `tests.hostile_mcp`: what costs whoever listens most."""
_NESTED = b"<div>" * 1_000_000
_LAG_EVERY_S = 0.005
_AFTER_S = 0.5
"""An attack has this long to begin."""
_NEW_AFTER = 50
"""
After so many turns a new conversation begins and the stand-in forgets its answers, which it looks through at each
question: otherwise each turn would take longer than those before it.
"""

_Attack = Callable[[], AbstractAsyncContextManager[None]]


def measure(rig: Rig) -> list[Figure]:
    """Ask with and without each attack, and look at the loop beside a hostile page."""
    quiet_logs(verbose=False)
    return anyio.run(_measured, rig)


async def _measured(rig: Rig) -> list[Figure]:
    home = rig.folder / "attacked"
    (home / "workspace").mkdir(parents=True)
    sandbox = CommandSandbox(
        SandboxFolders(
            workspace=home / "workspace",
            home=home,
            private_in=home / "commands",
            readable=[Path(sys.base_prefix)],
        ),
        limits=replace(Ceilings(), output_bytes=10**12),
    )
    proof = await sandbox.prove()
    rounds, seconds = (1, 1.5) if rig.quick else (4, 4.0)
    figures = []
    async with world(home / "gateway", models={"demo": _AtOnce()}) as one:
        await _asked(one, 0.5)
        if proof.held:
            for name, command in _ATTACKS.items():
                rig.say(f"attacked by {name}")
                attack = partial(_command, sandbox, command, seconds + 60)
                goal = Goal("<", 3.5)  # nice alone stands between a command and the daemon
                figures.append(await _beside(one, name, attack, rounds, seconds, proof.told, goal))
        else:
            figures.append(Figure("the owner's p95 under attack", None, "x", Goal("<", 3.5), note=str(proof)))
        rig.say("attacked by MCP servers")
        attack = partial(_hostile_servers, home / "mcp")
        figures.append(
            await _beside(one, "hostile MCP servers", attack, rounds, seconds, "all at once", Goal("<", 2))
        )
    rig.say("attacked by a page")
    return [*figures, await _beside_a_page(rounds)]


async def _beside(
    one: Scenario, name: str, attack: _Attack, rounds: int, seconds: float, how: str, goal: Goal
) -> Figure:
    """Ask in turns without and with the attack."""
    calm: tuple[list[float], list[float]] = ([], [])
    under: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        await _into(calm, one, seconds)
        async with attack():
            await anyio.sleep(_AFTER_S)
            await _into(under, one, seconds)
    before, after = _p95(calm[0]), _p95(under[0])
    lag = f"lag of the loop p95 {_p95(under[1]):.1f} ms, without {_p95(calm[1]):.1f}"
    note = f"{after:.0f} ms, without {before:.0f}; {len(under[0])} turns; {lag}; {how}"
    return Figure(
        f"a turn's p95 beside {name}, relative to one without", after / before, "x", goal, note=note
    )


async def _beside_a_page(rounds: int) -> Figure:
    """How late the loop is at most while a million nested tags are read, and for as long without them."""
    beside, without = [], []
    web = client()
    fetch = WebFetchTool(lambda: web, SystemClock())
    async with server() as public:
        public.answers["/"] = http(200, _NESTED)
        for _ in range(2 * rounds + 1):
            begun = time.perf_counter()
            async with _lags() as lags:
                await fetch.execute(url=public.url())
            beside.append(max(lags))
            async with _lags() as lags:
                await anyio.sleep(time.perf_counter() - begun)
            without.append(max(lags))
    what = "longest delay of the event loop beside a page of a million nested tags"
    floor, note = "without the page, for the same time", f"median of {len(beside)} pages"
    return Figure(what, median(beside), "ms", Goal("<", 50), median(without), floor, note)


async def _into(found: tuple[list[float], list[float]], one: Scenario, seconds: float) -> None:
    turns, lags = await _asked(one, seconds)
    found[0].extend(turns)
    found[1].extend(lags)


async def _asked(one: Scenario, seconds: float) -> tuple[list[float], list[float]]:
    """How long each turn took, and how late the loop was, in milliseconds."""
    turns: list[float] = []
    async with _lags() as lags:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            if len(turns) % _NEW_AFTER == 0:
                await one.asked("!new", within_s=60)
                one.server.delivered.clear()
            begun = time.perf_counter()
            await one.asked("how are you?", within_s=60)
            turns.append((time.perf_counter() - begun) * 1000)
    return turns, lags


@asynccontextmanager
async def _lags() -> AsyncIterator[list[float]]:
    """How late the loop was each time, in milliseconds."""
    lags: list[float] = []

    async def look() -> None:
        while True:
            begun = time.perf_counter()
            await anyio.sleep(_LAG_EVERY_S)
            lags.append((time.perf_counter() - begun - _LAG_EVERY_S) * 1000)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        yield lags
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _command(sandbox: CommandSandbox, command: str, seconds: float) -> AsyncIterator[None]:
    async def again() -> None:
        while True:
            await sandbox.run(command, seconds=seconds)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again)
        yield
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _hostile_servers(folder: Path) -> AsyncIterator[None]:
    """Servers of each kind are called at once; new ones as soon as all have failed, which are in no back-off."""
    script = str(Path(__file__).resolve().parents[1] / "hostile_mcp.py")
    named = {
        name: {"command": sys.executable, "args": [script, name], "timeout_s": 5} for name in _MISBEHAVIOURS
    }
    settings = McpSettings.model_validate({"servers": named})

    async def call(servers: McpServers, name: str) -> None:
        with suppress(AgentError):
            await servers.by_name[name].refresh()
            await servers.by_name[name].show_changes()
            await servers.by_name[name].approve([])
            await servers.by_name[name].call("echo", {"text": "hello"})

    async def again() -> None:
        while True:
            servers = McpServers(settings, folder, SystemClock())
            async with anyio.create_task_group() as running:
                running.start_soon(servers.run)
                async with anyio.create_task_group() as calls:
                    for name in _MISBEHAVIOURS:
                        calls.start_soon(call, servers, name)
                running.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(again)
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
