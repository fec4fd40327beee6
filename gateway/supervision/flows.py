"""Holds up what goes through channels while an account is given to another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.routing.delivery import Delivery


class Flow(Protocol):
    """What goes through a channel in one direction, and can be held up."""

    def hold(self, channel: str) -> None:
        """Begin nothing more by this channel."""
        ...

    def go_on(self, channel: str) -> None:
        """Begin again."""
        ...

    async def quiet(self, channel: str) -> None:
        """Return when nothing is under way by it."""
        ...


class Deliveries:
    """What goes out, as a `Flow`; by the names of `channel_of`."""

    def __init__(self, deliveries: Mapping[str, Delivery]) -> None:
        self._deliveries = deliveries

    def hold(self, channel: str) -> None:
        """Begin no send by this channel."""
        for delivery in self._of(channel):
            delivery.hold()

    def go_on(self, channel: str) -> None:
        """Send again."""
        for delivery in self._of(channel):
            delivery.go_on()

    async def quiet(self, channel: str) -> None:
        """Return when no send is under way."""
        for delivery in self._of(channel):
            await delivery.quiet()

    def _of(self, channel: str) -> list[Delivery]:
        return [delivery for name, delivery in self._deliveries.items() if channel_of(name) == channel]


def channel_of(delivery: str) -> str:
    """The channel of a delivery, or of what it passes on to, by its name: that is the last word."""
    return delivery.rpartition(" ")[2]
