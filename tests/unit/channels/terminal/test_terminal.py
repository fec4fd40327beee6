"""The terminal's links: who has taken what, and what a person sees of it."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from agent_core.messages import Audience, OutboundKind, OutboundMessage, SessionKey
from channels.base import ChannelUnavailable, DeliveryUncertain
from channels.terminal import Answer, Preview, TerminalChannel, Typing, parse_event
from tests.doubles.inbox import MemoryInbox, running

pytestmark = pytest.mark.virtual_time
MAIN = SessionKey("terminal", "main")


def answer(key: str, text: str = "hello", session: SessionKey = MAIN) -> OutboundMessage:
    return OutboundMessage(
        id=key, channel="terminal", account="local", session=session, text=text, created_at=datetime.now(UTC)
    )


async def no_mark() -> None:
    pass


async def read(link, into: list, *, pause_s: float = 0.0) -> None:
    async for event in link:
        into.append(event)
        await anyio.sleep(pause_s)


class TestDelivering:
    async def test_nobody_there(self):
        """Without a link in the session the answer waits, and nothing has become uncertain."""
        channel = TerminalChannel()
        other = channel.attach("other")
        marks = []

        async def mark():
            marks.append(1)

        with pytest.raises(ChannelUnavailable) as caught:
            await channel.deliver(answer("k1"), uncertain=mark)
        assert caught.value.temporary
        assert caught.value.retry_after_s
        assert marks == []
        other.close()

    async def test_attaching_is_told(self):
        """Whoever sends is told that a session has somebody again."""
        told = []
        channel = TerminalChannel(on_attach=told.append)
        channel.attach("main")
        channel.attach("other")
        assert told == [MAIN, SessionKey("terminal", "other")]

    async def test_every_link_of_the_session_gets_it(self):
        """Two screens show the same answer, also the one that is slower."""
        channel = TerminalChannel()
        fast, slow = [], []
        async with anyio.create_task_group() as group:
            group.start_soon(read, channel.attach(), fast)
            link = channel.attach()
            await channel.deliver(answer("k1"), uncertain=no_mark)
            await channel.deliver(answer("k2"), uncertain=no_mark)
            group.start_soon(read, link, slow)
            await anyio.sleep(1)
            await channel.aclose()
        assert [event.id for event in fast] == [event.id for event in slow] == ["k1", "k2"]

    async def test_a_holder_that_does_not_come_back_is_uncertain(self):
        """It has received the answer, so it may have shown it; when it comes back, the repetition is known."""
        channel = TerminalChannel()
        shown = []
        async with anyio.create_task_group() as group:

            async def slow(link) -> None:
                await read(link, shown, pause_s=15)

            group.start_soon(slow, channel.attach())
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer("k1"), uncertain=no_mark)
            receipt = await channel.deliver(answer("k1"), uncertain=no_mark)
            await channel.aclose()
        assert receipt.provider_id == "k1"
        assert [event.id for event in shown] == ["k1"]

    async def test_a_link_that_nobody_reads_has_not_taken_it(self):
        """What was never received is surely not there, and is not shown later either."""
        channel = TerminalChannel()
        link = channel.attach()
        with pytest.raises(ChannelUnavailable):
            await channel.deliver(answer("k1"), uncertain=no_mark)
        await channel.typing(MAIN, on=True)
        assert isinstance(await anext(link), Typing)

    async def test_a_holder_that_breaks_has_not_dealt_with_it(self):
        """The answer goes to the next link under the same id."""
        channel = TerminalChannel()

        async def breaks(link) -> None:
            with pytest.raises(BrokenPipeError):
                async with link:
                    async for _ in link:
                        raise BrokenPipeError

        shown = []
        async with anyio.create_task_group() as group:
            group.start_soon(breaks, channel.attach())
            with pytest.raises(DeliveryUncertain):
                await channel.deliver(answer("k1"), uncertain=no_mark)
            group.start_soon(read, channel.attach(), shown)
            await channel.deliver(answer("k1"), uncertain=no_mark)
            await channel.aclose()
        assert [event.id for event in shown] == ["k1"]

    async def test_leaving_in_order_is_having_dealt_with_it(self):
        """A client that reads one answer and goes has taken it."""
        channel = TerminalChannel()

        async def one(link) -> None:
            async with link:
                assert (await anext(link)).id == "k1"

        async with anyio.create_task_group() as group:
            group.start_soon(one, channel.attach())
            assert (await channel.deliver(answer("k1"), uncertain=no_mark)).provider_id == "k1"
        assert (await channel.deliver(answer("k1"), uncertain=no_mark)).provider_id == "k1"

    async def test_a_screen_that_never_reads_costs_a_bounded_queue(self):
        """While another link takes everything, a dead one keeps the newest 64 answers."""
        channel = TerminalChannel()
        shown, late = [], []
        async with anyio.create_task_group() as group:
            group.start_soon(read, channel.attach(), shown)
            dead = channel.attach()
            for number in range(100):
                await channel.deliver(answer(f"k{number}"), uncertain=no_mark)
                await channel.typing(MAIN, on=True)
            group.start_soon(read, dead, late)
            await anyio.sleep(1)
            await channel.aclose()
        answers = [event.id for event in late if isinstance(event, Answer)]
        assert len([event for event in shown if isinstance(event, Answer)]) == 100
        assert answers[-1] == "k99"
        assert 60 <= len(answers) <= 64
        assert answers == [f"k{number}" for number in range(100 - len(answers), 100)]

    async def test_too_many_screens(self):
        """The 33rd link is refused."""
        channel = TerminalChannel()
        links = [channel.attach() for _ in range(32)]
        with pytest.raises(ChannelUnavailable):
            channel.attach()
        links[0].close()
        channel.attach()


class TestHints:
    async def test_only_the_newest_waits(self):
        """Ten previews that nobody has read are one; an answer drops the preview that waits."""
        channel = TerminalChannel()
        link, shown = channel.attach(), []
        for number in range(10):
            await channel.typing(MAIN, on=True)
            await channel.preview(MAIN, f"text {number}")
        assert await anext(link) == Typing(on=True)
        assert await anext(link) == Preview(text="text 9")
        await channel.preview(MAIN, "old")
        async with anyio.create_task_group() as group:
            group.start_soon(channel_deliver, channel, answer("k1"))
            await anyio.sleep(0.01)
            group.start_soon(read, link, shown)
            await anyio.sleep(0.01)
            await channel.aclose()
        assert [event.type for event in shown] == ["answer"]

    async def test_other_sessions_do_not_see_them(self):
        """A hint goes to its session alone."""
        channel = TerminalChannel()
        main, other = channel.attach("main"), channel.attach("other")
        await channel.preview(MAIN, "secret")
        await channel.preview(other.session, "other")
        assert await anext(other) == Preview(text="other")
        assert await anext(main) == Preview(text="secret")


async def channel_deliver(channel, message) -> None:
    await channel.deliver(message, uncertain=no_mark)


class TestSaying:
    async def test_it_is_accepted_when_say_returns(self):
        """The message is the local person's, verified, direct, in the session of the link."""
        channel, inbox = TerminalChannel(), MemoryInbox()
        async with running(channel, inbox):
            await inbox.until_up()
            native_id = await channel.attach("work").say("hello")
            (message,) = inbox.accepted
        assert message.native_id == native_id
        assert message.session == SessionKey("terminal", "work")
        assert (message.sender.address, message.sender.verified) == ("local", True)
        assert message.audience is Audience.DIRECT

    async def test_ids_are_unique(self):
        """The same text twice is two messages."""
        channel, inbox = TerminalChannel(), MemoryInbox()
        async with running(channel, inbox):
            await inbox.until_up()
            link = channel.attach()
            assert await link.say("again") != await link.say("again")
        assert inbox.texts == ["again", "again"]

    async def test_without_a_run(self):
        """Before ``run`` and after it, saying fails at once and clearly."""
        channel, inbox = TerminalChannel(), MemoryInbox()
        link = channel.attach()
        with pytest.raises(ChannelUnavailable):
            await link.say("too early")
        async with running(channel, inbox):
            await inbox.until_up()
        with pytest.raises(ChannelUnavailable):
            await link.say("too late")
        assert inbox.texts == []

    async def test_an_unknown_fate_is_settled_by_saying_it_again(self):
        """While the disk is full, `say` gives up in time; repeated with the same id it counts once."""
        channel, inbox = TerminalChannel(), MemoryInbox()
        link = channel.attach()
        async with running(channel, inbox):
            await inbox.until_up()
            inbox.hold()
            with pytest.raises(ChannelUnavailable):
                await link.say("hello", native_id="n1")
            inbox.release()
            await link.say("hello", native_id="n1")
        assert inbox.texts == ["hello"]

    async def test_a_stop_wakes_everybody_who_waits(self, monkeypatch):
        """When ``run`` ends, those in the batch, in the queue and before the queue learn it at once."""
        monkeypatch.setattr("channels.terminal.channel.LIMIT_S", 3600)
        channel, inbox = TerminalChannel(), MemoryInbox()
        link, failed = channel.attach(), []

        async def say(number: int) -> None:
            try:
                await link.say(str(number))
            except ChannelUnavailable:
                failed.append(number)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                async with running(channel, inbox) as run:
                    await inbox.until_up()
                    inbox.hold()
                    for number in range(100):
                        group.start_soon(say, number)
                    await anyio.sleep(1)
                    await run.cancel()
        assert len(failed) == 100
        assert inbox.texts == []

    async def test_half_a_character_is_no_trouble(self):
        """A lone surrogate, as a broken keyboard or paste makes it, becomes a question mark."""
        channel, inbox = TerminalChannel(), MemoryInbox()
        async with running(channel, inbox):
            await inbox.until_up()
            await channel.attach().say("a\udcffb")
        assert inbox.texts == ["a?b"]


class TestEvents:
    @pytest.mark.parametrize(
        "event",
        [Answer(id="k1", text="Ä\n", kind=OutboundKind.ALERT), Preview(text="half"), Typing(on=False)],
    )
    def test_they_fit_into_a_line_of_json(self, event):
        """Written and read back they are the same, on one line."""
        line = event.model_dump_json()
        assert "\n" not in line
        assert parse_event(line) == event

    @pytest.mark.parametrize("line", ["", "{}", "[]", '{"type": "other"}', '{"type": "answer"}'])
    def test_what_is_none_is_refused(self, line):
        """Anything else is a ValueError."""
        with pytest.raises(ValueError):
            parse_event(line)

    async def test_closing_ends_the_iteration(self):
        """A reader that waits is let go."""
        channel = TerminalChannel()
        shown = []
        async with anyio.create_task_group() as group:
            group.start_soon(read, channel.attach(), shown)
            await anyio.sleep(1)
            await channel.aclose()
        assert shown == []
