"""
What every channel promises, as tests. Each class is a part of `channels.base`; a channel takes the parts that
apply to it, by inheriting from them and saying what the far side is.

A `FarSide` is the server and the people behind it. It outlives the channel: ``channel()`` makes a new one, as
a restart of the process would. Real servers fit in as well as doubles: everything is awaited, nothing timed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import anyio
import pytest

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import (
    Channel,
    ChannelAuthFailed,
    ChannelError,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    LinkState,
    Receipt,
    Redelivery,
)
from tests.inbox_double import MemoryInbox, running

__all__ = [
    "CloseContract",
    "DeliveryContract",
    "FarSide",
    "LinkContract",
    "LoginContract",
    "LostAnswerContract",
    "PrivacyContract",
    "ProbeContract",
    "ReceivingContract",
    "RefusalContract",
]


class FarSide(ABC):
    """The server, and a person on it; `ReceivingContract` and `DeliveryContract` need the abstract methods."""

    session: SessionKey
    """Where the person and the bot talk."""
    other_session: SessionKey
    """Where another person and the bot talk; for `PrivacyContract`."""
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

    account = "bot"


class _Mark:
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
            return await channel.deliver(message, uncertain=_Mark(far))
        case Redelivery.PROBE:
            found = await channel.probe(message)
            return found or await channel.deliver(message, uncertain=_Mark(far))
        case Redelivery.PARK:
            return None


class _Part(ABC):
    @abstractmethod
    def far_side(self) -> AbstractAsyncContextManager[FarSide]:
        """A fresh one."""


class ReceivingContract(_Part):
    """``run`` hands everything over, once, in order, and acknowledges only what was accepted."""

    async def test_what_waits_and_what_comes_later_is_handed_over_in_order(self):
        """Messages from before the start and from after it arrive in the order in which they were said."""
        async with self.far_side() as far:
            for text in ("one", "two", "three"):
                await far.say(text)
            async with running(far.channel(), far.inbox):
                await far.inbox.until_accepted(3, within_s=far.patience_s)
                await far.say("four")
                await far.inbox.until_accepted(4, within_s=far.patience_s)
            assert far.inbox.texts == ["one", "two", "three", "four"]

    async def test_a_message_says_where_it_comes_from(self):
        """Channel, account and session name the channel itself; the native ids differ, the time has a zone."""
        async with self.far_side() as far:
            channel = far.channel()
            await far.say("same text")
            async with running(channel, far.inbox):
                await far.inbox.until_accepted(1, within_s=far.patience_s)
                await far.say("same text")
                first, second = await far.inbox.until_accepted(2, within_s=far.patience_s)
            for message in (first, second):
                assert (message.channel, message.account) == (channel.name, channel.account)
                assert message.session == far.session
                assert message.sender.address
                assert message.received_at.utcoffset() is not None
            assert first.native_id != second.native_id

    async def test_up_is_reported_only_after_everything_that_waited_is_accepted(self):
        """While the inbox takes nothing, the channel is not UP; afterwards it is."""
        async with self.far_side() as far:
            await far.say("waiting")
            far.inbox.hold()
            async with running(far.channel(), far.inbox):
                if await self._is_known_to_wait(far):
                    assert LinkState.UP not in far.inbox.states
                far.inbox.release()
                await far.inbox.until_up(within_s=far.patience_s)
                await far.inbox.until_accepted(1, within_s=far.patience_s)

    async def _is_known_to_wait(self, far: FarSide) -> bool:
        """Wait until the message is offered. A channel that people push to cannot know what waits."""
        await far.inbox.until_offered(1, within_s=far.patience_s)
        return True

    async def test_what_was_not_accepted_comes_again_after_a_restart(self):
        """A batch that hung in `accept` when the process died is handed over again, under the same names."""
        async with self.far_side() as far:
            await far.say("precious")
            far.inbox.hold()
            async with running(far.channel(), far.inbox) as run:
                await far.inbox.until_offered(1, within_s=far.patience_s)
                await run.cancel()
            far.inbox.release()
            async with running(far.channel(), far.inbox):
                await far.inbox.until_accepted(1, within_s=far.patience_s)
            assert far.inbox.texts == ["precious"]
            assert len({message.native_id for message in far.inbox.offered}) == 1

    async def test_what_was_refused_comes_again(self):
        """A batch that `accept` broke on was not acknowledged either."""
        async with self.far_side() as far:
            await far.say("precious")
            far.inbox.refuse(RuntimeError("a defect in the store"))
            async with running(far.channel(), far.inbox) as run:
                await run.until_ended(within_s=far.patience_s)
                assert run.error is not None
            async with running(far.channel(), far.inbox):
                await far.inbox.until_accepted(1, within_s=far.patience_s)
            assert far.inbox.texts == ["precious"]

    async def test_what_was_accepted_but_not_acknowledged_is_the_same_message_again(self):
        """When the process dies between `accept` and the acknowledgement, nothing is lost or doubled."""
        async with self.far_side() as far:
            await far.say("first")
            async with running(far.channel(), far.inbox) as run:
                far.inbox.on_accepted = run.scope.cancel
                await run.until_ended(within_s=far.patience_s)
            assert far.inbox.texts == ["first"]
            far.inbox.on_accepted = None
            async with running(far.channel(), far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await far.say("second")
                await far.inbox.until(lambda inbox: "second" in inbox.texts, within_s=far.patience_s)
            assert far.inbox.texts == ["first", "second"]

    async def test_a_restart_repeats_nothing(self):
        """What was accepted and acknowledged does not become another message after a restart."""
        async with self.far_side() as far:
            await far.say("first")
            async with running(far.channel(), far.inbox):
                await far.inbox.until_accepted(1, within_s=far.patience_s)
                await far.inbox.until_up(within_s=far.patience_s)
            async with running(far.channel(), far.inbox):
                await far.say("second")
                await far.inbox.until(lambda inbox: "second" in inbox.texts, within_s=far.patience_s)
            assert far.inbox.texts == ["first", "second"]

    async def test_cancellation_ends_it_at_once_and_cleanly(self):
        """A cancelled ``run`` neither swallows the cancellation nor turns it into an error."""
        async with self.far_side() as far:
            async with running(far.channel(), far.inbox) as run:
                await far.inbox.until_up(within_s=far.patience_s)
                await run.cancel()
            assert run.error is None
            assert run.cancelled
            assert not run.returned


class LinkContract(_Part):
    """A lost link ends ``run`` with `ChannelUnavailable`, and the next one goes on."""

    async def test_a_lost_link_ends_the_run(self):
        """The error is temporary, it is ours, and the last report is not UP."""
        async with self.far_side() as far:
            async with running(far.channel(), far.inbox) as run:
                await far.inbox.until_up(within_s=far.patience_s)
                await far.go_down()
                error = await run.until_ended(within_s=far.patience_s)
            assert isinstance(error, ChannelUnavailable), error
            assert error.temporary
            assert far.inbox.state is not LinkState.UP

    async def test_the_same_channel_runs_again_and_has_missed_nothing(self):
        """After a lost link ``run`` is called on the same object; what was said meanwhile arrives."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox) as run:
                await far.inbox.until_up(within_s=far.patience_s)
                await far.go_down()
                await run.until_ended(within_s=far.patience_s)
            await far.come_back()
            await far.say("meanwhile")
            async with running(channel, far.inbox):
                await far.inbox.until_accepted(1, within_s=far.patience_s)
                await far.inbox.until_up(within_s=far.patience_s)
            assert far.inbox.texts == ["meanwhile"]

    async def test_without_a_server_nothing_is_delivered_and_nothing_uncertain(self):
        """While the server is away, `deliver` raises `ChannelUnavailable` before the point of no return."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox) as run:
                await far.inbox.until_up(within_s=far.patience_s)
                await far.go_down()
                await run.until_ended(within_s=far.patience_s)
                mark = _Mark(far)
                with pytest.raises(ChannelUnavailable):
                    await channel.deliver(far.outbound("k1", "hello"), uncertain=mark)
                assert mark.seen_before == []
            assert await far.seen() == []


class LoginContract(_Part):
    """Wrong credentials are told apart from a server that is away."""

    async def test_a_refused_login_needs_the_operator(self):
        """``run`` raises `ChannelAuthFailed`, which waiting does not heal, and reports FAILED."""
        async with self.far_side() as far:
            await far.refuse_login()
            async with running(far.channel(), far.inbox) as run:
                error = await run.until_ended(within_s=far.patience_s)
            assert isinstance(error, ChannelAuthFailed), error
            assert not error.temporary
            assert far.inbox.state is LinkState.FAILED


class DeliveryContract(_Part):
    """``deliver`` sends once, and tells before it does."""

    async def test_a_message_arrives(self):
        """The person sees the text, and the receipt names it."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                receipt = await channel.deliver(far.outbound("k1", "hello"), uncertain=_Mark(far))
                assert receipt.provider_id
                assert await far.until_seen(1) == ["hello"]

    async def test_uncertain_comes_before_the_effect(self):
        """``uncertain`` is awaited exactly once, while the person cannot see anything yet."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                mark = _Mark(far)
                await channel.deliver(far.outbound("k1", "hello"), uncertain=mark)
                assert await far.until_seen(1) == ["hello"]
                assert mark.seen_before == [0]

    async def test_nothing_is_sent_when_uncertain_cannot_be_recorded(self):
        """If ``uncertain`` raises (a full disk), its error comes out and nobody sees anything."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                with pytest.raises(ZeroDivisionError):
                    await channel.deliver(
                        far.outbound("k1", "hello"),
                        uncertain=_Mark(far, ZeroDivisionError("the disk is full")),
                    )
                assert await far.seen() == []
                await channel.deliver(far.outbound("k1", "hello"), uncertain=_Mark(far))
                assert await far.until_seen(1) == ["hello"]

    async def test_the_same_message_again_is_one_message(self):
        """A repetition by the channel's own rule, also by a restarted process, is seen once."""
        async with self.far_side() as far:
            message = far.outbound("k1", "hello")
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                first = await channel.deliver(message, uncertain=_Mark(far))
                await far.until_seen(1)
                again = await deliver_again(far, channel, message)
                assert again is None or again == first
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await deliver_again(far, channel, message)
                assert await far.seen() == ["hello"]

    async def test_equal_texts_are_different_messages(self):
        """Two rows with one text are two messages, in the order of sending."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                for key, text in (("k1", "hello"), ("k2", "hello"), ("k3", "bye")):
                    await channel.deliver(far.outbound(key, text), uncertain=_Mark(far))
                assert await far.until_seen(3) == ["hello", "hello", "bye"]

    async def test_before_the_first_run_it_works_or_is_unavailable(self):
        """`deliver` on a channel that was never connected raises `ChannelUnavailable`, if anything."""
        async with self.far_side() as far:
            mark = _Mark(far)
            try:
                await far.channel().deliver(far.outbound("k1", "hello"), uncertain=mark)
            except ChannelUnavailable:
                assert mark.seen_before == []
            else:
                assert await far.until_seen(1) == ["hello"]


class RefusalContract(_Part):
    """What the server refuses for good is not tried for ever."""

    async def test_a_refused_message_fails_for_good(self):
        """`DeliveryFailed`, not temporary, nothing seen, and the next message goes through."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await far.refuse_message()
                with pytest.raises(DeliveryFailed) as caught:
                    await channel.deliver(far.outbound("k1", "bad"), uncertain=_Mark(far))
                assert not caught.value.temporary
                assert await far.seen() == []
                await channel.deliver(far.outbound("k2", "good"), uncertain=_Mark(far))
                assert await far.until_seen(1) == ["good"]


