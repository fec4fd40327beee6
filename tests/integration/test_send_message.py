"""The tool `send_message`: to the owner elsewhere at once, to others after a yes, once, and never to strangers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Audience, InboundMessage, OutboundKind, SessionKey
from gateway.app import Overrides, build
from gateway.proactive.messenger import Messenger, RunMessages
from gateway.settings import Settings
from gateway.store.store_errors import StoreUnavailable
from gateway.supervision.gateway import Gateway
from gateway.system.home import open_home
from gateway.turns.step_journal import StoreStepJournal
from tests.daemon import email_settings, matrix_settings, one_model
from tests.doubles.agent import StreamingModel
from tests.doubles.agent import call as use
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.inbound import inbound
from tests.integration.command_world import ANN, BOB, CID, EVE
from tests.integration.gateway_world import Scenario, world
from tests.integration.matrix_bot import call
from tests.integration.test_approvals_by_mail import Harness, mail_server, text_of

__all__ = ["mail_server"]

OWNER_MAIL, CARL = "ann@mail.test", "carl@mail.test"
NAMED = re.compile(r"\b(a[0-9a-f]{6})\b")


class Writer(StreamingModel):
    """Sends what a message says after "send", as JSON; ``times`` in it sends so many different ones."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.tools: list[str] = []

    async def answer(self, messages, tools):
        self.prompts.append("\n".join(message.content for message in messages))
        self.tools.append(" ".join(f"{tool.name} {tool.description}" for tool in tools))
        wish = next(message.content for message in reversed(messages) if message.role == "user")
        begun = max(number for number, message in enumerate(messages) if message.role == "user")
        results = [
            message.content
            for message in messages[begun:]
            if message.role == "tool" and "was not loaded" not in message.content
        ]
        found = re.search(r"^send (\{.*\})", wish, re.MULTILINE)
        arguments = json.loads(found[1]) if found else {}
        times, alike = arguments.pop("times", 1), arguments.pop("alike", False)
        if found and len(results) < times:
            if times > 1 and not alike:
                arguments["text"] += f" {len(results)}"
            yield use("send_message", **arguments)
        else:
            yield f"so: {results[-1] if results else 'hello'}"


class StepLost(Exception):
    """The process died."""


class Town:
    def __init__(self, one: Scenario, mail: LoopbackServer, mind: Writer) -> None:
        self.one, self.mail, self.mind = one, mail, mind

    async def wish(self, **arguments: Any) -> str:
        return (await self.one.asked(f"send {json.dumps(arguments)}", person=ANN)).text

    async def take(self, message: InboundMessage) -> None:
        """Accept a message of the first channel as it is."""
        every = self.one.built.supervisor._watched.values()
        (inbox,) = (each.inbox for each in every if each.channel.name == message.channel)
        await inbox.accept([message], None)

    def told(self, server: LoopbackServer) -> list[str]:
        return [each.text for each in server.delivered if each.kind is OutboundKind.MESSAGE]


@asynccontextmanager
async def town(root: Path, *, aliases: Sequence[str] = (), **more: Any) -> AsyncIterator[Town]:
    """Ann owns both channels, perhaps with more addresses by mail; everybody may write on the first."""
    chat, mail, mind = LoopbackServer(), LoopbackServer(), Writer()
    channels = {
        "matrix": (LoopbackChannel(chat, name="matrix"), "merge"),
        "email": (LoopbackChannel(mail, name="email"), "merge"),
    }
    settings = {
        "owner": {
            "aliases": [
                {"channel": "matrix", "address": ANN},
                *({"channel": "email", "address": address} for address in (OWNER_MAIL, *aliases)),
            ]
        },
    }
    given = {"channels": channels, "allow_from": {"matrix": ("*",), "email": ("carl@mail.test",)}, **more}
    async with world(root, server=chat, settings=settings, models={"demo": mind}, **given) as one:
        yield Town(one, mail, mind)


