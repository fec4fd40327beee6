"""
Typing notices and read receipts: they may get lost and must never delay anything. A task sends at most one
notice of a kind per room, the newest; a first one waits `GATHER_S`, since a quick answer needs no "typing".
Receipts let answers pass (`TypingAndReceipts.yield_to_answer`), because many servers do one thing at a time.
Failures are forgotten; "typing" fades by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import structlog

from channels.matrix.client.homeserver import CLIENT, Homeserver, LinkBroken, quote_path

GATHER_S = 0.04

_LIMIT_S = 10.0
_FEW = 3
_MAX_ROOMS = 1000
_log = structlog.get_logger(__name__)


class TypingAndReceipts:
    """Sends typing notices and read receipts."""

    def __init__(self, homeserver: Homeserver, user_id: str) -> None:
        self._homeserver = homeserver
        self._user_id = user_id
        self._typing: dict[str, bool] = {}
        self._read: dict[str, str] = {}
        self._shown: set[str] = set()
        self._busy: dict[str, dict[str, float]] = {}
        self._news = anyio.Event()
        self._answers = 0
        self._passed = anyio.Event()

    @contextmanager
    def yield_to_answer(self) -> Iterator[None]:
        """While an answer is being sent."""
        self._answers += 1
        try:
            yield
        finally:
            self._answers -= 1
            if not self._answers:
                self._passed.set()
                self._passed = anyio.Event()

    def typing(self, room_id: str, *, on: bool, who: str = "") -> None:
        """
        Show or hide a typing notice, which ends after half a minute.

        A room and its threads share one sign: it goes when nothing is written for ``who``ever any more.
        """
        now = anyio.current_time()
        # Whoever has not said so again has ended without a word.
        busy = {one: at for one, at in self._busy.pop(room_id, {}).items() if now - at < 45.0 and one != who}
        if on:
            busy[who] = now
        if busy:
            self._busy[room_id] = busy
        if busy and not on:
            return
        if len(self._typing) < _MAX_ROOMS or room_id in self._typing:
            self._typing[room_id] = on
            self._news.set()

    def read(self, room_id: str, event_id: str) -> None:
        """Everything in the room up to this event is accepted."""
        if len(self._read) < _MAX_ROOMS or room_id in self._read:
            self._read[room_id] = event_id
            self._news.set()

    async def run(self) -> None:
        """Send hints until cancelled."""
        slots = anyio.CapacityLimiter(4)
        busy: set[str] = set()
        async with anyio.create_task_group() as senders:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                for room_id in [room for room in (*self._typing, *self._read) if room not in busy]:
                    if room_id not in busy:
                        busy.add(room_id)
                        senders.start_soon(self._send_room, room_id, busy, slots)

    async def _send_room(self, room_id: str, busy: set[str], slots: anyio.CapacityLimiter) -> None:
        """Send a room's wishes, also those that come up meanwhile, one after the other."""
        try:
            await anyio.sleep(GATHER_S)
            # With many rooms at once the answers come first; most need no "typing" by then.
            await anyio.sleep(min(GATHER_S * max(len(busy) - _FEW, 0), 0.6))
            if room_id not in self._typing:
                with anyio.move_on_after(1.0):
                    while self._answers:
                        await self._passed.wait()
            while room_id in self._typing or room_id in self._read:
                async with slots:
                    if room_id in self._typing:
                        await self._send_typing(room_id, on=self._typing.pop(room_id))
                    if room_id in self._read:
                        event = quote_path(self._read.pop(room_id))
                        path = f"{CLIENT}/rooms/{quote_path(room_id)}/receipt/m.read/{event}"
                        await self._send("POST", path, {})
        finally:
            busy.discard(room_id)

    async def _send_typing(self, room_id: str, *, on: bool) -> None:
        if not on and room_id not in self._shown:
            return
        (self._shown.add if on else self._shown.discard)(room_id)
        body: dict[str, object] = {"typing": True, "timeout": 30_000} if on else {"typing": False}
        await self._send(
            "PUT", f"{CLIENT}/rooms/{quote_path(room_id)}/typing/{quote_path(self._user_id)}", body
        )

    async def _send(self, method: str, path: str, body: dict[str, object]) -> None:
        try:
            await self._homeserver.request(method, path, body, timeout_s=_LIMIT_S)
        except LinkBroken as error:
            _log.debug("matrix.typing_lost", error=str(error))