class LostAnswerContract(_Part):
    """The server took a message, and nobody heard of it."""

    async def test_a_lost_answer_is_uncertain_and_the_message_stays_one(self):
        """`DeliveryUncertain` after ``uncertain``; by the channel's rule the person sees one message."""
        async with self.far_side() as far:
            channel = far.channel()
            message = far.outbound("k1", "hello")
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await far.lose_answer()
                mark = _Mark(far)
                with pytest.raises(DeliveryUncertain):
                    await channel.deliver(message, uncertain=mark)
                assert mark.seen_before == [0]
                await deliver_again(far, channel, message)
                assert await far.until_seen(1) == ["hello"]

    async def test_a_delivery_cut_in_the_middle_stays_one_message(self):
        """Cancelled while it waits for the answer, `deliver` lets go at once; the repetition is not seen."""
        async with self.far_side() as far:
            channel = far.channel()
            message = far.outbound("k1", "hello")
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await far.stall_answer()
                with anyio.fail_after(far.patience_s):
                    async with anyio.create_task_group() as group:
                        group.start_soon(lambda: channel.deliver(message, uncertain=_Mark(far)))
                        await far.until_seen(1)
                        group.cancel_scope.cancel()
                await deliver_again(far, channel, message)
                assert await far.seen() == ["hello"]


