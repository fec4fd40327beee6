"""What waits for the owner's yes, through the whole gateway: asked once, decided by the owner alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import InboundMessage, MessageContext, OutboundKind, Sender, SessionKey
from channels.base import AckState, Capabilities, Redelivery
from channels.markup import to_text
from gateway.operations import render
from gateway.store.states import InboxState, OutboxState
from gateway.system.clock import SystemClock
from gateway.turns.commands import worded_answers
from gateway.turns.questions.questions import OWNER_QUESTIONS
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer
from tests.inbound import inbound
from tests.integration.gateway_world import Scenario, world

ANN, BOB, EVE = "@ann:hs.test", "@bob:hs.test", "@eve:hs.test"
DM, BOBS = f"dm-{ANN}", f"dm-{BOB}"
SETTINGS = {"owner": {"aliases": [{"channel": "matrix", "address": ANN}]}}


class Echo(StreamingModel):
    """A model that says the last line of what it is asked; "fail" is refused for good."""

    async def answer(self, messages, tools):
        said = messages[-1].content.rsplit("\n", 1)[-1]
        if said == "fail":
            raise RuntimeError("a defect")
        yield f"echo: {said}"


@asynccontextmanager
async def deciding(
    root: Path, approval: str, *, server: LoopbackServer | None = None, **more: Any
) -> AsyncIterator[Scenario]:
    async with world(
        root,
        server=server,
        name="matrix",
        settings=more.pop("settings", SETTINGS),
        models={"demo": Echo()},
        approval={"matrix": approval},
        **more,
    ) as one:
        yield one


async def notices(one: Scenario, count: int = 1) -> list[Delivered]:
    """The questions that the owner has been asked, as soon as there are so many."""
    with anyio.fail_after(60):
        while len(found := [m for m in one.server.seen(DM) if m.kind is OutboundKind.NOTICE]) < count:
            await anyio.sleep(0.02)
    return found


async def held(one: Scenario) -> list[int]:
    """The outbox ids of drafts, as soon as there is one; oldest first."""
    with anyio.fail_after(60):
        while not (rows := await one.built.store.outbox.rows(states=[OutboxState.HELD])):
            await anyio.sleep(0.02)
    return sorted(row.id for row in rows)


async def seen(one: Scenario, number: int) -> Delivered:
    """A kept-back message was approved by its line, and so all of it is shown."""
    one.server.say(ANN, f"!approve m{number}")
    notice = (await notices(one))[-1]
    with anyio.fail_after(60):
        while not any("not seen all of" in each.text for each in one.server.seen(DM)):
            await anyio.sleep(0.02)
        while not await one.built.store.inbox.rows(session=OWNER_QUESTIONS, states=[InboxState.SETTLED]):
            await anyio.sleep(0.02)
    return notice


async def greeted(one: Scenario) -> None:
    """The owner has written directly, so there is a place to ask in; a command is answered at once."""
    await one.asked("!help", person=ANN)


def reaction(notice: Delivered, sign: str, *, person: str = ANN, number: int = 1) -> InboundMessage:
    return inbound(
        SessionKey("matrix", f"dm-{person}"),
        person,
        sign,
        f"$reaction-{number}",
        received_at=SystemClock().now(),
        kind="reaction",
        context={"outbound": notice.key},
    )


async def test_the_owner_is_asked_once_and_says_yes(tmp_path):
    """Another person's answer waits; the owner sees question and answer, approves, and it is sent."""
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        one.server.say(BOB, "may I come?")
        (notice,) = await notices(one)
        (draft,) = await held(one)
        assert one.server.seen(BOBS) == []
        assert "> may I come?" in notice.text
        assert "> echo: may I come?" in notice.text
        assert BOB in notice.text
        said = await one.asked(f"!approve d{draft}", person=ANN)
        (answer,) = await one.server.answers(1, conversation=BOBS)
        later = await one.asked(f"!approve D{draft}", person=ANN)
        refused = await one.asked(f"!reject d{draft}", person=ANN)
        assert len(await notices(one)) == 1
    assert answer.text == "echo: may I come?"
    assert said.text.startswith(f"`d{draft}` is approved")
    assert later.text.startswith(f"`d{draft}` is approved")
    assert refused.text.startswith(f"`d{draft}` is approved")