class TestToTheOwner:
    async def test_it_comes_on_the_other_channel_and_is_known_there(self, tmp_path):
        """At once, without a question; what it was about can be asked there; here the call is in the history."""
        async with town(tmp_path) as there:
            told = await there.wish(to="email", text="the table of herons")
            (mail,) = await there.mail.answers(1, conversation=f"dm-{OWNER_MAIL}")
            there.mail.say(OWNER_MAIL, "what did you mean?")
            await there.mail.answers(2, conversation=f"dm-{OWNER_MAIL}")
            asked_there = there.mind.prompts[-1]
            await there.one.asked("and here?", person=ANN)
        assert told == f"so: It is on its way to email:{OWNER_MAIL}."
        assert mail.text == "the table of herons"
        assert "the table of herons" in asked_there
        assert "the table of herons" in there.mind.prompts[-1] or "on its way" in there.mind.prompts[-1]

    @pytest.mark.parametrize("has_written", [False, True])
    async def test_of_several_addresses_the_one_that_is_named(self, tmp_path, has_written):
        """And the model is told which it was; without a name it is the one that the owner has used last."""
        work = "zoe@work.test"
        async with town(tmp_path, aliases=[work]) as there:
            if has_written:
                there.mail.say(OWNER_MAIL, "hello")
                await there.mail.answers(1, conversation=f"dm-{OWNER_MAIL}")
            told = await there.wish(to=f"email:{work.upper()}", text="the table of herons")
            (mail,) = await there.mail.answers(1, conversation=f"dm-{work}")
            usual = await there.wish(to="email", text="the table of storks")
            await there.mail.answers(1 + has_written, conversation=f"dm-{OWNER_MAIL}")
        assert mail.text == "the table of herons"
        assert told.lower() == f"so: it is on its way to email:{work}."
        assert usual == f"so: It is on its way to email:{OWNER_MAIL}."

    async def test_others_who_come_later_are_not_shown_it(self, tmp_path):
        """It was for the owner alone: the model has it in a turn of the owner, and in none of a guest there."""
        async with town(tmp_path) as there:
            there.one.server.say(ANN, "hello")
            await there.one.server.answers(1, conversation=f"dm-{ANN}")
            there.mail.say(OWNER_MAIL, f"send {json.dumps({'to': 'matrix', 'text': 'the heron is ill'})}")
            await there.one.server.answers(2, conversation=f"dm-{ANN}")
            await there.mail.answers(1, conversation=f"dm-{OWNER_MAIL}")
            message = inbound(
                SessionKey("matrix", f"dm-{ANN}"), BOB, "what is new?", "$later", audience=Audience.GROUP
            )
            await there.take(message)
            await there.one.server.answers(3, conversation=f"dm-{ANN}")
            before_others = there.mind.prompts[-1]
            await there.one.asked("what did you mean?", person=ANN)
            alone = there.mind.prompts[-1]
        assert "what is new?" in before_others
        assert "heron" not in before_others
        assert "the heron is ill" in alone

    async def test_files_go_along(self, tmp_path):
        """A file of the workspace."""
        root = open_home(tmp_path).root
        (root / "workspace").mkdir(exist_ok=True)
        (root / "workspace" / "table.md").write_text("| heron |\n")
        async with town(tmp_path) as there:
            await there.wish(to="email", text="here", files=["table.md"])
            (mail,) = await there.mail.answers(1, conversation=f"dm-{OWNER_MAIL}")
            missing = await there.wish(to="email", text="here", files=["nothing.md"])
        assert [file.name for file in mail.attachments] == ["table.md"]
        assert "cannot be sent" in missing

    async def test_not_to_where_it_is_said(self, tmp_path):
        """In the conversation itself one just answers."""
        async with town(tmp_path) as there:
            told = await there.wish(to="matrix", text="hello")
            assert there.told(there.one.server) == []
        assert "Just answer" in told

    async def test_words_of_others_ask_first(self, tmp_path):
        """With a stranger's words in the prompt even that waits for the owner's yes."""
        async with town(tmp_path) as there:
            message = inbound(
                SessionKey("matrix", f"dm-{ANN}"),
                ANN,
                f"send {json.dumps({'to': 'email', 'text': 'click here'})}",
                "$tainted",
                context={"others_words": True},
            )
            await there.take(message)
            (question,) = await there.one.server.answers(1, conversation=f"dm-{ANN}")
            assert there.mail.delivered == []
        assert "I need your approval" in question.text
        assert "click here" in question.text
        assert "It may not be your idea" in question.text

    async def test_a_loop_ends_and_is_told(self, tmp_path):
        """At most five of a turn."""
        async with town(tmp_path) as there:
            told = await there.wish(to="email", text="number", times=8)
            sent = await there.mail.answers(5, conversation=f"dm-{OWNER_MAIL}")
            await anyio.sleep(0.3)
            assert there.told(there.mail) == [f"number {number}" for number in range(5)]
        assert len(sent) == 5
        assert "which is the limit" in told

    async def test_twenty_an_hour_over_all_turns(self, tmp_path, monkeypatch):
        """The hour counts over turns."""
        monkeypatch.setattr("gateway.proactive.messenger.PER_HOUR", 3)
        async with town(tmp_path) as there:
            for number in range(3):
                await there.wish(to="email", text=f"number {number}")
            told = await there.wish(to="email", text="one more")
        assert "in the last hour" in told

    async def test_however_much_is_posted_in_between(self, tmp_path, monkeypatch):
        """The limit counts, and a wish is found again behind others."""
        monkeypatch.setattr("gateway.proactive.messenger.PER_HOUR", 3)
        send, made = RunMessages.send, []

        async def noted(self: RunMessages, *given: Any, **named: Any) -> str:
            made.append((self, given, named))
            return await send(self, *given, **named)

        monkeypatch.setattr(RunMessages, "send", noted)
        async with town(tmp_path) as there:
            for number in range(3):
                await there.wish(to="email", text=f"number {number}")
            told = await there.wish(to="email", text="one more")
            run, given, named = made[0]
            again = await send(run, *given, **named)
            await anyio.sleep(0.3)
            assert there.told(there.mail) == [f"number {number}" for number in range(3)]
        assert "in the last hour" in told
        assert "on its way" in again

    async def test_cut_off_before_it_was_posted_the_last_one_allowed_is_sent(self, tmp_path, monkeypatch):
        """A wish that was counted and never posted does not stand in its own way."""
        monkeypatch.setattr("gateway.proactive.messenger.PER_TURN", 1)
        finished, failures = Messenger.check_limits, [1, 2]

        def failing(self: Messenger, turn: str) -> None:
            finished(self, turn)
            if failures and failures.pop() == 1:  # the second time, right before it is posted
                raise StepLost

        monkeypatch.setattr(Messenger, "check_limits", failing)
        send = RunMessages.send

        async def twice(self: RunMessages, *given: Any, **named: Any) -> str:
            try:
                return await send(self, *given, **named)
            except StepLost:
                return await send(self, *given, **named)

        monkeypatch.setattr(RunMessages, "send", twice)
        async with town(tmp_path) as there:
            told = await there.wish(to="email", text="once")
            await there.mail.answers(1, conversation=f"dm-{OWNER_MAIL}")
            assert there.told(there.mail) == ["once"]
        assert failures == []
        assert "on its way" in told

    async def test_cut_off_after_it_was_posted_it_is_sent_once(self, tmp_path, monkeypatch):
        """The step is done again, the message is not."""
        finished, failures = StoreStepJournal.record_tool_result, [1]

        async def failing(self: StoreStepJournal, *given: Any, **named: Any) -> Any:
            if failures and "on its way" in str((given, named)):
                failures.pop()
                raise StoreUnavailable("lost")
            return await finished(self, *given, **named)

        monkeypatch.setattr(StoreStepJournal, "record_tool_result", failing)
        async with town(tmp_path) as there:
            told = await there.wish(to="email", text="once")
            await there.mail.answers(1, conversation=f"dm-{OWNER_MAIL}")
            await anyio.sleep(0.3)
            assert there.told(there.mail) == ["once"]
        assert failures == []
        assert "on its way" in told

    @pytest.mark.parametrize("becomes", ["| stork |\n", None])
    async def test_cut_off_after_it_was_posted_with_a_file_that_changes_then(
        self, tmp_path, monkeypatch, becomes
    ):
        """What was posted is recognised by the step, whatever the file is now, also if it is gone."""
        root = open_home(tmp_path).root
        (root / "workspace").mkdir(exist_ok=True)
        table = root / "workspace" / "table.md"
        table.write_text("| heron |\n")
        finished, failures = StoreStepJournal.record_tool_result, [1]

        async def failing(self: StoreStepJournal, *given: Any, **named: Any) -> Any:
            if failures and "on its way" in str((given, named)):
                failures.pop()
                table.unlink()
                if becomes is not None:
                    table.write_text(becomes)
                raise StoreUnavailable("lost")
            return await finished(self, *given, **named)

        monkeypatch.setattr(StoreStepJournal, "record_tool_result", failing)
        async with town(tmp_path) as there:
            told = await there.wish(to="email", text="here", files=["table.md"])
            await there.mail.answers(1, conversation=f"dm-{OWNER_MAIL}")
            await anyio.sleep(0.3)
            assert there.told(there.mail) == ["here"]
        assert failures == []
        assert "on its way" in told

    async def test_the_same_wished_for_twice_in_a_turn_is_two_messages(self, tmp_path):
        """Each call is a step of its own."""
        async with town(tmp_path) as there:
            await there.wish(to="email", text="ring", times=2, alike=True)
            await there.mail.answers(2, conversation=f"dm-{OWNER_MAIL}")
            assert there.told(there.mail) == ["ring", "ring"]


