"""
A question that waits holds up nobody: a word answers it, and whatever else is written goes past it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import anyio
import pytest

from agent_core.messages import (
    Audience,
    InboundMessage,
    JobNote,
    MessageContext,
    MessageNotes,
    OutboundKind,
    SessionKey,
)
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.tools.effects import Effect
from gateway.store.stores import NewOutbound
from gateway.turns.commands import worded_answers
from tests.clock import ManualClock
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer
from tests.integration.gateway_world import Scenario
from tests.integration.test_tool_approval import (
    ANN,
    BOB,
    EVE,
    Wishful,
    Writer,
    answers,
    asking,
    question,
    reaction,
)

DAY = 24 * 60


class Machine(Writer):
    """A tool whose effect is the owner's alone to allow."""

    effect = Effect.EXECUTE


def reply(notice: Delivered, text: str, person: str, *, place: str = "", number: int = 0) -> InboundMessage:
    """A message in reply to a notice."""
    said = reaction(notice, "", person, place=place)
    group = Audience.GROUP if place == "room" else Audience.DIRECT
    return said.model_copy(
        update={"kind": "message", "text": text, "native_id": f"$reply-{person}-{number}", "audience": group}
    )


async def said(one: Scenario, place: str, start: str) -> str:
    """What was said in a conversation that begins so, as soon as it was."""
    with anyio.fail_after(60):
        while True:
            for seen in one.server.seen(place):
                if seen.text.startswith(start):
                    return seen.text
            await anyio.sleep(0.02)


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("yes", ["it"]),
        (" Ok. ", ["it"]),
        ("👍🏽", ["it"]),
        ("Ja, bitte!", ["it"]),
        ("NO!", []),
        ("いいえ", []),
    ],
)
async def test_a_word_answers_the_question(tmp_path, word, written):
    """It is told what was decided, the turn ends with one answer, and the word reaches no model."""
    tool, model = Writer(), Wishful()
    async with asking(tmp_path, tool, model=model, minutes=DAY) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        one.server.say(BOB, word)
        found = await answers(one, f"dm-{BOB}", 2)
        again = await one.asked("yes", person=BOB)
    told = "is approved: I use" if written else "is rejected: I do not use"
    assert "`yes` / `no`" in notice.text
    assert min(found) == f"`{name}` {told} `write_down`."
    assert max(found).startswith("so: wrote it" if written else "so: Error: The person was asked")
    assert tool.written == written
    assert again.text == "so: yes"  # nothing waits, so it is a message like any other
    assert model.calls == 3


@pytest.mark.parametrize("word", ["yes please, but not today", "no idea", "no problem, go ahead", "yes?"])
async def test_what_begins_with_a_word_is_asked_back_about(tmp_path, monkeypatch, word):
    """In one line, and the question stays; a second word decides it, unless it was written before that was read."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        asked = (await one.asked(word, person=BOB)).text
        assert asked.startswith(f"Is that a yes or a no to `{name}` (to use `write_down`)? It still waits.")
        assert (await one.asked("yes", person=BOB)).text == asked
        monkeypatch.setattr(worded_answers, "_REPEATED", timedelta(0))
        assert tool.written == []
        one.server.say(BOB, "ok")
        assert "so: wrote it" in await answers(one, f"dm-{BOB}", 4)
    assert tool.written == ["it"]


@pytest.mark.parametrize("word", ["is that a yes?", "cancel my train", "and good morning", ""])
async def test_something_else_goes_to_the_model_and_leaves_the_question_open(tmp_path, word):
    """A yes that is no reply is asked back then: it may be one to what the model has said. A reply decides."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        assert (await one.asked(word, person=BOB)).text == f"so: {word}".strip()
        assert (await one.asked("ok", person=BOB)).text == "so: ok"  # it takes note of that
        assert (await one.asked("yes", person=BOB)).text.startswith(f"Is that a yes or a no to `{name}`")
        assert tool.written == []
        await one.hand_over(reply(notice, "yes please", BOB))
        assert "so: wrote it" in await answers(one, f"dm-{BOB}", 5)
    assert tool.written == ["it"]


