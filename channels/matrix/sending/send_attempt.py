"""What the events of one delivery share, and the check whether a homeserver would refuse one as too large."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from channels.matrix.client.api import AnswerTooLarge, MatrixCredentials
from channels.matrix.client.json_access import JsonObject
from channels.matrix.events.outbound import size_of


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """
    The destination and form of one delivery.

    ``uncertain`` is awaited before each request. ``forgotten``: the server may have forgotten the transaction
    id. ``earlier``: replaced rooms that may have it, newest first. ``previewed``: the event with its preview.
    """

    used: MatrixCredentials
    encrypted: bool
    uncertain: Callable[[], Awaitable[None]]
    forgotten: bool
    earlier: tuple[str, ...] = ()
    previewed: str | None = None


def check_size(content: JsonObject, limit: int) -> None:
    """Check that a content fits into ``limit`` bytes. Raises `TooLarge`: it does not."""
    if size_of(content) > limit:
        raise AnswerTooLarge(f"the text is too long for one Matrix event ({size_of(content)} bytes)")


async def nothing() -> None:
    """A hint needs no point of no return."""