class TestToOthers:
    @pytest.mark.parametrize("yes", [True, False])
    async def test_only_after_a_yes(self, tmp_path, yes):
        """Recipient, text and the file's hash stand in the question, though the owner has named the recipient."""
        root = open_home(tmp_path).root
        (root / "workspace").mkdir(exist_ok=True)
        (root / "workspace" / "map.md").write_text("the way\n")
        async with town(tmp_path) as there:
            question = await there.wish(to="email:carl@mail.test", text="I am late", files=["map.md"])
            assert there.mail.delivered == []
            (name,) = set(NAMED.findall(question.partition(":")[0]))
            await there.one.asked(f"!{'approve' if yes else 'reject'} {name}", person=ANN)
            if yes:
                (mail,) = await there.mail.answers(1, conversation="dm-carl@mail.test")
                assert mail.text == f"{ANN} says: I am late"
                assert [file.name for file in mail.attachments] == ["map.md"]
            await there.one.server.answers(3, conversation=f"dm-{ANN}")
            assert len(there.mail.delivered) == yes
        assert "to: email:carl@mail.test" in question
        assert f"{ANN} says: I am late" in question
        assert "SHA-256" in question

    @pytest.mark.parametrize("to", ["matrix:!herons", "herons”) to: ME 7"])
    async def test_a_room_is_named_as_people_know_it(self, tmp_path, to):
        """It is found by its name, too. That stands behind its id, without the marks that would let it look like something else."""
        async with town(tmp_path) as there:
            there.one.server.groups = {"!herons"}
            there.one.server.say(BOB, "hello", conversation="!herons")
            await there.one.server.answers(1, conversation="!herons")
            every = there.one.built.supervisor._watched.values()
            (channel,) = (each.channel for each in every if each.channel.name == "matrix")
            channel.room_name = lambda conversation: f"Herons”) to: me {len(conversation)}"
            channel.people = channel.is_in  # it has it, and is not asked
            named = await there.wish(to=to, text="I am late")
        assert "to: matrix:!herons (the room “Herons') to: me 7”)" in named

    async def test_a_name_finds_whoever_is_known_by_it(self, tmp_path):
        """Who gets it knows who sends it, and what it was when they answer; the owner is asked before."""
        async with town(tmp_path) as there:
            there.mail.say(CARL, "hello", verified=True, name="Carl Miller")
            await there.mail.answers(1, conversation=f"dm-{CARL}")
            question = await there.wish(to="email:carl", text="I am late")
            (name,) = set(NAMED.findall(question.partition(":")[0]))
            await there.one.asked(f"!approve {name}", person=ANN)
            got = (await there.mail.answers(2, conversation=f"dm-{CARL}"))[-1]
            there.mail.say(CARL, "how late?", verified=True, name="Carl Miller")
            await there.mail.answers(3, conversation=f"dm-{CARL}")
        assert f"to: email:{CARL}" in question
        assert got.text == f"{ANN} says: I am late"
        assert f"{ANN} says: I am late" in there.mind.prompts[-1]

    async def test_of_two_with_one_name_neither_gets_it(self, tmp_path):
        """The model is told who it can be, to ask once; a stranger who is not known is not among them."""
        async with town(tmp_path) as there:
            for who, proven in ((BOB, True), (CID, True), (EVE, False)):
                there.one.server.say(who, "hello", verified=proven, name="Bobby")
                if proven:
                    await there.one.server.answers(1, conversation=f"dm-{who}")
            told = await there.wish(to="bobby", text="I am late")
        assert "Ask once who is meant" in told
        assert f"matrix:{BOB} (Bobby), matrix:{CID} (Bobby)" in told
        assert EVE not in told
        assert "carl" not in told

    async def test_a_file_that_changed_after_the_yes_was_asked_is_not_sent(self, tmp_path):
        """The yes was to what was shown: it is asked again, with the new hash."""
        root = open_home(tmp_path).root
        (root / "workspace").mkdir(exist_ok=True)
        (root / "workspace" / "map.md").write_text("the way\n")
        async with town(tmp_path) as there:
            question = await there.wish(to="email:carl@mail.test", text="I am late", files=["map.md"])
            (name,) = set(NAMED.findall(question.partition(":")[0]))
            (root / "workspace" / "map.md").write_text("another way\n")
            await there.one.asked(f"!approve {name}", person=ANN)
            told = [each.text for each in await there.one.server.answers(3, conversation=f"dm-{ANN}")]
            assert there.mail.delivered == []
        assert any("What you approved has changed since" in text for text in told)

    async def test_nobody_who_is_not_known(self, tmp_path):
        """Neither any address, nor whom a `*` would let write; who has written with a proven address is known."""
        async with town(tmp_path) as there:
            unknown = await there.wish(to="email:mallory@evil.test", text="all of it")
            wildcard = await there.wish(to=f"matrix:{BOB}", text="hello Bob")
            there.one.server.say(BOB, "hello", verified=True, name="Ann")
            await there.one.server.answers(1, conversation=f"dm-{BOB}")
            by_name = await there.wish(to="Bob", text="hello Bob")
            known = await there.wish(to=f"matrix:{BOB}", text="hello Bob")
            assert there.mail.delivered == []
        for told in (unknown, wildcard, by_name):
            assert "not a known recipient" in told
        assert "I need your approval" in known
        assert f"to: matrix:{BOB}" in known

    async def test_guests_can_send_nowhere(self, tmp_path):
        """They are not offered the tool, and a call of it is refused."""
        async with town(tmp_path) as there:
            wish = f"send {json.dumps({'to': 'email', 'text': 'spam'})}"
            there.one.server.say(BOB, wish)
            (told,) = await there.one.server.answers(1, conversation=f"dm-{BOB}")
            offered = there.mind.tools[-1]
            assert there.mail.delivered == []
            await there.wish(to="matrix", text="x")
        assert "send_message" not in offered
        assert "send_message" in there.mind.tools[-1]
        assert "on its way" not in told.text