@pytest.mark.parametrize(
    ("said_since", "word", "decides"),
    [
        ("The backup is done.", "yes", True),
        ("The backup is done.", "no", True),
        ("The backup is done.", "ok", False),
        ("Shall I delete it?", "yes", False),
    ],
)
@pytest.mark.parametrize("job", [None, JobNote(kind="remind")], ids=["notice", "reminder"])
async def test_a_yes_after_a_mere_notice_decides(tmp_path, said_since, word, decides, job):
    """But not after a question, and a word that may take note of the notice is asked back."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        place = SessionKey("matrix", f"dm-{BOB}")
        kind, context = (
            OutboundKind.REPLY if job else OutboundKind.NOTICE,
            MessageContext(notes=MessageNotes(job=job)),
        )
        await one.built.store.outbox.post([NewOutbound("matrix", "bot", place, said_since, kind, context)])
        await said(one, f"dm-{BOB}", said_since)
        one.server.say(BOB, word)
        if decides:
            await said(one, f"dm-{BOB}", f"`{name}` is")
            await said(one, f"dm-{BOB}", "so: ")
        else:
            await said(one, f"dm-{BOB}", f"Is that a yes or a no to `{name}`")
    assert tool.written == (["it"] if decides and word == "yes" else [])


async def test_a_late_word_is_told_what_was_decided(tmp_path):
    """By whomever may know of it."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        one.server.say(BOB, "no thanks")
        await answers(one, f"dm-{BOB}", 2)
        late = await one.asked(f"!approve {name}", person=BOB)
        await one.hand_over(reply(notice, "yes", BOB))
        replied = (await answers(one, f"dm-{BOB}", 4))[-1]
        others = await one.asked(f"!approve {name}", person=EVE)
    told = f"`{name}` was rejected before. This changes nothing."
    assert (late.text, replied) == (told, told)
    assert others.text.startswith("Nothing waits for you under the name")
    assert tool.written == []


EXPIRED = "`{}` waited too long, so I went on without `write_down`. If you still want it, write `try again`"


@pytest.mark.parametrize("way", ["reply", "sign", "command"])
async def test_a_yes_to_an_expired_question_says_so_and_how_to_go_on(tmp_path, way):
    """However it is said, also over a restart; another person learns nothing of a private question."""
    tool, server = Writer(), LoopbackServer()
    async with asking(tmp_path, tool, server=server, minutes=0.02) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        await answers(one, f"dm-{BOB}", 1)
    async with asking(tmp_path, tool, server=server, minutes=DAY) as two:
        if way == "command":
            two.server.say(BOB, f"!approve {name}")
        else:
            answer = reply(notice, "yes please", BOB) if way == "reply" else reaction(notice, "✅", BOB)
            await two.hand_over(answer)
        await said(two, f"dm-{BOB}", EXPIRED.format(name))
        others = await two.asked(f"!approve {name}", person=EVE)
        two.server.say(BOB, "write it")
        await question(two, f"dm-{BOB}", 3)
    assert others.text.startswith("Nothing waits for you under the name")
    assert tool.written == []


async def test_a_yes_that_comes_at_the_last_moment_says_so(tmp_path):
    """The time is over, and the turn has not gone on yet."""
    tool, clock = Writer(), ManualClock()
    async with asking(tmp_path, tool, minutes=DAY, clock=clock) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        clock.advance(DAY * 60)
        one.server.say(BOB, "yes")
        await said(one, f"dm-{BOB}", EXPIRED.format(name))
    assert tool.written == []