@pytest.mark.parametrize(("person", "word"), [(ANN, "yes to all"), (ANN, "no to all"), (BOB, "yes to all")])
async def test_a_word_to_all_decides_drafts_of_the_owner_alone(tmp_path, monkeypatch, person, word):
    """The control: the same words of the person whose answers wait decide nothing."""
    monkeypatch.setattr(worded_answers, "_CROSSED", timedelta(0))
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        for number, who in enumerate((BOB, EVE), start=1):
            one.server.say(who, "may I come?")
            await notices(one, number)
        drafts = await held(one)
        one.server.say(person, word)
        if person == ANN:
            with anyio.fail_after(60):
                while not any(f"d{drafts[-1]}` is" in each.text for each in one.server.seen(DM)):
                    await anyio.sleep(0.02)
            assert await one.built.store.outbox.rows(states=[OutboxState.HELD]) == []
        else:
            await notices(one, 3)  # it is a message like any other
            assert set(drafts) <= set(await held(one))
        if word.startswith("yes") and person == ANN:
            await one.server.answers(1, conversation=BOBS)
        assert bool(one.server.seen(BOBS)) is (person == ANN and word.startswith("yes"))


async def test_a_long_answer_is_shown_whole_below(tmp_path):
    """A glance stands above the answers, and each character below them."""
    said = "may I come? " + "; ".join(map(str, range(900)))
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        one.server.say(BOB, said)
        found = await notices(one)
        text = "".join(each.text for each in found)
    above, _, below = text.partition("`yes` / `no`")
    assert len(above) < 1_000
    assert said not in above and "SHA-256" not in above
    assert f"> echo: {said}" in below


@pytest.mark.parametrize(("word", "sent"), [("yes please", True), ("nein", False), ("yes, but later", None)])
async def test_a_reply_in_words_decides(tmp_path, word, sent):
    """To the notice alone; what is more than a yes decides nothing, and a yes that may have crossed it is asked back."""
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        one.server.say(BOB, "may I come?")
        (notice,) = await notices(one)
        (draft,) = await held(one)
        assert [line for line in to_text(notice.text).splitlines() if len(line) > 60] == []
        assert "`yes` / `no`" in notice.text and "until you decide" in notice.text
        assert (await one.asked("yes", person=ANN)).text.startswith(f"Is that a yes or a no to `d{draft}`")
        answer = reaction(notice, word).model_copy(update={"kind": "message"})
        await one.hand_over(answer)
        told = (await one.server.answers(4, conversation=DM))[-1]
        row = await one.built.store.outbox.row(draft)
    assert ("is approved" in told.text) is (sent is True)
    assert ("is rejected" in told.text) is (sent is False)
    assert row is not None
    assert (row.state is OutboxState.HELD) is (sent is None)


async def test_a_status_says_what_waits_and_since_when(tmp_path):
    """In a chat and at the shell, and how to answer; of nothing that waits nothing is said."""
    told = []
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        for _ in range(2):
            work = (await one.built.store.maintenance.stats()).as_work()
            report = {"version": "1", "work": work}
            told.append([(await one.asked("!status", person=ANN)).text, render.status(report)])
            if len(told) == 1:
                one.server.say(BOB, "may I come?")
                await notices(one)
    for before, after, sign in zip(
        *told, ("The oldest waits for", "the oldest of them waits for"), strict=True
    ):
        assert sign not in before
        assert sign in after and "approve" in after


async def test_no_is_no(tmp_path):
    """A rejected answer is never sent, and approving it later says so."""
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        one.server.say(BOB, "may I come?")
        (draft,) = await held(one)
        await notices(one)
        said = await one.asked(f"!reject d{draft} not today", person=ANN)
        later = await one.asked(f"!approve d{draft}", person=ANN)
        (row,) = await one.built.store.outbox.rows(states=[OutboxState.DEAD])
        await one.built.history.sync()
        told = await one.built.memory.load_history(str(SessionKey("matrix", BOBS)))
        assert one.server.seen(BOBS) == []
    assert said.text == later.text == f"`d{draft}` is rejected: I do not send it."
    assert row.error == "rejected: not today"
    assert [line.content for line in told.messages][-1].startswith("[My last answer was not sent")


