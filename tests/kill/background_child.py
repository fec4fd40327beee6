"""
The process that is killed: a gateway with four channels, on each of which somebody has background jobs done.

``python -m tests.kill.background_child`` loads everything once and forks a gateway for each line of JSON (`Life`)
on its standard input; it answers each with how that one ended.
"""

from __future__ import annotations

import random
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agent_core.models import ToolCall
from gateway.app import Overrides, build
from gateway.settings import Settings
from gateway.store.stores import Pending, Queue
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from gateway.turns.turn_kinds import TurnPolicy
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import FileLoopbackServer, LoopbackChannel
from tests.doubles.queue import wrapping
from tests.kill.forking import serve
from tests.kill.points import Striker, StrikingQueue
from tests.kill.scripted import EffectTool

CHANNELS = ("matrix", "email", "work", "home")
_QUIET_LOOKS = 3
_OWNER = {"channel": "matrix", "address": "@ann:hs.test"}
_IS_JOB = "[This is the background job"


@dataclass(frozen=True, slots=True)
class Life:
    """
    One life.

    Args:
        folder: Where home and servers are.
        die: The moment of its death; empty: none.
        kill_after_s: It is killed from outside after so long.
        control: ``new_ids``: what recognises a job is another one at each try.
        seed: For the pauses.
        shell: The owner, who is ``@ann:hs.test`` on ``matrix``, has this command run as soon as there is a shell.
    """

    folder: str
    die: str = ""
    kill_after_s: float = 60.0
    control: str = ""
    seed: int = 0
    shell: str = ""


class Foreman(StreamingModel):
    """
    ``start N`` is a job for somebody else; the job N has its effect once and is done. ``run COMMAND`` is run in
    the background.
    """

    def __init__(self, point: Callable[[str], None], pause: Callable[[], float]) -> None:
        self._point = point
        self._pause = pause

    async def answer(self, messages, tools):
        last = messages[-1]
        wish = next(message.content for message in reversed(messages) if message.role == "user")
        number = int((re.findall(r"\d+", wish.splitlines()[-1]) or ["0"])[-1])
        command = re.search(r"run (.*)", wish.splitlines()[-1])
        is_job = _IS_JOB in wish
        to_do = last.role != "tool" or "was not loaded" in last.content
        kind = "job" if is_job else "start"
        self._point(f"{kind}.asked")
        await anyio.sleep(self._pause())
        if to_do and is_job:
            yield ToolCall(id=f"e{number}", name="effect", arguments={"number": number})
        elif to_do and command is not None:
            yield ToolCall(id="r", name="run_in_background", arguments={"command": command[1]})
        elif to_do:
            yield ToolCall(id=f"s{number}", name="start_job", arguments={"goal": f"task {number}"})
        else:
            yield f"finished #{number}" if is_job else f"begun #{number}"
        self._point(f"{kind}.answered")


class _NewIds:
    """An inbox to which a job that is started again is another one."""

    def __init__(self, inner: Any, point: Striker) -> None:
        self._real = inner
        self._point = point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def accept(self, channel: str, account: str, batch: Any, *more: Any) -> Any:
        jobs = [each for each in batch if each.message.kind == "background_job"]
        if not jobs:
            return await self._real.accept(channel, account, batch, *more)
        fresh = f"{jobs[0].message.native_id}-{secrets.token_hex(4)}"
        changed = [Pending(jobs[0].message.model_copy(update={"native_id": fresh}))]
        rows = await self._real.accept(channel, account, changed, *more)
        self._point("control.taken")
        return rows


async def _live(life: Life) -> int:
    folder = Path(life.folder)
    home, striker, chance = open_home(folder / "home"), Striker(life.die), random.Random(life.seed)

    def pause() -> float:
        return chance.random() * 0.03

    def wrap_queue(queue: Queue) -> StrikingQueue:
        inner = queue
        if life.control == "new_ids":
            inner = wrapping(inbox=lambda inbox: _NewIds(inbox, striker))(queue)
        return StrikingQueue(inner, striker)

    servers = {name: FileLoopbackServer(folder / name) for name in CHANNELS}
    built = await build(
        Settings.model_validate(
            {
                "tools": {
                    "jobs": {"allow": "people"},
                    "shell": {"allow": "owner" if life.shell else "none"},
                },
                "owner": {"aliases": [_OWNER] if life.shell else []},
                "gateway": {"max_concurrent_turns": 6},
            }
        ),
        home,
        Overrides(
            channels={
                name: (
                    LoopbackChannel(server, name=name, email_style=name == "email", batch=3, point=striker),
                    "each",
                )
                for name, server in servers.items()
            },
            models={"demo": Foreman(striker, pause)},
            allow_from=dict.fromkeys(CHANNELS, ("*",)),
            wrap_queue=wrap_queue,  # type: ignore[arg-type, return-value]
            tools=[EffectTool(folder / "effects", striker, pause)],
            policy=TurnPolicy(max_attempts=1000),
        ),
    )
    async with anyio.create_task_group() as tasks:
        servers["matrix"].refresh()
        if life.shell and not servers["matrix"].said:
            tasks.start_soon(_say_when_proved, built, servers["matrix"], f"run {life.shell}")
        tasks.start_soon(_stop_when_quiet, built, list(servers.values()))
        await built.run()
        tasks.cancel_scope.cancel()
    return 0


async def _say_when_proved(built: Gateway, server: FileLoopbackServer, text: str) -> None:
    while (await built.status.read())["shell"]["ready"] is None:
        await anyio.sleep(0.02)
    server.say(_OWNER["address"], text, native_id="$say-run")


async def _stop_when_quiet(built: Gateway, servers: Sequence[FileLoopbackServer]) -> None:
    store: Any = built.store
    store = getattr(store, "_inner", store)  # looking must not pass the moments
    store = getattr(store, "_inner", store)
    quiet = 0
    while quiet < _QUIET_LOOKS:
        await anyio.sleep(0.02)
        for server in servers:
            server.refresh()
        stats = await store.maintenance.stats()
        busy = [stats.inbox["ready"], stats.inbox["running"], stats.journal_lines]
        busy += [stats.outbox[state] for state in ("pending", "sending", "uncertain")]
        said = sum(len(server.said) for server in servers)
        taken = said > 0 and sum(stats.inbox.values()) >= said
        quiet = quiet + 1 if taken and not any(busy) else 0
    built.stop()


if __name__ == "__main__":
    serve(Life, partial(anyio.run, _live))
