"""The threads of the storage: results, errors, limits and ends."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import pytest

from agent_core.storage.threads import Threads

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO")


def ours() -> int:
    return sum(thread.name == "storage" for thread in threading.enumerate())


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(5):
        while not condition():
            await anyio.sleep(0.01)


async def test_results_errors_and_context_come_through() -> None:
    """A value, an exception as it is, and the variables of the caller, in another thread."""
    threads = Threads(2)
    WHO.set("ann")
    told = await threads.run(lambda number: (number + 1, WHO.get(), threading.current_thread().name), 41)
    assert told == (42, "ann", "storage")
    for error in (OSError(28, "full"), ValueError("x")):
        with pytest.raises(type(error)) as caught:
            await threads.run(_raise, error)
        assert caught.value is error
    with pytest.raises(RuntimeError):  # not for ever in silence, which is what a future makes of it
        await threads.run(lambda empty: next(empty), iter(()))


def _raise(error: BaseException) -> None:
    raise error


async def test_so_many_at_a_time_and_the_rest_in_order() -> None:
    """Three threads never run four calls, and nobody overtakes in the queue."""
    threads = Threads(3)
    lock = threading.Lock()
    running, most, begun = 0, 0, []

    def work(number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            begun.append(number)
        time.sleep(0.005)
        with lock:
            running -= 1

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(threads.run, work, number)
    assert most == 3
    assert sorted(begun) == list(range(20))
    assert all(abs(number - place) < 3 for place, number in enumerate(begun))


@pytest.mark.parametrize("how", ["ours", "abandoned"])
async def test_a_cancelled_caller_leaves_when_its_call_has_ended(how: str) -> None:
    """
    Nobody works on a file behind a released lock.

    Negative control: a caller that abandons its thread is seen to leave before it.
    """
    threads = Threads(1)
    release, left = threading.Event(), threading.Event()

    def work(_: None) -> None:
        release.wait(5)
        left.set()

    async with anyio.create_task_group() as tasks:
        if how == "ours":
            tasks.start_soon(threads.run, work, None)
        else:
            tasks.start_soon(lambda: anyio.to_thread.run_sync(work, None, abandon_on_cancel=True))
        await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
        threading.Timer(0.2, release.set).start()
    assert left.is_set() == (how == "ours")
    release.set()


async def test_idle_threads_end_and_come_again() -> None:
    """After a while without work there is no thread, and the next call gets a new one."""
    gc.collect()
    before = ours()
    threads = Threads(4, idle_s=0.05)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(threads.run, time.sleep, 0.02)
    await until(lambda: ours() <= before)
    assert await threads.run(lambda number: number, 7) == 7


async def test_forgotten_threads_end() -> None:
    """With their owner the threads go too, however long they would have waited."""
    threads = Threads(4, idle_s=600)
    worker = await threads.run(lambda _: threading.current_thread(), None)
    assert worker.is_alive()
    del threads
    gc.collect()
    await until(lambda: not worker.is_alive())


def test_a_call_that_outlives_its_loop_hurts_nobody() -> None:
    """The loop is closed while a thread still works: the thread goes on to the next caller."""
    threads = Threads(1)
    slow = threading.Event()

    async def walks_away() -> None:
        with anyio.move_on_after(0):
            await threads.run(lambda _: slow.wait(0.05), None)

    anyio.run(walks_away)
    assert anyio.run(threads.run, str, 5) == "5"