async def test_the_owners_own_answers_are_not_held_for_strangers(tmp_path):
    """``strangers`` holds others' answers, ``all`` the owner's too, ``none`` nothing; commands never wait."""
    async with deciding(tmp_path / "strangers", "strangers") as one:
        assert (await one.asked("hello", person=ANN)).text == "echo: hello"
        assert (await one.asked("!help", person=BOB)).text
    async with deciding(tmp_path / "none", "none") as one:
        assert (await one.asked("hello", person=BOB)).text == "echo: hello"
    async with deciding(tmp_path / "all", "all") as one:
        await greeted(one)
        one.server.say(ANN, "hello")
        await notices(one)
        assert [m.text for m in one.server.seen(DM) if m.text.startswith("echo")] == []


async def test_a_sign_of_the_owner_decides(tmp_path):
    """A thumb of the owner on the notice counts; another person's does nothing, another sign is told so."""
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        one.server.say(BOB, "may I come?")
        (notice,) = await notices(one)
        await one.hand_over(
            reaction(notice, "👍", person=BOB, number=1),
            reaction(notice, "🎉", number=2),
            reaction(notice.model_copy(update={"key": "unknown"}), "👍", number=3),
        )
        with anyio.fail_after(60):
            while (await one.inbox()).get("settled", 0) + (await one.inbox()).get("ignored", 0) < 5:
                await anyio.sleep(0.02)
        assert one.server.seen(BOBS) == []
        assert one.server.seen(DM)[-1].text == "🎉 is no yes or no, so it still waits: 👍 is yes, 👎 is no."
        await one.hand_over(reaction(notice, "👍🏽", number=4))
        (answer,) = await one.server.answers(1, conversation=BOBS)
        before = len(one.server.seen(DM))
        await one.hand_over(reaction(notice, "❤️", number=6), reaction(notice, "👎", number=5))
        told = (await one.server.answers(before + 1, conversation=DM))[-1]
    assert answer.text == "echo: may I come?"
    assert "is approved" in told.text


async def test_only_the_owner_and_only_directly(tmp_path):
    """Another person and a group learn nothing of drafts, and decide nothing."""
    server = LoopbackServer()
    server.groups = {"room"}
    async with deciding(tmp_path, "strangers", server=server) as one:
        await greeted(one)
        one.server.say(BOB, "may I come?")
        (draft,) = await held(one)
        for_bob = await one.asked(f"!approve d{draft}", person=BOB)
        server.say(ANN, f"!approve d{draft}", conversation="room")
        (in_room,) = await server.answers(1, conversation="room")
        assert await held(one) == [draft]
    assert for_bob.text == in_room.text
    assert "Only my owner" in for_bob.text


async def test_without_a_place_to_ask_it_waits(tmp_path):
    """Nobody is asked while there is no owner; then it is asked, and what waits is one notice."""
    async with deciding(tmp_path, "strangers", settings={}) as one:
        one.server.say(BOB, "first")
        one.server.say(EVE, "second")
        with anyio.fail_after(60):
            while len(await one.built.store.outbox.rows(states=[OutboxState.HELD])) < 2:
                await anyio.sleep(0.02)
        await anyio.sleep(0.3)
        assert one.server.seen(DM) == []
    async with deciding(tmp_path, "strangers", server=one.server) as two:
        (notice,) = await notices(two)
        names = [f"d{number}" for number in await held(two)]
        await two.hand_over(reaction(notice, "✅"))
        told = (await two.server.answers(2, conversation=DM))[-1]
        shown = await two.asked("!approve", person=ANN)
    assert len(names) == 2
    for name in names:
        assert name in notice.text
        assert name in shown.text
        assert name in told.text
    assert "several" in told.text


async def test_names_that_are_none(tmp_path):
    """An unknown name, an ordinary answer and nonsense are told apart from items, in plain words."""
    async with deciding(tmp_path, "strangers") as one:
        await one.asked("hello", person=ANN)
        (sent,) = [row.id for row in await one.built.store.outbox.rows()]
        for name in (f"d{sent}", f"m{sent}", "d999", "x1", "d-1", "dé"):
            told = await one.asked(f"!approve {name}", person=ANN)
            assert told.text.startswith("There is nothing named"), name
            assert "`!approve` alone lists" in told.text


