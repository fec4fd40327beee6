"""Which request a message answers, what a repetition gets, and what waits for the next request."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from agent_core.messages import MessageContext, MessageNotes, OutboundKind, OutboundMessage, SessionKey
from agent_core.state_folder import DiskFolder
from channels.api.channel import MAX_OPEN, ApiChannel, KeyReused, TooManyRequests
from channels.api.config import ApiConfig
from channels.api.request import RequestWords
from channels.api.token_store import ApiTokens
from channels.attachments import AttachmentStore
from channels.base import ChannelUnavailable, NoRecipient
from channels.plugin import ChannelServices
from tests.clock import EPOCH, ManualClock
from tests.doubles.inbox import MemoryInbox, running

ANNA = "@anna:example.org"


class Scenario:
    """A channel, its inbox, and the gateway's part of a delivery."""

    def __init__(self, home) -> None:
        self.home, self.inbox, self.arrived = home, MemoryInbox(), []
        self.sent = 0
        tokens = ApiTokens(DiskFolder(home))
        tokens.add("phone", ANNA, EPOCH)
        tokens.add("bob", "@bob:example.org", EPOCH)
        self.token, self.bobs = tokens.rows()
        self.restart()

    def restart(self) -> None:
        services = ChannelServices(
            name="api",
            clock=ManualClock(),
            state=DiskFolder(self.home),
            attachments=AttachmentStore(self.home),
            may_talk=lambda address: True,
            is_owner=lambda address: False,
            owner_addresses=(),
            alert=lambda about, text, once="": None,
            arrived=self.arrived.append,
        )
        self.channel = ApiChannel(ApiConfig(), services)

    async def deliver(
        self, text, *, answers=None, session=None, kind=OutboundKind.REPLY, recorded=True, **notes
    ):
        """Deliver as the gateway does: to the session and with the context of the message that it answers."""
        self.sent += 1
        context = MessageContext() if answers is None else answers.context
        message = OutboundMessage(
            id=f"out{self.sent}",
            channel="api",
            account=self.channel.account,
            session=session or answers.session,
            text=text,
            created_at=EPOCH + timedelta(seconds=self.sent),
            kind=kind,
            context=context
            if not notes
            else MessageContext(route=context.route, notes=MessageNotes(**notes)),
        )

        async def uncertain():
            pass

        receipt = await self.channel.deliver(message, uncertain=uncertain)
        if recorded:
            self.inbox.delivered[receipt.provider_id] = message.id
            self.inbox.outbound[message.id] = message
        return receipt


def words(text, conversation="", digest=""):
    return RequestWords(text, (), (), conversation, False, digest or text)


@pytest.fixture
async def world(tmp_path):
    made = Scenario(tmp_path)
    async with running(made.channel, made.inbox):
        await made.inbox.until_up()
        yield made


@asynccontextmanager
async def asked(world, key, text, conversation="c", token=None):
    """An open request and its accepted message."""
    async with world.channel.ask(token or world.token, key, words(text, conversation)) as request:
        message = next(each for each in world.inbox.accepted if each.native_id == request.native_id)
        yield request, message


async def whole(world, request):
    async for _ in world.channel.watch(request):
        pass
    return request.text


async def test_a_request_is_a_message_of_its_person_and_what_answers_it_is_its_answer(world):
    async with asked(world, "k", "hello") as (request, message):
        assert (message.sender.address, message.sender.verified, message.text) == (ANNA, True, "hello")
        assert message.session == SessionKey("api", "chat.c", ANNA)
        await world.deliver("hi", answers=message)
        assert await whole(world, request) == "hi"


async def test_a_repetition_has_the_same_answer_also_after_a_restart(world):
    async with asked(world, "k", "hello") as (_, message):
        await world.deliver("hi", answers=message)
    world.restart()
    async with running(world.channel, world.inbox):
        await anyio.sleep(0)
        async with asked(world, "k", "hello") as (request, _):
            assert await whole(world, request) == "hi"
    assert len(world.inbox.accepted) == 1


async def test_without_what_is_stored_a_repetition_would_wait_for_ever(world, monkeypatch):
    """The control: nothing else brings the answer back."""

    async def nothing(_inbox, _native_id):
        return []

    async with asked(world, "k", "hello") as (_, message):
        await world.deliver("hi", answers=message)
    monkeypatch.setattr(world.channel, "_stored", nothing)
    async with asked(world, "k", "hello") as (request, _):
        with pytest.raises(TimeoutError), anyio.fail_after(0.3):
            await whole(world, request)


async def test_an_answer_between_two_requests_is_found(world):
    """Delivered and not yet recorded when the repetition looks: it looks again."""
    async with asked(world, "k", "hello") as (_, message):
        receipt = await world.deliver("hi", answers=message, recorded=False)
    async with asked(world, "k", "hello") as (request, _), anyio.create_task_group() as tasks:
        tasks.start_soon(whole, world, request)
        await anyio.sleep(0.02)
        sent = OutboundMessage(
            id="out1", channel="api", account="squidbot", session=message.session, text="hi", created_at=EPOCH,
            context=message.context,
        )  # fmt: skip
        world.inbox.delivered[receipt.provider_id], world.inbox.outbound["out1"] = "out1", sent
    assert request.text == "hi"


