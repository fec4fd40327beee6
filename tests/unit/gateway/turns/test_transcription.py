"""Sound files become text before the turn: what is heard, what is not and why, what is paid and what is not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from types import SimpleNamespace

import anyio
import pytest

from agent_core.errors import (
    BudgetSpent,
    ModelRateLimited,
    ModelUnavailable,
    StorageUnavailable,
)
from agent_core.llm.litellm.litellm_client import LiteLLMProcess
from agent_core.llm.model_config import LLMSpec, ProviderSpec
from agent_core.media.media_client import build_transcriber
from agent_core.media.media_config import TranscribeSettings
from agent_core.media.transcript import StoredTranscript, Transcript
from agent_core.messages import Attachment, InboundMessage, MessageContext, MessageNotes
from agent_core.models import Purpose, Usage
from devservers.transcription import Reply, TranscriptionServer
from gateway.budget.budget_policy import BudgetTier
from gateway.store.stores import StoreUnavailable, Turn
from gateway.system.clock import SystemClock
from gateway.turns.transcription import STEP, Transcription, TranscriptionLimits, sound_files
from gateway.turns.user_input import user_input
from tests.clock import EPOCH
from tests.sounds import m4a, mp3, ogg_opus, wav
from tests.unit.gateway.turns.test_origins_of_messages import ACCESS, MAIL, TEXT, message


class Files:
    """Attachments by their hash."""

    def __init__(self):
        self.kept = {}
        self.trouble = None

    def keep(self, content, name="Voice message.ogg", media_type="audio/ogg"):
        digest = f"{len(self.kept):064d}"
        self.kept[digest] = content
        return Attachment(
            name=name, media_type=media_type, size_bytes=len(content), path=digest, sha256=digest
        )

    async def read(self, attachment, *, max_bytes, offset=0):
        if self.trouble:
            raise self.trouble
        return self.kept[attachment.sha256][:max_bytes]


@dataclass(frozen=True)
class Row:
    """What is looked at of a row of the inbox."""

    id: int
    message: InboundMessage
    accepted_at: datetime = EPOCH


class Meter:
    """Notes what is paid; refuses when it is told to."""

    def __init__(self, tier=BudgetTier.OWNER):
        self.paid = []
        self.refuses = False
        self.tier = tier

    async def record(self):
        pass

    async def enter(self, tokens):
        if self.refuses:
            raise BudgetSpent("spent")

    def settle(self, usage):
        self.paid.append(usage)


class Journal:
    """Steps of one turn, as the store keeps them."""

    def __init__(self):
        self.turns = self
        self.kept = {}
        self.full = False

    async def record_step_result(self, turn, step):
        if self.full:
            raise StoreUnavailable("the disk is full")
        self.kept[step.number] = step


class Slow:
    """Listens until it is told that it has listened long enough."""

    def __init__(self):
        self.begun = 0
        self.go = anyio.Event()

    async def has_begun(self, count):
        with anyio.fail_after(60):
            while self.begun < count:
                await anyio.sleep(0.01)

    async def transcribe(self, clip):
        self.begun += 1
        await self.go.wait()  # a sound is measured in a thread before
        return Transcript(StoredTranscript("hm"), Usage(calls=1))

    async def aclose(self):
        pass


class Scenario:
    def __init__(self, server, **limits):
        self.files, self.meter, self.journal, self.server = Files(), Meter(), Journal(), server
        told = {
            "seconds": 60.0,
            "size_bytes": 8_000_000,
            "patience_s": 3600.0,
            "usd_per_minute": lambda: 0.006,
        } | limits
        wished = TranscribeSettings(
            provider="p", model="openai/whisper-1", language="en", timeout_s=30.0, usd_per_minute=0.006
        )
        spec = LLMSpec(providers={"p": ProviderSpec(api_base=server.api_base, api_key="key-of-mine")})
        self.engine = build_transcriber(wished, spec, SystemClock(), litellm=LiteLLMProcess())
        self.made = 0
        self.transcription = Transcription(
            self.journal, self.files, make=self._make, limits=TranscriptionLimits(**told)
        )

    def _make(self):
        self.made += 1
        return self.engine

    def voice(self, content, **more):
        file = self.files.keep(content)
        return message(text="", attachments=(file,), context={"spoken": [file.sha256]}, **more)

    async def hear(self, *messages, meter=None, **turn):
        rows = tuple(Row(number, each) for number, each in enumerate(messages))
        claimed = Turn("t", messages[0].session, 1, rows, 1, 0, **turn)
        steps = [SimpleNamespace(number=s.number, kind=s.kind, digest=s.digest, result=s.result)
                 for s in self.journal.kept.values()]  # fmt: skip
        return await self.transcription.transcribe_turn(claimed, claimed, steps, meter or self.meter)


def question(hearing):
    return user_input(hearing.turn, ACCESS, Purpose.CHAT, None, zone=None).text


@pytest.fixture
def server():
    with TranscriptionServer() as server:
        yield server


@pytest.fixture
async def world(server):
    world = Scenario(server)
    yield world
    await world.transcription.aclose()


@pytest.mark.parametrize("make", [wav, ogg_opus])
async def test_the_words_are_shown_to_the_model_as_spoken(world, make):
    """Beside the file, in one line; the provider learns neither the file's name nor anything else of the person."""
    hearing = await world.hear(world.voice(make(2, says="Call Bob\nat [nine]")))

    assert hearing.note == ""
    asked = question(hearing)
    assert (
        '[Spoken in "Voice message.ogg", 2 s, as a program heard it, which may mishear:] Call Bob at [nine]'
        in asked
    )
    assert "[Attachment 000000000000:" in asked
    [fields] = world.server.fields
    ending = "wav" if make is wav else "ogg"
    assert fields == {
        "model": "whisper-1", "response_format": "verbose_json", "language": "en",
        "file": f"sound.{ending}", "authorization": "Bearer key-of-mine",
    }  # fmt: skip
    [paid] = world.meter.paid
    assert (paid.prompt_tokens, paid.calls) == (20, 1)
    assert paid.cost_usd == pytest.approx(2 / 60 * 0.006)