async def test_a_kept_back_message_is_let_in(tmp_path):
    """A quarantined message is listed by `!approve`, and answered after the yes."""
    async with deciding(tmp_path, "none") as one:
        await greeted(one)
        message = reaction(Delivered(key="", conversation="", text=""), "let me in", person=BOB)
        quarantined = {"kind": "message", "context": MessageContext(quarantine="sender_not_verified")}
        await one.hand_over(message.model_copy(update=quarantined))
        (row,) = await one.built.store.inbox.rows(states=[InboxState.QUARANTINED])
        listed = await one.asked("!approve", person=ANN)
        await seen(one, row.id)
        said = await one.asked(f"!approve m{row.id}", person=ANN)
        again = await one.asked(f"!approve m{row.id}", person=ANN)
        (answer,) = await one.server.answers(1, conversation=BOBS)
    assert f"`m{row.id}`: a quarantined message from `{BOB}` by matrix" in listed.text
    assert "let me in" not in listed.text
    assert said.text == again.text == f"`m{row.id}` is approved, and I answer it."
    assert answer.text == "echo: let me in"


async def _kept(one: Scenario) -> int:
    """A message of Bob's waits in the quarantine, and the owner has been shown all of it."""
    await greeted(one)
    message = reaction(Delivered(key="", conversation="", text=""), "let me in", person=BOB)
    quarantined = {"kind": "message", "context": MessageContext(quarantine="sender_not_verified")}
    await one.hand_over(message.model_copy(update=quarantined))
    (row,) = await one.built.store.inbox.rows(states=[InboxState.QUARANTINED])
    await seen(one, row.id)
    return row.id


@pytest.mark.parametrize(("word", "told"), [("yes", "is approved, and I answer it"), ("Nein", "is rejected")])
async def test_a_plain_word_after_the_kept_message_was_shown_decides(tmp_path, word, told):
    """As it does for a tool; once decided, the next word is a message like any other."""
    async with deciding(tmp_path, "none") as one:
        number = await _kept(one)
        said = await one.asked(word, person=ANN)
        after = await one.asked("yes", person=ANN)
    assert said.text.startswith(f"`m{number}` {told}")
    assert after.text == "echo: yes"


async def test_a_word_that_may_be_for_something_else_decides_nothing(tmp_path):
    """After the model has spoken it is the model's, and so is anybody else's: the message still waits."""
    async with deciding(tmp_path, "none") as one:
        await _kept(one)
        assert (await one.asked("what is new?", person=ANN)).text == "echo: what is new?"
        assert (await one.asked("yes", person=ANN)).text == "echo: yes"
        assert (await one.asked("yes", person=EVE)).text == "echo: yes"
        assert await one.built.store.inbox.rows(states=[InboxState.QUARANTINED])


async def test_a_word_that_crosses_the_question_about_a_draft_is_asked_back(tmp_path, monkeypatch):
    """It may be meant for what was said before; in reply to that it counts, and so does a later one."""
    async with deciding(tmp_path, "strangers") as one:
        await one.asked("hello", person=ANN)
        one.server.say(BOB, "may I come?")
        await notices(one)
        (draft,) = await held(one)
        asked = await one.asked("yes", person=ANN)
        assert asked.text.startswith(f"Is that a yes or a no to `d{draft}`? It still waits.")
        assert await held(one) == [draft]
        monkeypatch.setattr(worded_answers, "_CROSSED", timedelta(0))
        said = await one.asked("yes", person=ANN)
        (answer,) = await one.server.answers(1, conversation=BOBS)
    assert said.text.startswith(f"`d{draft}` is approved")
    assert answer.text == "echo: may I come?"


def claimed(text: str, *, outbound: str, kind: str) -> InboundMessage:
    """What gives itself out to be the owner's, and is kept back."""
    message = reaction(Delivered(key="", conversation="", text=""), text)
    why = MessageContext(quarantine="sender_not_verified", outbound=outbound)
    sender = Sender(address=ANN, verified=False)
    return message.model_copy(update={"kind": kind, "context": why, "sender": sender, "native_id": text})


