"""
What stands behind a channel, as the contract suite in ``channel.py`` sees it.

A `FarSide` is the server and the people on it. It outlives the channel: ``channel()`` makes a new one, as a
restart of the process would. Real servers fit in as well as doubles: everything is awaited, nothing timed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import anyio

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import Channel, Receipt, Redelivery
from tests.doubles.inbox import MemoryInbox


class FarSide(ABC):
    """The server, and a person on it; `ReceivingContract` and `DeliveryContract` need the abstract methods."""

    session: SessionKey
    """Where the person and the bot talk."""
    other_session: SessionKey
    """Where another person and the bot talk; for `PrivacyContract`."""
    account = "bot"
    patience_s = 10.0

    def __init__(self) -> None:
        self.inbox = MemoryInbox()

    @abstractmethod
    def channel(self) -> Channel:
        """A new channel object, as after a restart; the old one is dead."""

    @abstractmethod
    async def say(self, text: str, *, session: SessionKey | None = None) -> None:
        """The person says something, whether the channel is connected or not."""

    @abstractmethod
    async def seen(self, session: SessionKey | None = None) -> list[str]:
        """The bot's texts that the person sees, once everything under way has arrived."""

    async def go_down(self) -> None:
        """The link breaks, and no new one is possible; for `LinkContract`."""
        raise NotImplementedError

    async def come_back(self) -> None:
        """New links are possible again."""
        raise NotImplementedError

    async def refuse_login(self) -> None:
        """The credentials are not accepted from now on; for `LoginContract`."""
        raise NotImplementedError

    async def refuse_message(self) -> None:
        """The next delivery is refused for good; for `RefusalContract`."""
        raise NotImplementedError

    async def lose_answer(self) -> None:
        """The next delivery is taken, and the link breaks before the answer; for `LostAnswerContract`."""
        raise NotImplementedError

    async def stall_answer(self) -> None:
        """The next delivery is taken, and the answer never comes; for `LostAnswerContract`."""
        raise NotImplementedError

    async def until_seen(self, count: int) -> list[str]:
        """Wait for so many texts."""
        with anyio.move_on_after(self.patience_s):
            while len(await self.seen()) < count:
                await anyio.sleep(0.01)
        return await self.seen()

    def outbound(self, key: str, text: str, *, session: SessionKey | None = None) -> OutboundMessage:
        """A row of the outbox."""
        session = session or self.session
        return OutboundMessage(
            id=key,
            channel=session.channel,
            account=self.account,
            session=session,
            text=text,
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
        )


class Mark:
    """An ``uncertain`` that notes what the person saw when it was awaited."""

    def __init__(self, far: FarSide, error: Exception | None = None) -> None:
        self._far = far
        self._error = error
        self.seen_before: list[int] = []
        self.called = anyio.Event()

    async def __call__(self) -> None:
        self.seen_before.append(len(await self._far.seen()))
        self.called.set()
        if self._error is not None:
            raise self._error


async def deliver_again(far: FarSide, channel: Channel, message: OutboundMessage) -> Receipt | None:
    """Treat a message that may have been taken as the outbox does, by the channel's own rule."""
    match channel.capabilities.redelivery:
        case Redelivery.SAME_KEY:
            return await channel.deliver(message, uncertain=Mark(far))
        case Redelivery.PROBE:
            found = await channel.probe(message)
            return found or await channel.deliver(message, uncertain=Mark(far))
        case Redelivery.REVIEW:
            return None


class Part(ABC):
    """A part of the contract."""

    @abstractmethod
    def far_side(self) -> AbstractAsyncContextManager[FarSide]:
        """A fresh one."""
