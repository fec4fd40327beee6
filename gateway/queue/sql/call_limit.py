"""How many calls an engine takes at once, and how long a caller waits for its turn."""

from __future__ import annotations

import anyio

from gateway.queue.errors import StoreUnavailable

WAITING = 4096
WITHIN_S = 10.0


class CallLimit:
    """Bounds the calls under way: beyond ``size`` a caller waits, at most for `WITHIN_S`."""

    def __init__(self, where: str, size: int = WAITING) -> None:
        self._where = where
        self._free = anyio.Semaphore(size, fast_acquire=True)
        self._closed = False

    def close(self) -> None:
        """Let nobody in any more, nor anybody who waits."""
        self._closed = True

    async def enter(self, operation: str) -> None:
        """Come in; whoever has come in leaves. Raises `StoreUnavailable`: it is full, or closed."""
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
        """Let the next one in."""
        self._free.release()
