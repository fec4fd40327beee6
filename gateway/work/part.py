"""What the three parts of the embedded store share: the threads, the database's secret, the clock."""

from __future__ import annotations

from collections.abc import Sequence

from agent_core.messages import OutboundMessage
from agent_core.ports import Clock
from gateway.work.port import OutboxRow
from gateway.work.states import OutboxState
from gateway.work.writer import Reader, Writer

__all__ = ["Part", "pending"]


class Part:
    """
    A part of the embedded store.

    Args:
        writer, reader: The two threads.
        secret: The database's identity.
        clock: Read on the event loop only; the threads are given the time.
    """

    def __init__(self, writer: Writer, reader: Reader, secret: str, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._secret = secret
        self._clock = clock

    def _now(self) -> float:
        return self._clock.now().timestamp()


def pending(
    ids: Sequence[int], messages: Sequence[tuple[OutboundMessage, str]], inbox_id: int | None
) -> list[OutboxRow]:
    """Messages that have just become rows."""
    return [
        OutboxRow(row_id, inbox_id, message, OutboxState.PENDING, 0, None, None, None)
        for row_id, (message, _) in zip(ids, messages, strict=True)
    ]
