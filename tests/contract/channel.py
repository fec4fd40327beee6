"""
What every channel promises, as tests. Each class is a part of `channels.base`; a channel takes the parts that
apply to it, by inheriting from them and saying what its far side is (``far_side.py``). What leaves a channel
is in ``channel_delivery.py``; both halves can be had from here.
"""

from __future__ import annotations

import anyio
import pytest

from agent_core.messages import SessionKey
from channels.base import (
    AckState,
    Channel,
    ChannelAuthFailed,
    ChannelError,
    ChannelUnavailable,
    LinkState,
    SupportsAcknowledgements,
)
from tests.contract.channel_delivery import (
    DeliveryContract,
    LostAnswerContract,
    ProbeContract,
    RefusalContract,
)
from tests.contract.far_side import FarSide, Mark, Part
from tests.doubles.inbox import running

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


class ReceivingContract(Part):
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


class LinkContract(Part):
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
                mark = Mark(far)
                with pytest.raises(ChannelUnavailable):
                    await channel.deliver(far.outbound("k1", "hello"), uncertain=mark)
                assert mark.seen_before == []
            assert await far.seen() == []


class LoginContract(Part):
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


class PrivacyContract(Part):
    """What belongs to one conversation is not seen in another."""

    async def test_an_answer_goes_to_its_session_alone(self):
        """Two people, one answer each."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await channel.deliver(far.outbound("k1", "for one"), uncertain=Mark(far))
                other = far.outbound("k2", "for the other", session=far.other_session)
                await channel.deliver(other, uncertain=Mark(far))
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


class CloseContract(Part):
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
        """
        ``typing``, ``preview`` and, where the channel can, ``stage`` are quiet before, during and after the
        run, whatever the message is, and show no message.
        """
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
            with anyio.fail_after(60):
                await channel.typing(session, on=True)
                await channel.preview(session, "unfinished")
                await channel.typing(session, on=False)
                if channel.capabilities.acknowledgements:
                    assert isinstance(channel, SupportsAcknowledgements), "it says that it can, and cannot"
                    for stage in AckState:
                        await channel.acknowledge(session, {}, stage)
        except ChannelError as error:
            raise AssertionError("a hint has raised") from error
