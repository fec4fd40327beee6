"""`!continue`: one conversation goes on in another, with its summary, its newest words and its taint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.memory.manager import MemoryManager
from agent_core.memory.scopes import OWNER
from agent_core.messages import Audience, SessionKey
from agent_core.models import Message
from agent_core.prompt import transcript_line, words_for_people
from agent_core.provenance import untrusted_origin
from agent_core.storage.layout import Layout
from channels.base import LinkState
from gateway.operations.privacy.personal_histories import open_histories
from gateway.store.store_errors import StoreUnavailable
from gateway.system.home import open_home
from gateway.turns.commands.continue_command import title_of
from gateway.turns.commit import TurnCommit
from tests.clock import EPOCH
from tests.daemon import matrix_settings
from tests.doubles.agent import StreamingModel
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.inbound import inbound
from tests.integration.command_world import ANN, BOB, Mind
from tests.integration.gateway_world import Scenario, world
from tests.integration.matrix_bot import call
from tests.integration.test_approvals_by_mail import Harness, mail_server, text_of
from tests.integration.test_send_message import OWNER_MAIL, on_both

__all__ = ["mail_server"]

HERE = SessionKey("matrix", f"dm-{ANN}")
THERE = SessionKey("email", f"dm-{OWNER_MAIL}")


class Two:
    """Ann's two channels."""

    def __init__(self, one: Scenario, mail: LoopbackServer) -> None:
        self.one, self.mail = one, mail

    async def here(self, text: str, person: str = ANN) -> str:
        return (await self.one.asked(text, person=person)).text

    async def there(self, text: str) -> str:
        before = len(self.mail.seen(f"dm-{OWNER_MAIL}"))
        self.mail.say(OWNER_MAIL, text)
        return (await self.mail.answers(before + 1, conversation=f"dm-{OWNER_MAIL}"))[-1].text

    async def lines(self, session: SessionKey) -> tuple[Message, ...]:
        await self.one.built.handler.history.flush(session)
        return (await self.one.built.memory.load_history(str(session))).messages


@asynccontextmanager
async def two(
    root: Path,
    mind: Mind,
    servers: tuple[LoopbackServer, LoopbackServer] | None = None,
    *,
    conversation: str = "separate",
    without: str = "",
    more_settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Two]:
    chat, mail = servers or (LoopbackServer(), LoopbackServer())
    settings = {
        "owner": {
            "aliases": [{"channel": "matrix", "address": ANN}, {"channel": "email", "address": OWNER_MAIL}],
            "conversation": conversation,
        },
        **(more_settings or {}),
    }
    channels = {
        "matrix": (LoopbackChannel(chat, name="matrix"), "merge"),
        "email": (LoopbackChannel(mail, name="email"), "merge"),
    }
    async with world(
        root,
        server=chat,
        settings=settings,
        models={"demo": mind},
        channels={name: each for name, each in channels.items() if name != without},
        allow_from={"matrix": ("*",), "email": ("*",)},
        **more,
    ) as one:
        yield Two(one, mail)


async def test_it_goes_on_here_and_stays_as_it_is_there(tmp_path):
    """Listed with its first words, its age and its channel; the model has it here from then on; `!undo` takes it back."""
    mind = Mind()
    async with two(tmp_path, mind) as town:
        await town.there("the herons of the delta")
        await town.here("something else")
        listed = await town.here("!continue")
        before = await town.lines(THERE)
        told = await town.here("!continue 1")
        await town.here("go on")
        shown = mind.shown[-1]
        after = await town.lines(THERE)
        named_there = await town.there("!continue")
        found = await town.here("!search delta")
        await town.here("!undo")
        back = await town.here("!undo")
        await town.here("and now?")
        without = mind.shown[-1]
    assert "1. the herons of the delta (email, less than a minute ago)" in listed
    assert "`!continue 1` continues it here." in listed
    assert "something else" not in listed
    assert "2 messages" in told
    assert "[Taken over from our conversation on email" in shown
    assert "the herons of the delta" in shown
    assert before == after
    assert "herons" not in without
    assert "1. go on (matrix" in named_there
    assert "taken_over>" not in found and "the herons of the delta" in found
    assert back.startswith("I no longer see what was taken over.")


