"""
Three kills amid writing the memory counted as three failures of the same call: the model was told that it could use
no tool any more, and what it had been asked to remember was not kept.

A suspect that had been left alone found its session unsuspected when its place came, and that ended in a traceback
and a second of waiting.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from agent_core.messages import SessionKey
from gateway.routing.crash_isolation import CrashIsolation
from gateway.store.states import CrashRecord
from gateway.store.stores import Suspect
from tests.kill.oracle import problems
from tests.kill.scenario import Nursery, Scenario


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_write_that_was_cut_off_four_times_is_made(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """Killed each time before, or each time after the document was replaced: once in it, and answered."""
    world = Scenario(tmp_path, nursery, max_attempts=10)
    world.say("ann", "fact")
    for _ in range(4):
        assert world.live(die=f"memory.save_global_memory.{moment}") == -signal.SIGKILL
    world.live_until_quiet()

    assert problems(world.evidence()) == []


async def test_who_is_acquitted_while_waiting_just_runs() -> None:
    """The list is read anew when a suspect has ended; who waits to run alone may stand in it no more."""

    class Store:
        found: list[Suspect]

        async def suspects(self) -> list[Suspect]:
            return self.found

    store, ran = Store(), []
    sessions = [SessionKey("loopback", name) for name in ("ann", "bob")]
    store.found = [Suspect(session, CrashRecord(deaths=2), turn=str(session)) for session in sessions]
    gate = CrashIsolation(store)
    await gate.load_suspects()
    store.found = []

    async def run_session(session: SessionKey) -> None:
        await anyio.sleep(0)
        ran.append(session)

    run = gate.guard(run_session)
    async with anyio.create_task_group() as tasks:
        for session in sessions:
            tasks.start_soon(run, session)

    assert ran == sessions