@pytest.mark.parametrize("proved", [False, True])
async def test_what_is_let_in_neither_commands_nor_decides(tmp_path, proved):
    """In the owner's name, but nobody has proved that: not about a draft, not `!trust`; the control is proved."""
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        one.server.say(BOB, "may I come?")
        (notice,) = await notices(one)
        (draft,) = await held(one)
        for text, kind, outbound in (
            ("!trust", "message", ""),
            (f"!approve d{draft}", "message", ""),
            ("👍", "reaction", notice.key),
        ):
            sent = claimed(text, kind=kind, outbound=outbound)
            if proved:
                sent = sent.model_copy(
                    update={
                        "context": MessageContext(outbound=outbound),
                        "sender": Sender(address=ANN, verified=True),
                    }
                )
            before = len(one.server.seen(DM))
            await one.hand_over(sent)
            for row in await one.built.store.inbox.rows(states=[InboxState.QUARANTINED]):
                await one.built.store.inbox.admit(row.id)
            told = (await one.server.answers(before + 1, conversation=DM))[-1].text
            assert ("nothing proves who wrote it" in told) is not proved, text
        row = await one.built.store.outbox.row(draft)
        assert (row.state is OutboxState.HELD) is not proved


async def test_a_kept_back_message_is_refused(tmp_path):
    """After a no it is never answered."""
    async with deciding(tmp_path, "none") as one:
        await greeted(one)
        message = reaction(Delivered(key="", conversation="", text=""), "let me in", person=BOB)
        await one.hand_over(
            message.model_copy(
                update={"kind": "message", "context": MessageContext(quarantine="sender_not_verified")}
            )
        )
        (row,) = await one.built.store.inbox.rows(states=[InboxState.QUARANTINED])
        said = await one.asked(f"!reject m{row.id}", person=ANN)
        again = await one.asked(f"!approve m{row.id}", person=ANN)
        assert one.server.seen(BOBS) == []
    assert said.text == f"`m{row.id}` is rejected: I do not answer it."
    assert again.text == said.text


async def test_an_answer_in_parts_is_one_item(tmp_path):
    """A long answer that leaves in several parts is asked about once, and one yes sends all of it."""
    async with deciding(tmp_path, "strangers") as one:
        await greeted(one)
        one.server.say(BOB, "long " + "x" * 40_000)
        notice, *_ = await notices(one)
        parts = await held(one)
        await one.asked(f"!approve d{parts[0]}", person=ANN)
        answers = await one.server.answers(len(parts), conversation=BOBS)
    assert len(parts) > 1
    assert f"d{parts[1]}" not in notice.text
    assert sum(answer.text.count("x") for answer in answers) == 40_000


class Marking(LoopbackChannel):
    """A channel that can show how far a message is."""

    def __init__(self, server: LoopbackServer) -> None:
        super().__init__(server, name="matrix")
        self.capabilities = Capabilities(Redelivery.SAME_KEY, acknowledgements=True)
        self.marks: list[tuple[str, AckState]] = []

    async def acknowledge(self, session: SessionKey, context: MessageContext, stage: AckState) -> None:
        self.marks.append((context.route["event_id"], stage))


async def test_messages_are_marked_as_far_as_they_are(tmp_path):
    """Received and done for an answer and for a command, received and failed for what is given up."""
    server = LoopbackServer()
    channel = Marking(server)
    async with deciding(tmp_path, "none", server=server, channels={"matrix": (channel, "each")}) as one:
        good = server.say(BOB, "hello")
        await server.answers(1, conversation=BOBS)
        bad = server.say(BOB, "fail")
        await server.answers(2, conversation=BOBS)
        command = server.say(BOB, "!help")
        await server.answers(3, conversation=BOBS)
        with anyio.fail_after(60):
            while (command, AckState.DONE) not in channel.marks:
                await anyio.sleep(0.02)
    assert one.built is not None
    assert channel.marks == [
        (good, AckState.RECEIVED),
        (good, AckState.DONE),
        (bad, AckState.RECEIVED),
        (bad, AckState.FAILED),
        (command, AckState.DONE),
    ]
