"""The loopback server is a faithful double: its knobs do what they say, and nothing else."""

from __future__ import annotations

import anyio
import pytest

from agent_core.messages import Audience, OutboundMessage, SessionKey
from channels.base import ChannelUnavailable, DeliveryUncertain, LinkState, Redelivery
from tests.clock import EPOCH
from tests.doubles.inbox import MemoryInbox, running
from tests.doubles.loopback import FileLoopbackServer, LoopbackChannel, LoopbackServer

pytestmark = pytest.mark.virtual_time


def answer(key: str, text: str = "hello", conversation: str = "dm-alice") -> OutboundMessage:
    return OutboundMessage(
        id=key,
        channel="loopback",
        account="bot",
        session=SessionKey("loopback", conversation),
        text=text,
        created_at=EPOCH,
        context={"route": {"event_id": "m1"}},
    )


async def no_mark() -> None:
    pass


class TestPeople:
    async def test_direct_and_group(self):
        """Several people and rooms: who speaks, where, and who can read along."""
        server, inbox = LoopbackServer(), MemoryInbox()
        server.groups.add("team")
        server.say("alice", "just you", name="Alice")
        server.say("bob", "all of you", conversation="team", addressed=False, verified=False)
        async with running(LoopbackChannel(server), inbox):
            direct, group = await inbox.until_accepted(2)
        assert (direct.session, direct.audience) == (SessionKey("loopback", "dm-alice"), Audience.DIRECT)
        assert (direct.sender.address, direct.sender.name, direct.sender.verified) == ("alice", "Alice", True)
        assert (group.session, group.audience) == (SessionKey("loopback", "team"), Audience.GROUP)
        assert (group.addressed, group.sender.verified) == (False, False)

    async def test_waiting_for_answers(self):
        """`answers` returns what one conversation sees as soon as it is there, and tells what is missing."""
        server, inbox = LoopbackServer(), MemoryInbox()
        channel = LoopbackChannel(server)
        async with running(channel, inbox), anyio.create_task_group() as group:
            await inbox.until_up()

            async def send() -> None:
                for key, conversation in (("k1", "dm-bob"), ("k2", "dm-alice"), ("k3", "dm-alice")):
                    await anyio.sleep(5)
                    await channel.deliver(answer(key, key, conversation), uncertain=no_mark)

            group.start_soon(send)
            seen = await server.answers(2, conversation="dm-alice")
            assert [delivered.text for delivered in seen] == ["k2", "k3"]
            assert seen[0].context.route == {"event_id": "m1"}
            with pytest.raises(TimeoutError, match="1 of 2 answers"):
                await server.answers(2, conversation="dm-bob", within_s=60)

    async def test_a_message_that_the_server_repeats(self):
        """A used native id is the same message, with a new place in the sequence."""
        server, inbox = LoopbackServer(), MemoryInbox()
        first = server.say("alice", "once")
        server.say("alice", "once", native_id=first)
        async with running(LoopbackChannel(server), inbox):
            await inbox.until_up()
        assert [message.native_id for message in inbox.offered] == [first, first]
        assert inbox.texts == ["once"]


class TestUpstream:
    async def test_many_messages_come_in_batches(self):
        """Nothing is lost between the batches, and the position is that of the last message."""
        server, inbox = LoopbackServer(), MemoryInbox()
        for number in range(25):
            server.say("alice", str(number))
        async with running(LoopbackChannel(server, batch=10), inbox):
            await inbox.until_up()
        assert inbox.texts == [str(number) for number in range(25)]
        assert inbox.positions == {"next": "25"}
        assert server.acknowledged == 25

    async def test_acknowledged_is_gone(self):
        """A bot that forgets its position does not get acknowledged messages again, unless it is rewound."""
        server = LoopbackServer()
        server.say("alice", "old")
        async with running(LoopbackChannel(server), inbox := MemoryInbox()):
            await inbox.until_up()
        async with running(LoopbackChannel(server), forgetful := MemoryInbox()):
            await forgetful.until_up()
        assert forgetful.texts == []
        server.rewind()
        async with running(LoopbackChannel(server), forgetful):
            await forgetful.until_up()
        assert forgetful.texts == ["old"]

    async def test_replays(self):
        """A server that repeats the last messages on every link makes offers, not messages."""
        server, inbox = LoopbackServer(), MemoryInbox()
        server.replays = 2
        for number in range(5):
            server.say("alice", str(number))
        for _ in range(2):
            async with running(LoopbackChannel(server), inbox):
                await inbox.until_up()
        assert [message.text for message in inbox.offered] == ["0", "1", "2", "3", "4", "3", "4"]
        assert inbox.texts == ["0", "1", "2", "3", "4"]
        assert inbox.positions == {"next": "5"}

    async def test_an_echo_is_not_a_message(self):
        """The bot's own answers come back, move the position and are not handed over."""
        server, inbox = LoopbackServer(), MemoryInbox()
        server.echo = True
        channel = LoopbackChannel(server)
        async with running(channel, inbox):
            await inbox.until_up()
            await channel.deliver(answer("k1"), uncertain=no_mark)
            await inbox.until(lambda inbox: inbox.positions.get("next") == "1")
        assert inbox.offered == []

    async def test_a_quiet_day_is_a_quiet_link(self):
        """Without any message the link stays up."""
        server, inbox = LoopbackServer(), MemoryInbox()
        async with running(LoopbackChannel(server), inbox) as run:
            await inbox.until_up()
            await anyio.sleep(3600)
            assert run.error is None
            server.say("alice", "still there?")
            await inbox.until_accepted(1)

    async def test_a_position_that_is_none(self):
        """Garbage in the store is an error for the operator, not a silent new beginning."""
        inbox = MemoryInbox()
        inbox.positions["next"] = "soon"
        async with running(LoopbackChannel(LoopbackServer()), inbox) as run:
            error = await run.until_ended()
        assert type(error).__name__ == "ChannelMisconfigured"
        assert inbox.state is LinkState.DOWN


