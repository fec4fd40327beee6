"""What the parts of the embedded store share: the threads, the database's secret, the clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, tzinfo

from agent_core.messages import OutboundMessage
from agent_core.ports import Clock
from gateway.queue.ports import OutboxRow
from gateway.queue.sqlite.codec import instant
from gateway.queue.sqlite.connection import Reader, Writer
from gateway.queue.states import OutboxState

__all__ = ["Part", "pending"]


class Part:
    """
    A part of the embedded store.

    Args:
        writer, reader: The two threads.
        secret: The database's identity.
        clock: Read on the event loop only; the threads are given the time.
        zone: Where the days begin by which usage is kept; None is the zone of this machine.
    """

    def __init__(
        self, writer: Writer, reader: Reader, secret: str, clock: Clock, zone: tzinfo | None = UTC
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._secret = secret
        self._clock = clock
        self._zone = zone

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _day(self, now: float) -> str:
        """The day of usage at this moment."""
        return instant(now).astimezone(self._zone).strftime("%Y-%m-%d")


def pending(
    ids: Sequence[int],
    messages: Sequence[tuple[OutboundMessage, str]],
    inbox_id: int | None,
    held: Sequence[bool],
) -> list[OutboxRow]:
    """Messages that have just become rows."""
    return [
        OutboxRow(
            row_id, inbox_id, message, OutboxState.HELD if hold else OutboxState.PENDING, 0, None, None, None
        )
        for row_id, (message, _), hold in zip(ids, messages, held, strict=True)
    ]