async def test_an_earlier_voice_message_is_listened_to_when_it_is_asked_about(world):
    """It stays somebody else's, so it is no answer to a question; the control is a sound file in a room."""
    file = world.files.keep(wav(2, says="yes"))
    for given, is_heard in (({"spoken": (file.sha256,), "others_words": True}, True), ({}, False)):
        asked = question(
            await world.hear(
                message(text="What does he say?", attachments=(file,), context=MessageContext(**given))
            )
        )
        assert ("may mishear:] yes" in asked) is is_heard


async def test_what_was_heard_before_is_not_paid_again(world):
    """A turn that is taken up again finds the transcript among its steps, with numbers that no other step has."""
    voice = world.voice(wav(2, says="Call Bob"))
    first = await world.hear(voice)
    second = await world.hear(voice)

    assert question(first) == question(second)
    assert sum(world.server.asked.values()) == 1
    assert [(number, step.kind) for number, step in world.journal.kept.items()] == [(-1, STEP)]


async def test_what_a_full_disk_does_not_take_is_not_paid_again(world):
    """The words are kept in memory until they are a step, also if that takes several tries."""
    voice = world.voice(wav(2, says="Call Bob"))
    world.journal.full = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await world.hear(voice)
    world.journal.full = False
    assert "Call Bob" in question(await world.hear(voice))
    assert sum(world.server.asked.values()) == 1
    assert len(world.meter.paid) == 1
    assert len(world.journal.kept) == 1


async def test_the_owner_waits_for_one_sound_of_others_at_the_most(world):
    """However many voice messages others send, and however long listening to them takes."""
    world.engine = engine = Slow()
    done = []

    async def hear(name, tier):
        await world.hear(world.voice(wav(2), sender=f"@{name}:hs.test"), meter=Meter(tier))
        done.append(name)

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(hear, f"guest{number}", BudgetTier.OTHERS)
        await engine.has_begun(1)
        await anyio.wait_all_tasks_blocked()
        assert world.transcription._for_others.statistics().tasks_waiting == 5
        tasks.start_soon(hear, "ann", BudgetTier.OWNER)
        await engine.has_begun(2)
        engine.go.set()
    assert len(done) == 7


async def test_what_was_heard_for_an_earlier_answer_is_not_paid_again(world):
    """A question that is asked anew brings the words along; what is not known of it is listened to."""
    known, new = world.voice(wav(2, says="Call Bob")), world.voice(wav(3, says="Call Eve"))
    words = {known.attachments[0].sha256: {"text": "Call Bob", "seconds": 2.0, "unsure": False}}
    known = known.with_notes(MessageNotes(known_words=words))
    hearing = await world.hear(known, new)
    assert "Call Bob" in question(hearing)
    assert "Call Eve" in question(hearing)
    assert sum(world.server.asked.values()) == 1


