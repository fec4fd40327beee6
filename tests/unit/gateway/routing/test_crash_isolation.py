"""The gate of crash suspects: alone means alone, in the order of arrival, whoever gives up meanwhile."""

from __future__ import annotations

import random
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from gateway.routing.crash_isolation import CrashIsolation


class _NoSuspects:
    async def suspects(self):
        return []


@pytest.mark.parametrize("seed", range(30))
async def test_what_runs_alone_has_no_company(seed: int) -> None:
    """Tasks come, some alone, some cancelled before or after they pass; all that were not have run."""
    chance, inside, done = random.Random(seed), list[bool](), list[int]()
    gate = CrashIsolation(_NoSuspects())  # type: ignore[arg-type]

    async def pause() -> None:
        for _ in range(chance.randrange(4)):
            await anyio.lowlevel.checkpoint()

    async def work(number: int, *, alone: bool) -> None:
        with anyio.CancelScope() as scope, suppress(ZeroDivisionError):
            scopes[number] = scope
            async with gate.count_in_flight(alone=alone):
                inside.append(alone)
                try:
                    assert len(inside) == 1 or not any(inside)
                    await pause()
                    assert len(inside) == 1 or not any(inside)
                    if chance.random() < 0.2:
                        _ = 1 / 0
                finally:
                    inside.remove(alone)
        done.append(number)

    scopes: dict[int, anyio.CancelScope] = {}
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(
                    lambda number, alone: work(number, alone=alone), number, chance.random() < 0.3
                )
                await pause()
                if scopes and chance.random() < 0.2:
                    scopes[chance.choice(list(scopes))].cancel()
    assert sorted(done) == list(range(40))


async def test_the_gate_is_passed_in_the_order_of_arrival() -> None:
    """Who comes after one that wants to be alone waits behind it, so it is not overtaken for ever."""
    gate, seen, go = CrashIsolation(_NoSuspects()), list[str](), anyio.Event()  # type: ignore[arg-type]

    async def work(name: str, alone: bool) -> None:
        async with gate.count_in_flight(alone=alone):
            seen.append(name)
            await go.wait()

    async with anyio.create_task_group() as tasks:
        for name, alone in (("first", False), ("second", False), ("alone", True), ("last", False)):
            tasks.start_soon(work, name, alone)
            await anyio.wait_all_tasks_blocked()
        assert seen == ["first", "second"]
        go.set()
    assert seen == ["first", "second", "alone", "last"]