async def on_both(house: Harness, matrix: Mapping[str, Any], mind: Any, *, owner: str) -> Gateway:
    """A gateway of one owner, on a real homeserver and a real mail server."""
    settings = {
        "owner": {"aliases": [owner, house.address("owner")]},
        "agents": {"heartbeat": {"enabled": False}},
        "llm": one_model("m"),
        "channels": {"email": email_settings(house.server, house.bot, "pw"), "matrix": matrix},
    }
    home = open_home(house.folder)
    return await build(Settings.model_validate(settings), home, Overrides(models={"m": mind}))


async def test_between_a_real_homeserver_and_real_mail(
    synapse: Any, fresh_credentials: Any, alice: Any, bob: Any, mail_server: Any, tmp_path: Path
) -> None:
    """Asked for on Matrix, read in a mail, understood in the answer to that mail; Bob gets his after a yes."""
    house, bot, mind = Harness(mail_server, 6, tmp_path), fresh_credentials("bot"), Writer()
    matrix = matrix_settings(synapse, bot.user_id, bot.password, bob.user_id)
    built = await on_both(house, matrix, mind, owner=alice.user_id)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        try:
            room = await call(alice.create_room, [bot.user_id], is_direct=True)
            with anyio.fail_after(60):
                while bot.user_id not in await call(alice.members, room):
                    await anyio.sleep(0.1)
                await call(
                    alice.send, room, f"send {json.dumps({'to': 'email', 'text': 'the table of herons'})}"
                )
                (mail,) = await house.mails("owner", lambda text: "the table of herons" in text)
                await house.write("owner", "what did you mean?", to=mail)
                await house.mails("owner", lambda text: text.startswith("so: hello"))
                assert "the table of herons" in mind.prompts[-1].rpartition("what did you mean?")[0]
                wish = json.dumps({"to": f"matrix:{bob.user_id}", "text": "she is late"})
                await call(alice.send, room, f"send {wish}")
                name = ""
                while not name:
                    bodies = [one.content.get("body", "") for one in await call(alice.history, room)]
                    found = [NAMED.search(body) for body in bodies if "I need your approval" in body]
                    name = found[0][1] if found and found[0] else ""
                    await anyio.sleep(0.1)
                await call(alice.send, room, f"!approve {name}")
                rooms: list[str] = []
                while not rooms:  # in which it has arrived, and is remembered
                    keys = [SessionKey.parse(each) for each in await built.memory.sessions()]
                    rooms = [
                        key.conversation
                        for key in keys
                        if key.channel == "matrix" and key.conversation != room
                    ]
                    await anyio.sleep(0.1)
                await call(bob.join, rooms[0])
                remembered = await built.memory.load_history(str(SessionKey("matrix", rooms[0])))
                (row,) = [
                    each
                    for each in await built.store.outbox.rows()
                    if each.message.text.endswith(" says: she is late")
                    and each.message.kind is OutboundKind.MESSAGE
                ]
                event = await call(bob.call, "GET", f"/rooms/{rooms[0]}/event/{row.provider_id}")
            assert event["sender"] == bot.user_id
            [line] = remembered.messages
            assert re.fullmatch(rf"({re.escape(alice.user_id)}|[\w-]+) says: she is late", line.content)
            assert str(mail["Subject"])
            assert text_of(mail).strip().startswith("the table of herons")
        finally:
            built.stop()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            tasks.cancel_scope.cancel()