async def test_one_turn_does_not_listen_without_end(world):
    """
    However many sounds there are and however slow the provider is: the watch over turns would end the daemon.
    """
    world = Scenario(world.server, longest_s=0.0)
    world.engine = Slow()
    hearing = await world.hear(*(world.voice(wav(2)) for _ in range(20)))

    assert "and 18 more: this is more than I can listen to at once" in hearing.note
    assert len(world.journal.kept) == 20


async def test_what_it_is_unsure_of_is_quoted_before_the_answer(world):
    """One line, whatever was heard, and nothing in it changes how the rest is shown."""
    world.server.plan(Reply(logprob=-1.3))
    hearing = await world.hear(world.voice(wav(2, says="Call \u202eBob\n# at nine")))

    assert hearing.note == "> I am not sure that I understood this correctly: Call ‹U+202E›Bob # at nine"
    assert not hearing.is_all


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (wav(0), "I heard no words in it"),
        (m4a(14_400), "it lasts 4 hours, and I listen to 60 seconds of one message at most"),
        (
            ogg_opus(1, granule=90 * 48_000 + 312),
            "it lasts 90 seconds, and I listen to 60 seconds of one message at most",
        ),
        (m4a(5, handlers=(b"vide", b"soun")), "it is a video"),
        (b"%PDF-1.7 not a sound", "it is not a sound file that I know; I know Ogg, WAV, MP3 and M4A"),
        (wav(100, hz=44_100), "it is larger than 8 MB, the most that I listen to"),
    ],
)
async def test_what_cannot_be_heard_is_said_and_costs_nothing(world, content, why):
    """In plain words, as the whole answer, without a model: there is nothing else to answer."""
    world.server.always = Reply(body=b'{"text": ""}')
    hearing = await world.hear(world.voice(content))

    assert hearing.is_all
    assert hearing.note == f"I could not listen to `Voice message.ogg`: {why}."
    assert f'[Not heard: "Voice message.ogg" {why}]' in question(hearing)
    assert sum(world.server.asked.values()) == (1 if "words" in why else 0)


@pytest.mark.parametrize(
    ("reply", "why", "asked"),
    [
        (Reply(status=401), "refuses my login; my operator must check it", 1),
        (Reply(status=400), "refused it", 1),
        (Reply(body=b"<html>busy</html>"), "gave an answer that I cannot read", 2),
        (Reply(body=b'{"text": 7}'), "gave an answer that I cannot read", 2),
        (Reply(body=b"x" * 9_000_000), "gave an answer that I cannot read", 2),
        (
            Reply(status=302, headers={"Location": "http://127.0.0.1:1/"}),
            "gave an answer that I cannot read",
            2,
        ),
        (Reply(wait_s=3.0), "took too long", 1),
    ],
)
async def test_a_provider_that_fails_for_good_is_told(world, reply, why, asked):
    """A refusal, garbage (asked for once more), and an answer that does not come."""
    world.server.always = reply
    if reply.wait_s:
        world.engine.client.timeout_s = 0.5
    hearing = await world.hear(world.voice(wav(2, says="x")))

    assert hearing.note == f"I could not listen to `Voice message.ogg`: the speech recognition {why}."
    assert sum(world.server.asked.values()) == asked


async def test_garbage_once_is_asked_for_again(world):
    """And both are counted: the first has probably been paid."""
    world.server.plan(Reply(body=b"\xff\xfe"))
    hearing = await world.hear(world.voice(wav(2, says="Call Bob")))

    assert "Call Bob" in question(hearing)
    assert [usage.prompt_tokens for usage in world.meter.paid] == [20, 20]
    assert [usage.cost_usd for usage in world.meter.paid] == pytest.approx([2 / 60 * 0.006] * 2)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(status=503), ModelUnavailable),
        (Reply(cut=True), ModelUnavailable),
        (Reply(status=429, headers={"Retry-After": "7"}), ModelRateLimited),
    ],
)
async def test_a_provider_that_is_away_is_waited_for_and_then_told(world, reply, kind):
    """First the turn is put off as for a model that is away, at no cost; after an hour it goes on without the words."""
    world.server.always = reply
    voice = world.voice(wav(2, says="x"))
    with pytest.raises(kind) as raised:
        await world.hear(voice)
    assert raised.value.temporary
    assert "speech" in raised.value.public
    assert world.meter.paid == [None]
    assert not world.journal.kept

    hearing = await world.hear(voice, first_deferred_s=3600.0)
    assert "cannot be reached; please send it again later, or write" in hearing.note