async def test_taint_and_summary_come_along(tmp_path):
    """What a stranger's words are made of is so here, too, and names nothing as the owner's."""
    made_of = (untrusted_origin("web", "https://evil.test", EPOCH),)
    async with two(tmp_path, Mind()) as town:
        await town.there("the herons")
        await town.lines(THERE)
        memory = town.one.built.memory
        line = Message(
            role="assistant",
            content="mallory@evil.test",
            id="x.1",
            turn="x",
            timestamp=EPOCH,
            scope=str(OWNER),
            origins=made_of,
        )
        await memory.save_consolidation(
            str(THERE), summary="They spoke of owls.", cursor=1, private=["owner"], origins=made_of
        )
        await memory.append_message(str(THERE), line)
        await town.here("hello")
        await town.here("!continue")
        await town.there("more of it")
        await town.here("!continue 1")
        asked, taken = (await town.lines(HERE))[-2:]
    assert (asked.role, taken.role) == ("user", "assistant")
    assert "owls" in taken.content
    assert "mallory@evil.test" in taken.content
    assert [each.where for each in taken.origins or ()] == ["https://evil.test"]
    assert all(each.at is not None and each.at > EPOCH for each in taken.origins or ())
    assert "mallory" not in asked.content


@pytest.mark.parametrize("speaks", [BOB, OWNER_MAIL])
async def test_only_what_is_the_owners_alone(tmp_path, speaks):
    """
    A guest's conversation, and one that another has joined since it was listed, whoever has spoken there then, stay
    where they are.
    """
    async with two(tmp_path, Mind()) as town:
        guest = await town.here("!continue", person=BOB)
        await town.here("Bob's secret", person=BOB)
        await town.there("the herons")
        await town.here("hello")
        listed = await town.here("!continue")
        await town.lines(THERE)
        other = Message(
            role="user",
            content="hi",
            id="y.0",
            turn="y",
            timestamp=EPOCH,
            sender=speaks,
            scope=f"room:{THERE}",
        )
        await town.one.built.memory.append_message(str(THERE), other)
        joined = await town.here("!continue 1")
        unknown = await town.here("!continue 7")
        wrong = await town.here("!continue herons")
    assert "Only my owner" in guest
    assert "secret" not in listed
    assert "Others have taken part" in joined
    assert "no conversation 7" in unknown
    assert "Nothing was done" in wrong


async def test_the_number_is_that_of_the_list_that_was_shown(tmp_path):
    """What is said elsewhere meanwhile moves nothing; what was reset meanwhile no longer exists."""
    async with two(tmp_path, Mind()) as town:
        await town.there("the herons")
        await town.here("hello")
        await town.here("!continue")
        town.mail.groups = {"second"}
        town.mail.say(OWNER_MAIL, "newer words", conversation="second")
        await town.mail.answers(1, conversation="second")
        await town.there("!new")
        gone = await town.here("!continue 1")
    assert "no longer exists" in gone


async def test_while_it_is_being_consolidated(tmp_path):
    """Taken over while a model summarises it: each message once, and the summary is made all the same."""

    class Slow(StreamingModel):
        def __init__(self) -> None:
            self.begun, self.go = anyio.Event(), anyio.Event()

        async def answer(self, messages, tools):
            self.begun.set()
            await self.go.wait()
            yield "They spoke of birds."

    slow, words = Slow(), ("alpha", "beta", "gamma")
    async with two(tmp_path, Mind()) as town:
        for word in words:
            await town.there(word)
        await town.here("hello")
        await town.here("!continue")
        await town.lines(THERE)
        memory, results = town.one.built.memory, []
        manager = MemoryManager(memory, llm=slow, consolidation_threshold=2, keep_recent_ratio=0.5)
        async with anyio.create_task_group() as tasks:

            async def consolidate() -> None:
                results.append(await manager.consolidate_if_due(str(THERE)))

            tasks.start_soon(consolidate)
            await slow.begun.wait()
            await town.here("!continue 1")
            slow.go.set()
        before = (await town.lines(HERE))[-1].content
        cursor = await memory.load_consolidated_cursor(str(THERE))
        await town.here("!continue")
        await town.here("!continue 1")
        after = (await town.lines(HERE))[-1].content
    assert all(before.count(word) == 1 for word in words)
    assert "birds" not in before
    assert (results[0].segments, cursor > 0) == (1, True)
    assert "birds" in after
    assert ("alpha" in after, after.count("gamma")) == (False, 1)


async def test_what_was_forgotten_since_it_was_listed(tmp_path):
    """Nothing of it is taken over, and the number means no other conversation."""
    async with two(tmp_path, Mind()) as town:
        await town.there("the herons")
        await town.here("hello")
        await town.here("!continue")
    root = open_home(tmp_path)
    layout, place = Layout(root.root, root.root / "workspace"), root.database
    with open_histories(layout, place) as kept:
        kept.history(THERE).remove()
    async with two(tmp_path, Mind(), (town.one.server, town.mail)) as town:
        gone = await town.here("!continue 1")
        listed = await town.here("!continue")
        lines = await town.lines(HERE)
    assert "no longer exists" in gone
    assert "no other conversation" in listed
    assert not any("herons" in line.content for line in lines)


