"""
Limits how long the event loop waits for a blocking call.

Theory of operation. A channel stores its state by calls that block, in the middle of an operation that must
not be interrupted (a ratchet is advanced, and its row is written). Normally that takes a millisecond. A
server that is frozen, or a connection that is cut without notice, can stay silent indefinitely, and no
timeout of the connection itself ends that. So the call runs on a thread, and the event loop waits for it with
a limit. Everything else goes on, above all the lease, which ends this process in time.

A late call may still happen. Until it has ended no other call begins, and the event loop gets an error at
once: it blocks for one moment, and not once for each call. A call that was too late before it began never
begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from agent_core.state_folder import StateAway

MOMENT_S = 2.0
_Result = TypeVar("_Result")
Wanted = Callable[[], None]
"""Called when the call is about to begin; raises if nobody waits for it any more."""


def on_event_loop() -> bool:
    """Return True if the caller would block an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Moment:
    """Bounded waiting for one server."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._late: threading.Thread | None = None

    def wait_for(self, call: Callable[[Wanted], _Result], within_s: float) -> _Result:
        """Return or raise a call's result; without an event loop it runs directly. Raises StateAway."""
        if not on_event_loop():
            return call(lambda: None)
        if self._late is not None and self._late.is_alive():
            raise StateAway(f"{self._where} still has not answered")
        waiting: Future[_Result] = Future()
        thread = threading.Thread(target=_make, args=(call, waiting), name="account-state", daemon=True)
        thread.start()
        wait([waiting], within_s)
        if waiting.cancel() or not waiting.done():
            self._late = thread
            raise StateAway(f"{self._where} has not answered within {within_s:.0f} s")
        return waiting.result()


def _make(call: Callable[[Wanted], _Result], waiting: Future[_Result]) -> None:
    began = False

    def wanted() -> None:
        nonlocal began
        began = began or waiting.set_running_or_notify_cancel()
        if not began:
            raise StateAway("nobody waits for it any more")

    try:
        result = call(wanted)
    except BaseException as error:  # noqa: BLE001 - the waiting thread gets the error
        if not waiting.cancelled():
            waiting.set_exception(error)
    else:
        waiting.set_result(result)