async def test_nobody_at_the_address(world):
    """The connection is refused: it is temporary."""
    world.server._http.shutdown()
    world.server._http.server_close()
    with pytest.raises(ModelUnavailable):
        await world.hear(world.voice(wav(1)))


async def test_the_budget_is_asked_first(world):
    """Nothing is sent when the day's budget is spent."""
    world.meter.refuses = True
    with pytest.raises(BudgetSpent):
        await world.hear(world.voice(wav(1)))
    assert not world.server.asked


async def test_a_sound_that_is_too_long_takes_nothing_from_the_others(world):
    """It was not listened to; what comes behind it in the mail is."""
    files = [
        world.files.keep(mp3(90), "long.mp3", "audio/mpeg"),
        world.files.keep(wav(40, says="one"), "one.wav", "audio/wav"),
    ]
    mail = message("ann@mail.test", text="", context={"subject": ""}, attachments=tuple(files))
    hearing = await world.hear(mail)

    assert hearing.note.count("I could not listen") == 1
    assert "] one" in question(hearing)


async def test_a_mail_is_listened_to_up_to_the_limit_and_its_text_is_answered(world):
    """Sound files of a mail, not its other files; what goes over the limit is told, the rest is asked."""
    files = [
        world.files.keep(wav(40, says="one"), "one.wav", "audio/wav"),
        world.files.keep(mp3(40), "two.mp3", "audio/mpeg"),
        TEXT,
    ]
    mail = message("ann@mail.test", text="", context={"subject": ""}, attachments=tuple(files))
    hearing = await world.hear(mail)

    assert not hearing.is_all
    assert hearing.note == (
        "I could not listen to `two.mp3`: it lasts 40 seconds, and I listen to 60 seconds of one message at most."
    )
    assert "] one" in question(hearing)


async def test_of_a_mail_with_very_many_sounds_the_first_are_listened_to_and_the_rest_is_told(world):
    """Nothing is dropped silently, and files with one reason are told in one sentence."""
    sounds = [world.files.keep(wav(1, says=f"word{n}."), f"{n}.wav", "audio/wav") for n in range(30)]
    mail = message("ann@mail.test", text="", context={"subject": ""}, attachments=tuple(sounds))
    hearing = await world.hear(mail)

    assert sum(world.server.asked.values()) == 20
    assert hearing.note == (
        "I could not listen to `20.wav`, `21.wav` and 8 more: I listen to the first 20 sounds of a message."
    )
    assert "word19." in question(hearing)
    assert question(hearing).count("[Not heard: ") == 10
    assert not hearing.is_all


async def test_a_provider_fills_no_memory_with_an_answer_to_a_short_sound(server, world):
    """Some bytes of brackets are many in memory, so an answer has a bound by the length of its sound."""
    server.always = Reply(body=b'{"text": "long", "usage": [' + b"[]," * 400_000 + b"[]]}")
    assert "an answer that I cannot read" in (await world.hear(world.voice(wav(2)))).note
    patient = Scenario(server, seconds=600.0)  # the control: such a long one may have so much
    hearing = await patient.hear(patient.voice(ogg_opus(600)))
    await patient.transcription.aclose()
    assert "] long" in question(hearing)


@pytest.mark.parametrize(
    "given",
    [
        message(attachments=(TEXT,)),
        message(attachments=(TEXT.model_copy(update={"media_type": "audio/mpeg"}),)),
        message("ann@mail.test", **MAIL, attachments=(TEXT,)),
        message(kind="job", context={"subject": "x"}, attachments=()),
    ],
)
async def test_nothing_is_made_where_nothing_is_to_be_heard(world, given):
    """A song that is sent as a file in a room is a file."""
    assert not sound_files(given)
    await world.hear(given)
    assert world.made == 0


async def test_a_file_that_is_gone_and_a_disk_that_does_not_read(world):
    """The first is told; the second is tried again."""
    voice = world.voice(wav(1))
    world.files.trouble = LookupError()
    assert "the file is no longer kept" in (await world.hear(voice)).note
    other = world.voice(wav(1))
    world.files.trouble = OSError(5, "I/O error")
    with pytest.raises(StorageUnavailable):
        await world.hear(other)


async def test_a_name_with_markup_stays_a_name(world):
    """What somebody calls a file cannot look like ours."""
    file = world.files.keep(b"no", "a`\n# b`.mp3", "audio/mpeg")
    hearing = await world.hear(message("ann@mail.test", text="hi", **MAIL, attachments=(file,)))

    assert hearing.note.startswith("I could not listen to `a' # b'.mp3`: ")
    assert "\n" not in hearing.note
