"""
Two stores on one database that do the same, or what excludes it, at the same moment.

Generic over how the two stores are opened: an adapter gives two queues on one database, and as the control two
whose locks do nothing. Each race names what is called on the one and on the other, and what must be true
afterwards whichever of the two was first.

"At the same moment" is not left to chance: the connection of each of the two calls waits after every statement
for the other one's (`Lockstep`). Where the first call holds a lock, the second one never comes; then the wait
ends by itself and the calls go one after the other.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio

from gateway.store.sql.engine import Store
from gateway.store.stores import Queue


class Lockstep:
    """Holds two threads together, statement by statement, until one of them has nothing more to do."""

    def __init__(self, at: str, within_s: float) -> None:
        self._within_s = within_s
        self._at = re.compile(at)
        self._barrier = threading.Barrier(2)

    def meet(self, text: str) -> None:
        """A statement has run: wait for the other side's."""
        if self._at.search(text):
            with contextlib.suppress(threading.BrokenBarrierError):
                self._barrier.wait(self._within_s)

    def part(self) -> None:
        """One side is at its end: nobody is waiting for it any more."""
        self._barrier.abort()


class _Stepping:
    """A connection that meets the other one after each statement."""

    def __init__(self, db: Any, step: Lockstep) -> None:
        self._db = db
        self._step = step

    def _run(self, way: str, text: str, parameters: tuple[Any, ...]) -> Any:
        cursor = getattr(self._db, way)(text, *parameters)
        self._step.meet(text)
        return cursor

    def execute(self, text: str, *parameters: Any) -> Any:
        return self._run("execute", text, parameters)

    def executemany(self, text: str, *parameters: Any) -> Any:
        return self._run("executemany", text, parameters)

    def lock(self, *names: str) -> None:
        self._db.lock(*names)

    def note(self, fact: str, of: str) -> None:
        self._db.note(fact, of)


class _SteppingWriter:
    """A writer whose calls meet those of another one."""

    def __init__(self, writer: Any, step: Lockstep) -> None:
        self._writer = writer
        self._step = step

    async def call(self, name: str, run: Callable[[Any], Any], **more: Any) -> Any:
        return await self._writer.call(name, lambda db: run(_Stepping(db, self._step)), **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


@contextlib.contextmanager
def meet(step: Lockstep, *queues: Queue) -> Iterator[None]:
    """Let the writing calls of these queues go in lockstep."""
    parts = [part for queue in queues for part in vars(queue).values() if isinstance(part, Store)]
    assert parts
    writers = {id(part): part._writer for part in parts}
    for part in parts:
        part._writer = _SteppingWriter(part._writer, step)
    try:
        yield
    finally:
        for part in parts:
            part._writer = writers[id(part)]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a race is checked by: a queue to look with, what was prepared, and both results or errors."""

    queue: Queue
    prepared: Any
    one: Any
    other: Any

    @property
    def both(self) -> tuple[Any, Any]:
        return self.one, self.other

    @property
    def failed(self) -> int:
        """How many of the two were refused."""
        return sum(isinstance(result, Exception) for result in self.both)


@dataclass(frozen=True, slots=True)
class Race:
    """
    Two calls and what is true after both.

    Args:
        guard: What makes the check true. ``lock``: without it the check must fail. ``uncommitted``: the same,
            where a statement of an open transaction is not seen by others. ``statement``: one statement
            decides, and no lock is needed.
        at: After which statements the two meet.
        within_s: How long the one waits for the other, which may not come.
    """

    name: str
    prepare: Callable[[Queue], Awaitable[Any]]
    one: Callable[[Queue, Any], Awaitable[Any]]
    other: Callable[[Queue, Any], Awaitable[Any]]
    check: Callable[[Ran], Awaitable[None]]
    guard: Literal["lock", "uncommitted", "statement"] = "lock"
    at: str = ""
    within_s: float = 0.3


async def run_race(race: Race, one: Queue, other: Queue) -> None:
    """Run both calls at the same moment, and check what has become of it."""
    prepared = await race.prepare(one)
    results: list[Any] = [None, None]
    step = Lockstep(race.at, race.within_s)

    async def run(side: int, call: Callable[[Queue, Any], Awaitable[Any]], queue: Queue) -> None:
        try:
            results[side] = await call(queue, prepared)
        except Exception as error:
            results[side] = error
        finally:
            step.part()

    with meet(step, one, other):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, 0, race.one, one)
            tasks.start_soon(run, 1, race.other, other)
    await race.check(Ran(one, prepared, *results))


async def is_noticed(
    race: Race, opened: Callable[[], contextlib.AbstractAsyncContextManager[tuple[Queue, Queue]]]
) -> bool:
    """
    Whether the check fails on such stores. Which of the two goes first after they have met is chance, and one
    order may be a right one, so there are many tries; on a machine under load they are given more time to meet.
    """
    for within_s in (*[race.within_s] * 12, 1.0, 4.0):
        async with opened() as (one, other):
            try:
                await run_race(replace(race, within_s=within_s), one, other)
            except (AssertionError, ValueError, AttributeError):
                return True
    return False
