"""From a row that is to be spoken to the voice message, whatever the speaker, the disk and the budget do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ModelRefused, ModelUnavailable, ModelUnreadable
from agent_core.media.sound_file import Sound
from agent_core.media.speech import SpeechResult
from agent_core.messages import Amendment, MessageContext, OutboundKind, SessionKey, Speech
from channels.attachments import AttachmentStore, AttachmentsUnavailable
from channels.base import Capabilities, ChannelUnavailable, Receipt, Redelivery
from gateway.routing.speech_delivery import SpeechChannel, SpeechState
from gateway.store.model import SPEECH_CHANNEL
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import IllegalMove, InboxState, OutboxState
from gateway.store.stores import Completion, NewOutbound, OutboxRow, StoreUnavailable
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import BOT, ROOM, accept, claim, out

SOUND = SpeechResult(b"OggS and so on", "audio/ogg", Sound(2.5, (0, 1024, 3)), "openai/tts-1", 0.03)


class Voice:
    """A speaker whose answers are scripted: an exception is raised, anything else is the sound."""

    def __init__(self) -> None:
        self.script: list[Exception] = []
        self.asked: list[str] = []

    async def speak(self, text: str) -> SpeechResult:
        self.asked.append(text)
        if self.script:
            raise self.script.pop(0)
        return SOUND

    async def aclose(self) -> None: ...


class To:
    name, account = "matrix", BOT

    def __init__(self, *, email_style: bool = False) -> None:
        self.capabilities = Capabilities(Redelivery.SAME_KEY, attachments=True, email_style=email_style)


class Left(To):
    """A channel that knows that the bot is not there any more, or cannot say."""

    def __init__(self, *, knows: bool = True) -> None:
        super().__init__()
        self.knows = knows

    async def is_in(self, session: SessionKey) -> bool:
        if not self.knows:
            raise ChannelUnavailable("not connected")
        return False


class Scenario:
    """A queue with an answer, whose row for its sound is being delivered by hand."""

    def __init__(self, store: SqliteQueue, folder: Path, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.voice = Voice()
        self.files = AttachmentStore(folder)
        self.counts = SpeechState()
        self.budget = ""
        self.for_owner: list[bool] = []
        self.paid: list[tuple[SessionKey, str]] = []

    async def pay(self, session: SessionKey, text: str) -> None:
        self.paid.append((session, text))

    async def refusal(self, _: Any, owner: bool) -> str:
        self.for_owner.append(owner)
        return self.budget

    def channel(self, *, voice: bool = True, to: To | None = None, **more: Any) -> SpeechChannel:
        return SpeechChannel(
            to or To(**more),  # type: ignore[arg-type]
            store=self.store,
            voice=(lambda: self.voice) if voice else None,
            files=self.files,
            refusal=self.refusal,
            paid=self.pay,
            counts=self.counts,
            clock=self.clock,
        )

    async def answer(self) -> tuple[OutboxRow, OutboxRow]:
        """The rows of an answer that is to be spoken: its text, and what stands for the sound."""
        await accept(self.store, "a")
        turn = await claim(self.store)
        context = MessageContext(route={"event_id": "a"}, part=1, speech=Speech(owner=True))
        spoken = NewOutbound(SPEECH_CHANNEL, BOT, ROOM, "Read this.", OutboundKind.NOTICE, context=context)
        text, sound = await self.store.turns.complete(turn, Completion(outbound=[out("*Read* this"), spoken]))
        return text, sound

    async def deliver(self, row: OutboxRow, channel: SpeechChannel | None = None) -> Receipt:
        await self.store.outbox.sending(row)

        async def uncertain() -> None:
            await self.store.outbox.uncertain(row)

        return await (channel or self.channel()).deliver(row.message, uncertain=uncertain)

    async def rows(self, *states: OutboxState) -> list[OutboxRow]:
        return sorted(await self.store.outbox.rows(states=states), key=lambda row: row.id)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Scenario]:
    clock = ManualClock(EPOCH)
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=clock) as store:
        yield Scenario(store, tmp_path, clock)


async def test_where_the_bot_has_left_nothing_is_spoken(world: Scenario) -> None:
    """Nobody is paid, and there is no dead letter; where that cannot be said now the row waits."""
    _, row = await world.answer()
    with pytest.raises(ChannelUnavailable):
        await world.deliver(row, world.channel(to=Left(knows=False)))
    await world.store.outbox.record_failure(row, "not connected", delay_s=0.0)
    receipt = await world.deliver(row, world.channel(to=Left()))
    await world.store.outbox.record_send(row, receipt.provider_id)
    assert world.voice.asked == []
    assert [each.state for each in await world.rows()] == [OutboxState.PENDING, OutboxState.SENT]
    assert world.counts.state() == {
        "spoken": 0,
        "not_spoken": 1,
        "trouble": "I am no longer in that conversation",
    }


async def test_what_was_paid_while_the_bot_was_removed_counts(world: Scenario) -> None:
    """The row is given up while the provider speaks: nothing is sent, and the budget knows of it."""
    _, row = await world.answer()
    speak = world.voice.speak

    async def removed(text: str) -> SpeechResult:
        left = Amendment(kind="leave", native_id="$kick", session=ROOM)
        await world.store.inbox.accept("matrix", BOT, [], {}, [left])
        return await speak(text)

    world.voice.speak = removed  # type: ignore[method-assign]
    with pytest.raises(IllegalMove):
        await world.deliver(row)
    assert [each.state for each in await world.rows()] == [OutboxState.DEAD] * 2
    assert world.paid == [(ROOM, "Read this.")]


async def test_what_is_spoken_goes_out_behind_its_text(world: Scenario) -> None:
    """A reply without text that brings the sound and what is known of it; its cost is noted, the row is done."""
    _, row = await world.answer()
    receipt = await world.deliver(row)
    text, done, voice = await world.rows()
    assert [each.state for each in (text, done, voice)] == [
        OutboxState.PENDING,
        OutboxState.SENT,
        OutboxState.PENDING,
    ]
    assert (voice.message.channel, voice.message.text, voice.message.kind) == (
        "matrix",
        "",
        OutboundKind.REPLY,
    )
    assert voice.message.id == receipt.provider_id
    assert voice.message.context == MessageContext(
        route={"event_id": "a"}, part=1, speech=Speech(duration_ms=2500, waveform=(0, 1024, 3))
    )
    [file] = voice.message.attachments
    assert (file.name, file.media_type) == ("Voice message.ogg", "audio/ogg")
    assert await world.files.read(file, max_bytes=100) == SOUND.content
    assert world.voice.asked == ["Read this."]
    [usage] = await world.store.usage.rows()
    assert (usage.purpose, usage.model, usage.usage.calls, usage.usage.cost_usd) == (
        "speech",
        "openai/tts-1",
        1,
        0.03,
    )
    assert world.counts.state() == {"spoken": 1, "not_spoken": 0, "trouble": None}
    assert world.for_owner == [True]
    assert (await world.store.approvals.newest_rows(ROOM))[0].message.text == "*Read* this"


async def test_a_mail_says_what_it_brings(world: Scenario) -> None:
    """Where every message has a text, it begins with what is spoken, and says how long."""
    _, row = await world.answer()
    await world.deliver(row, world.channel(email_style=True))
    *_, voice = await world.rows()
    assert voice.message.text == "My last answer, spoken (0:02): “Read this.”"


async def test_what_was_refused_for_good_leaves_no_dead_letter(world: Scenario) -> None:
    """The row is done, the message is settled with its text, and the reason is told."""
    text, row = await world.answer()
    world.voice.script = [ModelRefused("no such voice")]
    receipt = await world.deliver(row)
    await world.store.outbox.record_send(row, receipt.provider_id)
    await world.store.outbox.sending(text)
    await world.store.outbox.record_send(text, "$text")
    assert [each.state for each in await world.rows()] == [OutboxState.SENT] * 2
    assert world.counts.state() == {"spoken": 0, "not_spoken": 1, "trouble": "no such voice"}
    [question] = await world.store.inbox.rows()
    assert question.state is InboxState.SETTLED
    assert (await world.store.usage.rows(), world.paid) == ([], [])


async def test_an_answer_that_cannot_be_read_counts_as_paid(world: Scenario) -> None:
    """The provider has worked, whatever it sent; nobody is asked again."""
    _, row = await world.answer()
    world.voice.script = [ModelUnreadable("a page")]
    await world.deliver(row)
    assert (world.voice.asked, world.paid) == (["Read this."], [(ROOM, "Read this.")])


async def test_a_provider_that_is_away_is_asked_again_until_it_is_too_late(world: Scenario) -> None:
    """Ten minutes long; then nobody is asked any more, also not when it was left open by a crash."""
    _, row = await world.answer()
    world.voice.script = [ModelUnavailable("away"), ModelUnavailable("away")]
    with pytest.raises(ChannelUnavailable):
        await world.deliver(row)
    world.clock.advance(timedelta(minutes=11).total_seconds())
    await world.deliver(row)
    assert world.voice.asked == ["Read this."]
    assert world.counts.state()["trouble"] == "it is too long ago"


async def test_where_the_budget_is_spent_nobody_is_asked(world: Scenario) -> None:
    """The text stands."""
    _, row = await world.answer()
    world.budget = "the budget of the day is spent"
    await world.deliver(row)
    assert world.voice.asked == []
    assert world.counts.state()["trouble"] == "the budget of the day is spent"


async def test_without_its_text_nothing_is_spoken(world: Scenario) -> None:
    """A voice message never comes alone: a text that was refused for good is not read out either."""
    text, row = await world.answer()
    await world.store.outbox.sending(text)
    await world.store.outbox.record_failure(text, "refused", delay_s=None)
    await world.deliver(row)
    assert world.voice.asked == []
    assert world.counts.state()["trouble"] == "its text did not arrive"


async def test_while_the_disk_is_full_a_sound_is_paid_once(
    world: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a file that cannot be kept nor a queue that takes nothing makes it be spoken again."""
    _, row = await world.answer()
    channel = world.channel()

    async def full(*_: Any, **__: Any) -> Any:
        raise AttachmentsUnavailable("no space")

    with monkeypatch.context() as patched:
        patched.setattr(world.files, "save", full)
        with pytest.raises(ChannelUnavailable):
            await world.deliver(row, channel)

    async def refuses(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("no space")

    with monkeypatch.context() as patched:
        patched.setattr(type(world.store.outbox), "pass_on", refuses)
        with pytest.raises(StoreUnavailable):
            await world.deliver(row, channel)
    await world.deliver(row, channel)
    assert world.voice.asked == ["Read this."]
    assert len(await world.rows()) == 3


async def test_what_waits_is_given_up_where_speaking_was_switched_off(world: Scenario) -> None:
    """Nothing stays open in the outbox."""
    _, row = await world.answer()
    await world.deliver(row, world.channel(voice=False))
    assert world.counts.state()["trouble"] == "speaking is switched off"
    assert world.voice.asked == []


async def test_after_a_crash_it_is_only_asked_for_if_it_was_not_passed_on(world: Scenario) -> None:
    """What is uncertain is surely not there, and what was passed on is never found uncertain."""
    _, row = await world.answer()
    await world.store.outbox.sending(row)
    await world.store.outbox.uncertain(row)
    assert await world.channel().probe(row.message) is None
    await world.deliver(row)
    assert await world.rows(OutboxState.UNCERTAIN, OutboxState.SENDING) == []