class TestDownstream:
    async def test_failures_are_used_up(self):
        """Each failure hits one delivery, in order; the next one goes through."""
        server, inbox = LoopbackServer(), MemoryInbox()
        channel = LoopbackChannel(server)
        server.fail_deliveries(ChannelUnavailable("one"), DeliveryUncertain("two"))
        async with running(channel, inbox):
            await inbox.until_up()
            with pytest.raises(ChannelUnavailable):
                await channel.deliver(answer("k1"), uncertain=no_mark)
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer("k1"), uncertain=no_mark)
            assert server.tries == []
            await channel.deliver(answer("k1"), uncertain=no_mark)
        assert [delivered.text for delivered in server.delivered] == ["hello"]

    async def test_tries_and_messages(self):
        """Each try is counted; a known key shows nothing new only where the server recognises keys."""
        for redelivery, shown in ((Redelivery.SAME_KEY, 1), (Redelivery.PROBE, 2), (Redelivery.REVIEW, 2)):
            server, inbox = LoopbackServer(redelivery=redelivery), MemoryInbox()
            channel = LoopbackChannel(server)
            assert channel.capabilities.redelivery is redelivery
            async with running(channel, inbox):
                await inbox.until_up()
                for _ in range(2):
                    await channel.deliver(answer("k1"), uncertain=no_mark)
            assert (len(server.tries), len(server.delivered)) == (2, shown)

    async def test_slow_servers(self):
        """A server that takes too long is uncertain; whether it has taken the message depends on where."""
        server, inbox = LoopbackServer(), MemoryInbox()
        channel = LoopbackChannel(server, timeout_s=30)
        async with running(channel, inbox):
            await inbox.until_up()
            server.delay_s = 20
            await channel.deliver(answer("k1"), uncertain=no_mark)
            server.delay_s = 40
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer("k2"), uncertain=no_mark)
            server.delay_s, server.answer_delay_s = 0, 40
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer("k3"), uncertain=no_mark)
        assert [delivered.key for delivered in server.delivered] == ["k1", "k3"]

    async def test_points(self):
        """The channel passes its named moments in the order of the contract."""
        server, inbox, points = LoopbackServer(), MemoryInbox(), []
        channel = LoopbackChannel(server, point=points.append)
        server.say("alice", "hello")
        async with running(channel, inbox):
            await inbox.until_up()
            await channel.deliver(answer("k1"), uncertain=no_mark)
        assert points == ["fetched", "accepted", "acknowledged", "sending", "uncertain", "taken"]

    async def test_hints_are_seen(self):
        """Typing and previews can be looked at."""
        server = LoopbackServer()
        channel, session = LoopbackChannel(server), SessionKey("loopback", "dm-alice")
        await channel.typing(session, on=True)
        assert server.typing == {"dm-alice"}
        await channel.typing(session, on=False)
        await channel.preview(session, "half")
        assert server.typing == set()
        assert list(server.previews) == [("dm-alice", "half")]


class TestFolder:
    async def test_two_views_of_one_folder(self, tmp_path):
        """What one object says the other hands out; what the other takes the first one sees."""
        people, bot = FileLoopbackServer(tmp_path), FileLoopbackServer(tmp_path)
        inbox = MemoryInbox()
        channel = LoopbackChannel(bot)
        async with running(channel, inbox):
            await inbox.until_up()
            people.groups.add("team")
            people.say("alice", "Ä\nline", conversation="team")
            (message,) = await inbox.until_accepted(1)
            await channel.deliver(answer("k1", "Ö", "team"), uncertain=no_mark)
            await channel.deliver(answer("k1", "Ö", "team"), uncertain=no_mark)
            (seen,) = await people.answers(1)
        assert (message.text, message.audience) == ("Ä\nline", Audience.GROUP)
        assert (seen.text, seen.key) == ("Ö", "k1")
        people.refresh()
        assert (len(people.tries), people.acknowledged) == (2, 1)

    async def test_half_a_line_is_not_read(self, tmp_path):
        """A reader that is quicker than the writer waits for the end of the line."""
        server = FileLoopbackServer(tmp_path)
        server.say("alice", "whole")
        whole = (tmp_path / "said.jsonl").read_bytes()
        (tmp_path / "said.jsonl").write_bytes(whole + whole[:20])
        other = FileLoopbackServer(tmp_path)
        other.refresh()
        assert len(other.said) == 1
        (tmp_path / "said.jsonl").write_bytes(whole + whole)
        other.refresh()
        assert len(other.said) == 2