@pytest.mark.parametrize(
    "context", [MessageContext(outbound="of another"), MessageContext(in_reply_to="$anybodys")]
)
async def test_a_yes_in_reply_to_another_message_decides_nothing(tmp_path, context):
    """Neither as a word nor in reply to what somebody else has said; the control has no reply."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        earlier = await one.asked("hello", person=BOB)
        one.server.say(BOB, "write it")
        notice, _ = await question(one, f"dm-{BOB}")
        said = reply(notice, "yes", BOB)
        if context.outbound:
            context = MessageContext(outbound=earlier.key)
        await one.hand_over(said.model_copy(update={"context": context}))
        assert (await answers(one, f"dm-{BOB}", 2))[-1] == "so: yes"
        assert tool.written == []
        await one.hand_over(reply(notice, "yes", BOB, number=1))
        await answers(one, f"dm-{BOB}", 4)
    assert tool.written == ["it"]


async def test_the_control_of_words_somebody_else_may_not_say(tmp_path):
    """In a group a guest's yes is talk; as a reply to somebody else's question it is told who may say it."""
    tool, server = Writer(), LoopbackServer()
    server.groups.add("room")
    async with asking(tmp_path, tool, server=server, minutes=DAY) as one:
        server.say(ANN, "write it", conversation="room")
        notice, name = await question(one, "room")
        server.say(EVE, "yes", conversation="room")
        assert (await answers(one, "room", 1))[-1] == f"so: [{EVE}] yes"
        await one.hand_over(reply(notice, "yes", EVE, place="room"))
        told = (await answers(one, "room", 2))[-1]
        assert told == f"Only my owner may answer `{name}`. It still waits."
        server.say(BOB, "something else", conversation="room")
        assert (await answers(one, "room", 3))[-1] == f"so: [{BOB}] something else"
        server.say(ANN, "not for the bot", conversation="room", addressed=False)
        assert tool.written == []
        server.say(ANN, "yes", conversation="room")  # other things were said since: which yes is it?
        told = (await answers(one, "room", 4))[-1]
        assert told.startswith(f"Is that a yes or a no to `{name}`")
        assert tool.written == []
        await one.hand_over(reply(notice, "bot: yes", ANN, place="room", number=1))
        await answers(one, "room", 6)
    assert tool.written == ["it"]


async def test_it_is_the_same_after_a_restart(tmp_path):
    """The question outlives it, whatever is written then."""
    tool, server = Writer(), LoopbackServer()
    async with asking(tmp_path, tool, server=server, minutes=DAY) as one:
        server.say(BOB, "write it")
        notice, _ = await question(one, f"dm-{BOB}")
    server.say(BOB, "hello")
    async with asking(tmp_path, tool, server=server, minutes=DAY) as two:
        assert await answers(two, f"dm-{BOB}", 1) == ["so: hello"]
        assert tool.written == []
        await two.hand_over(reply(notice, "yes", BOB))
        await answers(two, f"dm-{BOB}", 3)
    assert tool.written == ["it"]


class Twice(Wishful):
    """A model that wants the same again when it was not done, and waits at ``gate`` before it wants anything."""

    def __init__(self) -> None:
        super().__init__()
        self.thinking, self.gate = anyio.Event(), anyio.Event()

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        if messages[-1].role == "user" and "write" in messages[-1].content:
            self.thinking.set()
            await self.gate.wait()
        if messages[-1].role == "tool" and sum(message.role == "tool" for message in messages) == 1:
            messages = [*messages, Message(role="user", content="write it again")]
        return await super().chat(messages, tools, stream=stream)


async def test_what_was_written_before_the_question_waits_for_nobody(tmp_path):
    """It goes past the question, which still can be answered; a second one of the turn is asked, too."""
    tool, model = Writer(), Twice()
    async with asking(tmp_path, tool, model=model, minutes=DAY, queue="each") as one:
        one.server.say(BOB, "write it")
        await model.thinking.wait()
        one.server.say(BOB, "and good morning")
        with anyio.fail_after(60):
            while (await one.inbox()).get("ready") != 1:
                await anyio.sleep(0.02)
        model.gate.set()
        _, name = await question(one, f"dm-{BOB}")
        assert (await answers(one, f"dm-{BOB}", 1)) == ["so: and good morning"]
        await one.asked(f"!approve {name}", person=BOB)
        notice, other = await question(one, f"dm-{BOB}", 2)
        assert tool.written == ["it"]
        await one.hand_over(reply(notice, "yes", BOB))
        await answers(one, f"dm-{BOB}", 4)
    assert other != name
    assert tool.written == ["it", "it again"]


async def test_a_guest_waits_for_no_yes_of_the_owner_and_cannot_take_it_away(tmp_path, monkeypatch):
    """The guest's next message is answered; the owner's question stays one, and the owner's yes still counts."""
    monkeypatch.setattr(worded_answers, "_CROSSED", timedelta(0))  # the owner has read it
    tool = Machine()
    async with asking(tmp_path, tool, tools=(), minutes=DAY) as one:
        await one.asked("hello", person=ANN)
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{ANN}")
        await said(one, f"dm-{BOB}", "I have asked my owner")
        one.server.say(BOB, "yes")
        assert await answers(one, f"dm-{BOB}", 1) == ["so: yes"]
        one.server.say(BOB, "write more")
        refused = (await answers(one, f"dm-{BOB}", 2))[-1]
        assert refused.startswith(
            "so: Error: This needs the owner's approval, and the owner has not answered"
        )
        asked = [m for m in one.server.seen(f"dm-{ANN}") if m.kind is OutboundKind.NOTICE]
        one.server.say(ANN, "yes")
        assert (await said(one, f"dm-{ANN}", f"`{name}`")).endswith("is approved: I use `write_down`.")
        assert (await answers(one, f"dm-{BOB}", 3))[-1] == "so: wrote it"
    assert len(asked) == 1
    assert tool.written == ["it"]