class ProbeContract(_Part):
    """For `Redelivery.PROBE`: whether a message was taken can be found out."""

    async def test_it_finds_what_was_taken(self):
        """Also when the answer was lost, also after a restart; nothing is sent by looking."""
        async with self.far_side() as far:
            message = far.outbound("k1", "hello")
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await far.lose_answer()
                with pytest.raises(DeliveryUncertain):
                    await channel.deliver(message, uncertain=_Mark(far))
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                found = await channel.probe(message)
                assert found is not None
                assert found.provider_id
                assert await far.seen() == ["hello"]

    async def test_it_does_not_find_what_was_never_taken(self):
        """None for a key that the server does not have, although another message has the same text."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await channel.deliver(far.outbound("k1", "hello"), uncertain=_Mark(far))
                assert await channel.probe(far.outbound("k2", "hello")) is None

    async def test_it_does_not_guess(self):
        """Without a server it raises `ChannelUnavailable`: "surely not there" would double the message."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox) as run:
                await far.inbox.until_up(within_s=far.patience_s)
                await far.go_down()
                await run.until_ended(within_s=far.patience_s)
            with pytest.raises(ChannelUnavailable):
                await channel.probe(far.outbound("k1", "hello"))


class PrivacyContract(_Part):
    """What belongs to one conversation is not seen in another."""

    async def test_an_answer_goes_to_its_session_alone(self):
        """Two people, one answer each."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await channel.deliver(far.outbound("k1", "for one"), uncertain=_Mark(far))
                other = far.outbound("k2", "for the other", session=far.other_session)
                await channel.deliver(other, uncertain=_Mark(far))
                assert await far.seen() == ["for one"]
                assert await far.seen(far.other_session) == ["for the other"]

    async def test_messages_keep_their_sessions_apart(self):
        """What two people say carries two session keys."""
        async with self.far_side() as far:
            async with running(far.channel(), far.inbox):
                await far.say("from one")
                await far.inbox.until_accepted(1, within_s=far.patience_s)
                await far.say("from the other", session=far.other_session)
                messages = await far.inbox.until_accepted(2, within_s=far.patience_s)
            assert [message.session for message in messages] == [far.session, far.other_session]


class CloseContract(_Part):
    """Hints and closing never hurt."""

    async def test_closing_twice_is_closing_once(self):
        """`aclose` works after a run, without one, and again."""
        async with self.far_side() as far:
            unused = far.channel()
            await unused.aclose()
            await unused.aclose()
            channel = far.channel()
            async with running(channel, far.inbox) as run:
                await far.inbox.until_up(within_s=far.patience_s)
                await run.cancel()
            with anyio.fail_after(far.patience_s):
                await channel.aclose()
                await channel.aclose()

    async def test_hints_never_raise(self):
        """``typing`` and ``preview`` are quiet before, during and after the run, and show no message."""
        async with self.far_side() as far:
            channel = far.channel()
            await self._hint(channel, far.session)
            async with running(channel, far.inbox) as run:
                await far.inbox.until_up(within_s=far.patience_s)
                await self._hint(channel, far.session)
                assert await far.seen() == []
                await run.cancel()
            await self._hint(channel, far.session)
            await channel.aclose()
            await self._hint(channel, far.session)

    async def _hint(self, channel: Channel, session: SessionKey) -> None:
        try:
            with anyio.fail_after(10):
                await channel.typing(session, on=True)
                await channel.preview(session, "unfinished")
                await channel.typing(session, on=False)
        except ChannelError as error:
            raise AssertionError("a hint has raised") from error