async def test_who_joins_here_afterwards_is_not_shown_it(tmp_path):
    """Nothing is taken over before others, and what was taken over before they came is the owner's alone."""
    mind = Mind()
    async with two(tmp_path, mind) as town:

        async def among_others(person: str, text: str, number: int) -> str:
            before = len(town.one.server.seen(HERE.conversation))
            message = inbound(HERE, person, text, f"$later-{number}", audience=Audience.GROUP)
            channels = town.one.built.supervisor._watched.values()
            (watched,) = (each for each in channels if each.channel.name == "matrix")
            await watched.inbox.accept([message], None, [])
            answers = await town.one.server.answers(before + 1, conversation=HERE.conversation)
            return answers[-1].text

        await town.there("the herons")
        await town.here("hello")
        await town.here("!continue")
        refused = await among_others(ANN, "!continue 1", 1)
        await town.here("!continue 1")
        await among_others(BOB, "what is new?", 2)
        before_others = mind.shown[-1]
        undone = await among_others(BOB, "!undo", 3)
        await among_others(ANN, "!export", 4)
        await town.here("go on")
    assert "Only my owner" in refused
    assert "herons" not in before_others
    assert "herons" not in undone
    assert "herons" in mind.shown[-1]


async def test_done_again_after_a_crash_it_is_there_once(tmp_path, monkeypatch):
    """The lines are committed with the answer."""
    complete, failures = TurnCommit.complete, [1]

    async def failing(self: TurnCommit, turn: Any, *given: Any, **named: Any) -> Any:
        if failures and turn.head.message.text == "!continue 1":
            failures.pop()
            raise StoreUnavailable("lost")
        return await complete(self, turn, *given, **named)

    monkeypatch.setattr(TurnCommit, "complete", failing)
    async with two(tmp_path, Mind()) as town:
        await town.there("the herons")
        await town.here("hello")
        await town.here("!continue")
        await town.here("!continue 1")
        lines = await town.lines(HERE)
    assert failures == []
    assert sum("Taken over" in each.content for each in lines) == 1


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("where are they?", "where are they?"),
        ("<mail>\nSubject: Herons\n\nDear bot\n</mail>", "Herons"),
        ("The message that this one answers:\n<quoted>\nothers' words\n</quoted>\n\nmine", "mine"),
        ("", "(no words)"),
        (transcript_line("Voice message.ogg", text="feed the axolotl", seconds=2), "feed the axolotl"),
        ("x" * 100, "x" * 59 + "…"),
    ],
)
def test_titles(content: str, title: str) -> None:
    """The person's own first words, not what was quoted with them."""
    assert title_of(words_for_people(content)) == title


async def test_from_a_real_mail_to_a_real_room(
    synapse: Any, fresh_credentials: Any, alice: Any, mail_server: Any, tmp_path: Path
) -> None:
    """Begun by mail, listed and continued on Matrix."""
    house, bot, mind = Harness(mail_server, 5, tmp_path), fresh_credentials("bot"), Mind()
    matrix = matrix_settings(synapse, bot.user_id, bot.password)
    built = await on_both(house, matrix, mind, owner=alice.user_id)

    async def told(sign: str) -> str:
        while True:
            bodies = [
                str(one.content.get("body"))
                for one in await call(alice.history, room)
                if one.sender == bot.user_id
            ]
            if found := [body for body in bodies if sign in body]:
                return found[-1]
            await anyio.sleep(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(built.run)
        try:
            with anyio.fail_after(60):
                await built.supervisor.wait(lambda: built.supervisor.status("email").state is LinkState.UP)
                await house.write("owner", "Please think about the herons of the delta.", subject="Herons")
                (mail,) = await house.mails("owner", lambda text: "answer 1" in text)
                room = await call(alice.create_room, [bot.user_id], is_direct=True)
                while bot.user_id not in await call(alice.members, room):
                    await anyio.sleep(0.1)
                await call(alice.send, room, "!continue")
                listed = await told("Your other conversations")
                await call(alice.send, room, "!continue 1")
                await told("We continue")
                await call(alice.send, room, "so, what about them?")
                await told("answer 2")
                await call(alice.send, room, "!search delta")
                found = await told("Please think about the herons of the delta.")
            assert "<mail>" in mind.shown[-1]
            assert "mail>" not in found and "Subject: Herons" in found
            assert "1. Herons (email, less than a minute ago)" in listed
            assert "herons of the delta" in mind.shown[-1]
            assert "answer 1" in text_of(mail)
        finally:
            built.stop()
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
            tasks.cancel_scope.cancel()