async def test_the_owners_word_about_something_else_is_no_yes_to_a_guest(tmp_path):
    """When something else was said since in the owner's conversation, a bare yes is a message like any other."""
    tool = Machine()
    async with asking(tmp_path, tool, tools=(), minutes=DAY) as one:
        await one.asked("hello", person=ANN)
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{ANN}")
        assert (await one.asked("shall I?", person=ANN)).text == "so: shall I?"
        assert (await one.asked("yes", person=ANN)).text == "so: yes"
        assert tool.written == []
        await one.hand_over(reply(notice, "yes", ANN))
        assert (await said(one, f"dm-{ANN}", f"`{name}`")).endswith("is approved: I use `write_down`.")
        await answers(one, f"dm-{BOB}", 1)
    assert tool.written == ["it"]


async def test_of_two_questions_it_is_said_which_and_how(tmp_path):
    """A guest's and one's own in one conversation: a bare word decides neither."""
    tool = Machine()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(ANN, "write mine")
        own, first = await question(one, f"dm-{ANN}")
        one.server.say(BOB, "write his")
        _, second = await question(one, f"dm-{ANN}", 2)
        told = (await one.asked("yes", person=ANN)).text
        assert tool.written == []
        await one.hand_over(reply(own, "yes", ANN))
        await said(one, f"dm-{ANN}", "so: wrote mine")
    assert f"- `{first}`: to use `write_down`" in told
    assert f"- `{second}`: to use `write_down`" in told
    assert tool.written == ["mine"]


async def test_a_new_conversation_names_the_questions_that_are_left(tmp_path):
    """What "1 message waits" is about; the control: none waits."""
    async with asking(tmp_path, Writer(), minutes=DAY) as one:
        began = await one.asked("!new", person=BOB)
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        left = await one.asked("!new", person=BOB)
    assert "wait" not in began.text
    assert f"For your answer wait:\n\n- `{name}`: to use `write_down` (it)" in left.text
    assert left.text.endswith("what comes of it is part of the new conversation.")


@pytest.mark.parametrize("crossed_s", [0, 5])
async def test_a_word_below_a_newer_question_is_for_that(tmp_path, monkeypatch, crossed_s):
    """If its wish was written after the other one was asked and left open; the control: too soon to be sure."""
    monkeypatch.setattr(worded_answers, "_CROSSED", timedelta(seconds=crossed_s))
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write one")
        _, first = await question(one, f"dm-{BOB}")
        one.server.say(BOB, "write two")
        _, second = await question(one, f"dm-{BOB}", 2)
        one.server.say(BOB, "yes please")
        await said(one, f"dm-{BOB}", "2 questions wait" if crossed_s else f"`{second}` is approved")
        if not crossed_s:
            await said(one, f"dm-{BOB}", "so: wrote two")
        left = [each.name for each in await one.built.store.approvals.questions() if each.verdict is None]
        assert left == ([first, second] if crossed_s else [first])
    assert tool.written == ([] if crossed_s else ["two"])


@pytest.mark.parametrize(("text", "written"), [("Yes\n\nOn Tuesday:\n> no", ["it"]), ("no.\n\n> x", [])])
async def test_by_mail_the_first_line_of_a_reply_to_the_question_counts(tmp_path, text, written):
    """Only in reply to that very mail: the same word in another mail of the thread is a message."""
    tool, server = Writer(), LoopbackServer()
    channel = LoopbackChannel(server, name="matrix", email_style=True)
    async with asking(
        tmp_path, tool, server=server, channels={"matrix": (channel, "each")}, minutes=DAY
    ) as one:
        server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        await one.hand_over(reply(notice, text, BOB))
        found = await answers(one, f"dm-{BOB}", 2)
        server.say(BOB, "write it")
        await question(one, f"dm-{BOB}", 2)
        server.say(BOB, "yes")
        other = await answers(one, f"dm-{BOB}", 3)
    assert "`yes` / `no` in the first line" in notice.text
    assert min(found).startswith(f"`{name}` is {'approved' if written else 'rejected'}")
    assert other[2] == "so: yes"
    assert tool.written == written


