"""Relays bytes between two sockets in both directions, until the far end closes or nothing comes any more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

_PIECE_BYTES = 65_536


class Relay:
    """
    Relays between two sockets, at most ``more`` bytes to the far one (None: any).

    Ends when ``is_spent`` (called per piece) is True, or after ``silence_s`` without data.
    """

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        *,
        more: int | None,
        is_spent: Callable[[int], bool],
        silence_s: float,
    ) -> None:
        self._near, self._far = near, far
        self._more = more
        self._is_spent = is_spent
        self._silence_s = silence_s
        self._scope = anyio.CancelScope()
        self.sent = self.received = 0

    async def run(self) -> None:
        """Until it ends; an end that breaks off ends it, too."""
        self._note_progress()
        with self._scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ending, self._outwards)
                await self._ending(self._inwards)
                tasks.cancel_scope.cancel()

    async def _ending(self, direction: Callable[[], Awaitable[None]]) -> None:
        try:
            await direction()
        except OSError:
            self._scope.cancel()

    async def _outwards(self) -> None:
        left = self._more
        while left is None or left > 0:
            most = _PIECE_BYTES if left is None else min(_PIECE_BYTES, left)
            piece = await self._moved(self._near, self._far, most)
            self.sent += piece
            left = None if left is None else left - piece
            if not piece:
                break
        if self._more is None:
            self._far.shutdown(socket.SHUT_WR)

    async def _inwards(self) -> None:
        while piece := await self._moved(self._far, self._near, _PIECE_BYTES):
            self.received += piece

    async def _moved(self, source: socket.socket, target: socket.socket, most: int) -> int:
        """Forward one piece; return its number of bytes, 0 at the end."""
        await anyio.lowlevel.checkpoint()  # where bytes are always there, nothing below waits
        loop = asyncio.get_running_loop()
        piece = await loop.sock_recv(source, most)
        if not piece:
            return 0
        if self._is_spent(len(piece)):
            self._scope.cancel()
            return 0
        await loop.sock_sendall(target, piece)
        self._note_progress()
        return len(piece)

    def _note_progress(self) -> None:
        self._scope.deadline = anyio.current_time() + self._silence_s
