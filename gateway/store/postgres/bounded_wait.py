"""
Limits how long the event loop waits for a blocking call. A channel stores state by blocking calls inside
operations that must not be interrupted (a ratchet and its row). A frozen server can be silent beyond any
timeout of the connection, so the call runs on a thread and the loop waits with a limit, while the lease ends
the process in time. A late call may still happen; until it ends, others fail at once. One that was late
before it began never begins.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from agent_core.state_folder import StateUnreachable

BLOCKING_LIMIT_S = 2.0
_Result = TypeVar("_Result")
BeforeCall = Callable[[], None]
"""Called when the call is about to begin; raises if nobody waits for it any more."""


def on_event_loop() -> bool:
    """Return True if the caller would block an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class BoundedWait:
    """Bounded waiting for one server."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._late: threading.Thread | None = None

    def wait_for(self, call: Callable[[BeforeCall], _Result], within_s: float) -> _Result:
        """Return or raise a call's result; without a loop it runs directly. Raises StateUnreachable."""
        if not on_event_loop():
            return call(lambda: None)
        if self._late is not None and self._late.is_alive():
            raise StateUnreachable(f"{self._where} still has not answered")
        waiting: Future[_Result] = Future()
        thread = threading.Thread(target=_make, args=(call, waiting), name="account-state", daemon=True)
        thread.start()
        wait([waiting], within_s)
        if waiting.cancel() or not waiting.done():
            self._late = thread
            raise StateUnreachable(f"{self._where} has not answered within {within_s:.0f} s")
        return waiting.result()


def _make(call: Callable[[BeforeCall], _Result], waiting: Future[_Result]) -> None:
    began = False

    def wanted() -> None:
        nonlocal began
        began = began or waiting.set_running_or_notify_cancel()
        if not began:
            raise StateUnreachable("nobody waits for it any more")

    try:
        result = call(wanted)
    except BaseException as error:  # noqa: BLE001 - the waiting thread gets the error
        if not waiting.cancelled():
            waiting.set_exception(error)
    else:
        waiting.set_result(result)
