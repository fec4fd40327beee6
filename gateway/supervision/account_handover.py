"""Holds up what goes through channels while an account is given to another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.routing.delivery import Delivery


class Flow(Protocol):
    """The traffic of a channel in one direction, which can be held up."""

    def hold(self, channel: str) -> None:
        """Start nothing more by this channel."""
        ...

    def go_on(self, channel: str) -> None:
        """Start again."""
        ...

    async def quiet(self, channel: str) -> None:
        """Return when nothing of it is in progress."""
        ...


class Deliveries:
    """Outgoing messages as a `Flow`, by the names of `channel_of`."""

    def __init__(self, deliveries: Mapping[str, Delivery]) -> None:
        self._deliveries = deliveries

    def hold(self, channel: str) -> None:
        """Start no send by this channel."""
        for delivery in self._of(channel):
            delivery.hold()

    def go_on(self, channel: str) -> None:
        """Send again."""
        for delivery in self._of(channel):
            delivery.go_on()

    async def quiet(self, channel: str) -> None:
        """Return when no send is in progress."""
        for delivery in self._of(channel):
            await delivery.quiet()

    def _of(self, channel: str) -> list[Delivery]:
        return [delivery for name, delivery in self._deliveries.items() if channel_of(name) == channel]


def channel_of(delivery: str) -> str:
    """The channel of a delivery, or the one that it passes messages on to: the last word of its name."""
    return delivery.rpartition(" ")[2]
