"""Virtual time does what the tests that rely on it believe."""

import threading
import time

import anyio
import anyio.to_thread
import pytest

from tests.clock import LoopClock

pytestmark = pytest.mark.virtual_time


async def test_a_day_passes_at_once():
    """Sleeping a day moves both clocks by a day and takes no time."""
    clock = LoopClock()
    before, wall, real = clock.monotonic(), clock.now(), time.monotonic()
    await anyio.sleep(86_400)
    assert clock.monotonic() - before >= 86_400
    assert (clock.now() - wall).total_seconds() >= 86_400
    assert time.monotonic() - real < 20


async def test_limits_fire_in_order():
    """A short limit ends a long sleep."""
    with anyio.move_on_after(5) as scope:
        await anyio.sleep(1000)
    assert scope.cancelled_caught


async def test_a_worker_thread_is_waited_for():
    """What a thread does within a limit of an hour is not cut off because an hour costs nothing."""
    with anyio.move_on_after(3600) as scope:
        await anyio.to_thread.run_sync(time.sleep, 0.05, abandon_on_cancel=True)
    assert not scope.cancelled_caught


async def test_a_stuck_thread_does_not_stop_time():
    """A limit ends the waiting for a thread that does not come back."""
    stuck = threading.Event()
    with anyio.move_on_after(3600) as scope:
        await anyio.to_thread.run_sync(stuck.wait, 25, abandon_on_cancel=True)
    assert scope.cancelled_caught
    stuck.set()
