"""Limits the number of concurrent calls to an engine, and the time that a caller waits for a free place."""

from __future__ import annotations

import anyio

from gateway.store.store_errors import StoreUnavailable

WAITING = 4096
WITHIN_S = 10.0


class CallLimit:
    """Limits the concurrent calls to ``size``; further callers wait, at most for `WITHIN_S`."""

    def __init__(self, where: str, size: int = WAITING) -> None:
        self._where = where
        self._free = anyio.Semaphore(size, fast_acquire=True)
        self._closed = False

    def close(self) -> None:
        """Admit nobody any more; those who wait are refused."""
        self._closed = True

    async def enter(self, operation: str) -> None:
        """Take a place until `leave`. Raises `StoreUnavailable` if none is free in time, or after `close`."""
        if not self._closed:
            try:
                self._free.acquire_nowait()
            except anyio.WouldBlock:
                with anyio.move_on_after(WITHIN_S) as limit:
                    await self._free.acquire()
                if limit.cancelled_caught:
                    raise StoreUnavailable(
                        "too many calls wait", path=self._where, operation=operation
                    ) from None
            if not self._closed:
                return
            self.leave()
        raise StoreUnavailable("the store is closed", path=self._where, operation=operation)

    def leave(self) -> None:
        """Give a place to the next caller."""
        self._free.release()
