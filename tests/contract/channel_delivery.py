"""The second half of the contract of a channel: what leaves."""

from __future__ import annotations

import anyio
import pytest

from channels.base import ChannelUnavailable, DeliveryFailed, DeliveryUncertain
from tests.contract.far_side import Mark, Part, deliver_again
from tests.doubles.inbox import running


class DeliveryContract(Part):
    """``deliver`` sends once, and tells before it does."""

    async def test_a_message_arrives(self):
        """The person sees the text, and the receipt names it."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                receipt = await channel.deliver(far.outbound("k1", "hello"), uncertain=Mark(far))
                assert receipt.provider_id
                assert await far.until_seen(1) == ["hello"]

    async def test_uncertain_comes_before_the_effect(self):
        """``uncertain`` is awaited exactly once, while the person cannot see anything yet."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                mark = Mark(far)
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
                        uncertain=Mark(far, ZeroDivisionError("the disk is full")),
                    )
                assert await far.seen() == []
                await channel.deliver(far.outbound("k1", "hello"), uncertain=Mark(far))
                assert await far.until_seen(1) == ["hello"]

    async def test_the_same_message_again_is_one_message(self):
        """A repetition by the channel's own rule, also by a restarted process, is seen once."""
        async with self.far_side() as far:
            message = far.outbound("k1", "hello")
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                first = await channel.deliver(message, uncertain=Mark(far))
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
                    await channel.deliver(far.outbound(key, text), uncertain=Mark(far))
                assert await far.until_seen(3) == ["hello", "hello", "bye"]

    async def test_before_the_first_run_it_works_or_is_unavailable(self):
        """`deliver` on a channel that was never connected raises `ChannelUnavailable`, if anything."""
        async with self.far_side() as far:
            mark = Mark(far)
            try:
                await far.channel().deliver(far.outbound("k1", "hello"), uncertain=mark)
            except ChannelUnavailable:
                assert mark.seen_before == []
            else:
                assert await far.until_seen(1) == ["hello"]


class RefusalContract(Part):
    """What the server refuses for good is not tried for ever."""

    async def test_a_refused_message_fails_for_good(self):
        """`DeliveryFailed`, not temporary, nothing seen, and the next message goes through."""
        async with self.far_side() as far:
            channel = far.channel()
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await far.refuse_message()
                with pytest.raises(DeliveryFailed) as caught:
                    await channel.deliver(far.outbound("k1", "bad"), uncertain=Mark(far))
                assert not caught.value.temporary
                assert await far.seen() == []
                await channel.deliver(far.outbound("k2", "good"), uncertain=Mark(far))
                assert await far.until_seen(1) == ["good"]


class LostAnswerContract(Part):
    """The server took a message, and nobody heard of it."""

    async def test_a_lost_answer_is_uncertain_and_the_message_stays_one(self):
        """`DeliveryUncertain` after ``uncertain``; by the channel's rule the person sees one message."""
        async with self.far_side() as far:
            channel = far.channel()
            message = far.outbound("k1", "hello")
            async with running(channel, far.inbox):
                await far.inbox.until_up(within_s=far.patience_s)
                await far.lose_answer()
                mark = Mark(far)
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
                        group.start_soon(lambda: channel.deliver(message, uncertain=Mark(far)))
                        await far.until_seen(1)
                        group.cancel_scope.cancel()
                await deliver_again(far, channel, message)
                assert await far.seen() == ["hello"]


class ProbeContract(Part):
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
                    await channel.deliver(message, uncertain=Mark(far))
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
                await channel.deliver(far.outbound("k1", "hello"), uncertain=Mark(far))
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