@pytest.mark.parametrize(
    ("word", "crossed_s"), [("no to all", 0), ("Nein zu allen!", 0), ("yes to all", 0), ("no to all", 60)]
)
async def test_a_word_to_all_decides_each_that_was_read(tmp_path, monkeypatch, word, crossed_s):
    """The control: while one of them may not have been read, nothing is decided, and it is said how to."""
    monkeypatch.setattr(worded_answers, "_CROSSED", timedelta(seconds=crossed_s))
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write one")
        _, first = await question(one, f"dm-{BOB}")
        one.server.say(BOB, "write two")
        _, second = await question(one, f"dm-{BOB}", 2)
        one.server.say(BOB, word)
        if crossed_s:
            told = await said(one, f"dm-{BOB}", "2 questions wait for you, and I have decided nothing.")
            assert f"`!approve {first}`" in told and told.endswith(f"- `{second}`: to use `write_down` (two)")
            left = [each.name for each in await one.built.store.approvals.questions() if each.verdict is None]
            assert left == [first, second]
            return
        verdict = "approved: I use" if word.startswith("yes") else "rejected: I do not use"
        told = await said(one, f"dm-{BOB}", f"`{first}` is {verdict} `write_down`.")
        assert told == f"`{first}` is {verdict} `write_down`.\n`{second}` is {verdict} `write_down`."
        await answers(one, f"dm-{BOB}", 3)
    assert tool.written == (["one", "two"] if word.startswith("yes") else [])


async def test_a_word_to_all_in_reply_to_what_was_asked_back(tmp_path):
    """Names those that it listed; a bare yes in reply to it is asked back, and reaches no model."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write one")
        await question(one, f"dm-{BOB}")
        one.server.say(BOB, "write two")
        await question(one, f"dm-{BOB}", 2)
        listed = await one.asked("yes", person=BOB)
        await one.hand_over(reply(listed, "yes", BOB))
        assert (await answers(one, f"dm-{BOB}", 2))[-1] == listed.text
        await one.hand_over(reply(listed, "no to all\n\nToo late.", BOB, number=1))
        found = await answers(one, f"dm-{BOB}", 5)
    assert sum("said no (Too late.)" in each for each in found) == 2
    assert tool.written == []


@pytest.mark.parametrize("asks", [False, True])
async def test_a_word_to_all_after_a_model_spoke_is_asked_back_once(tmp_path, monkeypatch, asks):
    """It may answer that; below the list that says so it counts. The control has no word of a model since."""
    monkeypatch.setattr(worded_answers, "_CROSSED", timedelta(0))
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write one")
        await question(one, f"dm-{BOB}")
        one.server.say(BOB, "write two")
        await question(one, f"dm-{BOB}", 2)
        if asks:
            await one.asked("shall I?", person=BOB)
        one.server.say(BOB, "yes to all")
        await said(one, f"dm-{BOB}", "2 questions wait" if asks else "`a")
        if asks:
            await answers(one, f"dm-{BOB}", 2)
            assert tool.written == []
            one.server.say(BOB, "yes to all")
        await answers(one, f"dm-{BOB}", 5 if asks else 3)
    assert tool.written == ["one", "two"]


@pytest.mark.parametrize("between", ["thank you", "shall I?"])
async def test_a_no_to_all_after_a_model_spoke_is_asked_back_if_that_asked(tmp_path, monkeypatch, between):
    """It does nothing, and can mean nothing else where nothing was asked since."""
    monkeypatch.setattr(worded_answers, "_CROSSED", timedelta(0))
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write one")
        await question(one, f"dm-{BOB}")
        one.server.say(BOB, "write two")
        await question(one, f"dm-{BOB}", 2)
        await one.asked(between, person=BOB)
        one.server.say(BOB, "no to all")
        told = await said(one, f"dm-{BOB}", "2 questions wait" if between.endswith("?") else "`a")
        left = [each.name for each in await one.built.store.approvals.questions() if each.verdict is None]
    assert len(left) == (2 if "2 questions" in told else 0)
    assert tool.written == []


@pytest.mark.parametrize("text", ["sure, but first tell me a joke", "ok", "no idea, what is for lunch?"])
async def test_with_two_questions_a_sign_with_more_to_a_model_goes_to_it(tmp_path, text):
    """It answers what the model said; the control: below the questions it is asked back, and neither is decided."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=DAY) as one:
        one.server.say(BOB, "write one")
        await question(one, f"dm-{BOB}")
        one.server.say(BOB, "write two")
        await question(one, f"dm-{BOB}", 2)
        control = await one.asked(text, person=BOB)
        await one.asked("good morning", person=BOB)
        told = await one.asked(text, person=BOB)
        left = [each.name for each in await one.built.store.approvals.questions() if each.verdict is None]
    assert control.text.startswith("2 questions wait for you")
    assert told.text == f"so: {text}"
    assert len(left) == 2
    assert tool.written == []