async def test_who_goes_away_finds_the_answer_later(world):
    async with asked(world, "k", "hello") as (_, message):
        pass
    await world.deliver("hi", answers=message)
    async with asked(world, "k", "hello") as (request, _):
        assert await whole(world, request) == "hi"
    async with asked(world, "other", "and?") as (request, message):
        await world.deliver("nothing", answers=message)
        assert await whole(world, request) == "nothing"


async def test_a_key_is_for_one_request_of_one_token(world):
    async with asked(world, "k", "hello") as (_, message):
        await world.deliver("hi", answers=message)
        with pytest.raises(KeyReused):
            async with asked(world, "k", "something else"):
                pass
    with pytest.raises(KeyReused):
        async with asked(world, "k", "something else"):
            pass
    async with asked(world, "k", "something else", token=world.bobs) as (request, message):
        await world.deliver("hi Bob", answers=message)
        assert await whole(world, request) == "hi Bob"


async def test_the_answer_to_a_yes_is_what_came_of_it(world):
    """The question ends the first request; the confirmation does not end the second one."""
    async with asked(world, "k1", "delete it") as (request, first):
        await world.deliver("May I?", answers=first, kind=OutboundKind.NOTICE, approves=("a1",))
        assert await whole(world, request) == "May I?"
    async with asked(world, "k2", "yes") as (request, second):
        await world.deliver("a1 is approved", answers=second, settled="approved")
        assert not request.answers
        await world.deliver("deleted", answers=first)
        assert await whole(world, request) == "a1 is approved\n\ndeleted"
    async with asked(world, "k2", "yes") as (request, _):
        assert await whole(world, request) == "a1 is approved\n\ndeleted"


async def test_what_answers_nothing_waits_for_the_persons_next_request(world):
    """A reminder is refused until its person asks something, wherever; nobody else gets it."""
    place = SessionKey("api", "chat.old", ANNA)
    with pytest.raises(NoRecipient):
        await world.deliver("the tea", session=place)
    async with asked(world, "b", "hello", token=world.bobs):
        assert world.arrived == []
        with pytest.raises(NoRecipient):
            await world.deliver("the tea", session=place)
    async with asked(world, "k", "hello") as (request, message):
        assert world.arrived == [place]
        await world.deliver("the tea", session=place)
        await world.deliver("hi", answers=message)
        assert await whole(world, request) == "the tea\n\nhi"


async def test_an_answer_does_not_depend_on_what_came_with_it(world):
    """A reminder that was not recorded as sent before a crash may go elsewhere; the answer is found all the same."""
    place = SessionKey("api", "chat.old", ANNA)
    async with asked(world, "k", "hello") as (_, message):
        await world.deliver("the tea", session=place, recorded=False)
        await world.deliver("hi", answers=message)
    world.restart()
    async with running(world.channel, world.inbox):
        await anyio.sleep(0)
        async with asked(world, "k", "hello") as (request, _):
            assert await whole(world, request) == "hi"


async def test_what_comes_after_an_answer_is_not_lost_in_it(world):
    """Its request may still be open, and says no more: that goes into the next one."""
    async with asked(world, "k1", "hello") as (first, message):
        await world.deliver("hi", answers=message)
        with pytest.raises(NoRecipient):
            await world.deliver("and more", answers=message)
        assert first.text == "hi"
        async with asked(world, "k2", "hello again") as (second, _):
            await world.deliver("and more", answers=message)
            assert second.text == "and more"


async def test_previews_are_shown_where_the_turn_is(world):
    async with asked(world, "k1", "one") as (first, message), asked(world, "k2", "two") as (second, _):
        await world.channel.preview(message.session, " to o ")
        assert (first.text, second.text) == ("to o", "")
        await world.deliver("to one", answers=message)
        await world.channel.preview(message.session, "to t")
        assert (first.text, second.text) == ("to one", "to t")


async def test_nothing_is_accepted_while_it_does_not_run(tmp_path):
    world = Scenario(tmp_path)
    with pytest.raises(ChannelUnavailable):
        async with asked(world, "k", "hello"):
            pass


@pytest.mark.parametrize("is_one", [False, True])
async def test_a_token_may_have_so_many_open_requests(world, is_one):
    """However many of them are repetitions of one."""
    async with anyio.create_task_group() as tasks:
        release, held = anyio.Event(), []

        async def hold(number):
            async with world.channel.ask(world.token, "k" if is_one else f"k{number}", words("x")):
                held.append(number)
                await release.wait()

        for number in range(MAX_OPEN):
            tasks.start_soon(hold, number)
        while len(held) < MAX_OPEN:
            await anyio.sleep(0)
        with pytest.raises(TooManyRequests):
            async with asked(world, "more", "x"):
                pass
        async with asked(world, "more", "x", token=world.bobs):
            pass
        release.set()
