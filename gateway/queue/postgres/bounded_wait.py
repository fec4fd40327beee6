"""
Lets the event loop wait for a blocking call for a moment, and not for longer.

Theory of operation. What a channel keeps for itself is written by calls that block, in the middle of what
must not be interrupted (a ratchet is turned, and its row is written). As a rule that takes a millisecond. A
server that is frozen, or cut off without anybody's noticing, says nothing for as long as it likes, and no
limit of its own ends that. So the call is made on a thread, and the event loop waits for that with a limit:
everything else goes on, above all the lease, which ends this process in time.

A call that is late may still happen. Until it has ended nothing more is begun, and the event loop is told so
at once: it stands still for one moment, and not once for each call. What was late before it began never
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
    """Whether whoever asks would hold up an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Moment:
    """The waiting for one server."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._late: threading.Thread | None = None

    def waited_for(self, call: Callable[[Wanted], _Result], within_s: float) -> _Result:
        """
        What a call returns or raises. On a thread without an event loop it is simply made.

        Raises:
            StateAway: It takes longer than ``within_s``, or an earlier one still does.
        """
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
    except BaseException as error:  # noqa: BLE001 - whoever waits is told
        if not waiting.cancelled():
            waiting.set_exception(error)
    else:
        waiting.set_result(result)
