"""`owner.conversation: shared`: the owner's private conversations are one, and each answer goes where its question came from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from agent_core.messages import Amendment, Audience, InboundMessage, OutboundKind, Sender, SessionKey
from agent_core.models import Message, ToolDefinition
from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_context import OperationContext
from gateway.store.shared import SHARED
from gateway.store.states import InboxState
from tests.clock import EPOCH
from tests.doubles.loopback import LoopbackServer
from tests.integration.command_world import ANN, BOB, Mind
from tests.integration.test_continue import HERE, THERE, Two, two
from tests.integration.test_send_message import OWNER_MAIL, Writer

MAIL = f"dm-{OWNER_MAIL}"


def said(town: Two) -> tuple[list[str], list[str]]:
    """What the bot has said on Matrix and by mail."""
    chat = [each.text for each in town.one.server.seen(HERE.conversation)]
    return chat, [each.text for each in town.mail.seen(MAIL)]


async def contents(town: Two, session: SessionKey = SHARED) -> list[str]:
    return [line.content.rpartition("\n")[2] for line in await town.lines(session)]


async def take(town: Two, channel: str, number: int, **given: Any) -> None:
    """Let a channel accept a message as it is."""
    message = InboundMessage(
        **{
            "channel": channel,
            "account": "bot",
            "native_id": f"$given-{number}",
            "session": HERE,
            "sender": Sender(address=ANN, verified=True),
            "text": "",
            "received_at": EPOCH,
            **given,
        }
    )
    every = town.one.built.supervisor._watched.values()
    (inbox,) = (each.inbox for each in every if each.channel.name == channel)
    await inbox.accept([message], None)


async def test_one_history_and_each_answer_in_its_place(tmp_path):
    """What was said by mail is known on Matrix and the other way round; nothing is answered elsewhere."""
    mind = Mind()
    async with two(tmp_path, mind, conversation="shared") as town:
        await town.here("alpha here")
        await town.there("beta there")
        by_mail = mind.shown[-1]
        await town.here("gamma here")
        on_matrix = mind.shown[-1]
        assert said(town) == (["answer 1", "answer 3"], ["answer 2"])
        assert await contents(town) == [
            *("alpha here", "answer 1", "beta there", "answer 2", "gamma here", "answer 3"),
        ]
        assert await contents(town, HERE) == await contents(town, THERE) == []
    assert "alpha here" in by_mail
    assert "beta there" in on_matrix


async def test_without_the_setting_they_are_apart(tmp_path):
    """Negative control."""
    mind = Mind()
    async with two(tmp_path, mind) as town:
        await town.here("alpha here")
        await town.there("beta there")
        assert await contents(town) == []
    assert "alpha here" not in mind.shown[-1]


async def test_only_what_the_owner_says_alone_with_proof(tmp_path):
    """A guest, a group, a room that somebody has joined, and a mail that proves nothing stay outside."""
    mind = Mind()
    async with two(tmp_path, mind, conversation="shared") as town:
        await town.here("the heron is ill")
        await town.here("a guest's words", person=BOB)
        of_guest = mind.shown[-1]
        for number, (person, proven, audience) in enumerate(
            [(ANN, True, Audience.GROUP), (BOB, True, Audience.GROUP), (ANN, False, Audience.DIRECT)]
        ):
            sender = Sender(address=person, verified=proven)
            before = len(mind.shown)
            await take(town, "matrix", number, sender=sender, audience=audience, text=f"outside {number}")
            with anyio.move_on_after(2):
                while len(mind.shown) == before:
                    await anyio.sleep(0.02)
        outside = mind.shown[2:]
        await town.here("go on")
        inside = await contents(town)
        joined = await contents(town, HERE)
    assert len(outside) == 2
    assert not any("heron" in shown for shown in (of_guest, *outside))
    assert inside == ["the heron is ill", "answer 1", "go on", f"answer {len(mind.shown)}"]
    assert sum("outside" in each for each in joined) == 2


async def test_in_order_over_all_channels(tmp_path):
    """A mail waits for the answer on Matrix that was asked for before it, and two places are two turns."""
    mind = Mind()
    async with two(tmp_path, mind, conversation="shared") as town:
        town.one.server.say(ANN, "slow alpha")
        await mind.thinking.wait()
        town.mail.say(OWNER_MAIL, "beta")
        town.mail.say(OWNER_MAIL, "gamma")
        town.one.server.say(ANN, "delta")
        await anyio.sleep(0.3)
        assert len(mind.asked) == 1
        mind.gate.set()
        await town.one.server.answers(2, conversation=HERE.conversation)
        await town.mail.answers(1, conversation=MAIL)
        lines = [each for each in await contents(town) if not each.startswith("answer")]
    assert said(town) == (["answer 1", "answer 3"], ["answer 2"])
    assert lines == ["slow alpha", "beta", "gamma", "delta"]
    assert "gamma" in mind.asked[1] and "delta" not in mind.asked[1]


async def test_commands_are_about_the_one_conversation(tmp_path):
    """`!stop`, `!undo`, `!retry`, `!new`, `!export` and `!continue`, from whichever channel."""
    mind = Mind()
    async with two(tmp_path, mind, conversation="shared") as town:
        await town.here("alpha")
        undone = await town.there("!undo")
        await town.here("beta")
        again = await town.there("!retry")
        shown = mind.shown[-1]
        listed = await town.there("!continue")
        exported = await town.there("!export")
        town.one.server.say(ANN, "slow gamma")
        await mind.thinking.wait()
        while mind.asked[-1].rpartition("\n")[2] != "slow gamma":
            await anyio.sleep(0.02)
        stopped = await town.there("!stop")
        await town.there("!new")
        await town.here("delta")
        after_new = mind.shown[-1]
    assert "`alpha`" in undone
    assert again == "answer 3"
    assert "alpha" not in shown and shown.count("beta") == 1
    assert "no other conversation" in listed
    assert "Here is this conversation" in exported
    assert "I do not answer 1 message" in stopped
    assert mind.cut_off == 1
    assert "beta" not in after_new
    assert said(town)[0] == ["answer 1", "answer 2", "answer 5"]


async def test_there_and_back_nothing_is_lost(tmp_path):
    """Each setting goes on with its own conversations, and what was said under the other one is found and taken over."""
    mind = Mind()
    async with two(tmp_path, mind) as town:
        await town.here("alpha apart")
        servers = (town.one.server, town.mail)
    async with two(tmp_path, mind, servers, conversation="shared") as town:
        await town.there("beta shared")
        found = await town.here("!search apart")
    async with two(tmp_path, mind, servers) as town:
        await town.here("gamma apart")
        apart = mind.shown[-1]
        listed = await town.here("!continue")
        told = await town.here("!continue 1")
        assert "beta shared" in (await town.lines(HERE))[-1].content
    async with two(tmp_path, mind, servers, conversation="shared") as town:
        await town.here("delta shared")
        again = mind.shown[-1]
    assert "alpha apart" in found
    assert "alpha apart" in apart and "beta" not in apart
    assert "1. beta shared (all your channels" in listed
    assert "all your channels" in told
    assert "beta shared" in again and "gamma" not in again


async def test_a_channel_that_is_switched_off_holds_up_no_other(tmp_path):
    """What came by it waits where it was said, and is answered when it is on again."""
    mind = Mind()
    mind.away = True
    async with two(tmp_path, mind, conversation="shared") as town:
        servers = (town.one.server, town.mail)
        town.mail.say(OWNER_MAIL, "beta there")
        while not (await town.one.built.store.inbox.rows(session=SHARED)):
            await anyio.sleep(0.02)
    mind.away = False
    async with two(tmp_path, mind, servers, conversation="shared", without="email") as town:
        await town.here("alpha here")
        waiting = await town.one.built.store.inbox.rows(states=[InboxState.READY])
        assert [row.message.text for row in waiting] == ["beta there"]
    async with two(tmp_path, mind, servers, conversation="shared") as town:
        await town.mail.answers(1, conversation=MAIL)
        assert await contents(town) == ["alpha here", "answer 1", "beta there", "answer 2"]


async def test_a_room_that_is_left_takes_its_questions_along(tmp_path):
    """What was said there and waits is not answered; what was said elsewhere is."""
    mind = Mind()
    async with two(tmp_path, mind, conversation="shared") as town:
        town.one.server.say(ANN, "slow alpha")
        await mind.thinking.wait()
        town.mail.say(OWNER_MAIL, "beta there")
        while len(await town.one.built.store.inbox.rows(session=SHARED)) < 2:
            await anyio.sleep(0.02)
        every = town.one.built.supervisor._watched.values()
        (inbox,) = (each.inbox for each in every if each.channel.name == "matrix")
        await inbox.accept([], None, [Amendment(kind="leave", session=HERE)])
        await town.mail.answers(1, conversation=MAIL)
    assert mind.cut_off == 1
    assert said(town) == ([], ["answer 2"])


async def test_what_is_sent_to_another_channel_stands_in_it_once(tmp_path):
    """`send_message` goes to the other place, and its words become a line of the one conversation."""
    chat, mail, mind = LoopbackServer(), LoopbackServer(), Writer()
    async with two(tmp_path, mind, (chat, mail), conversation="shared") as town:  # type: ignore[arg-type]
        await town.there("hello")
        wish = json.dumps({"to": "email", "text": "the table of herons"})
        told = await town.here(f"send {wish}")
        while not any(each.kind is OutboundKind.MESSAGE for each in mail.delivered):
            await anyio.sleep(0.02)
        itself = await town.here(f"send {json.dumps({'to': 'matrix', 'text': 'storks'})}")
        lines = await contents(town)
    assert "on its way" in told
    assert "this conversation" in itself
    assert lines.count("the table of herons") == 1


async def test_reminders_and_alerts_stand_in_it(tmp_path):
    """A reminder goes to where it was wished for, a message that the daemon is told to send to its place."""
    async with two(tmp_path, Mind(), conversation="shared") as town:
        await town.there("hello")
        await town.there("!remind in 1 minute feed the heron")
        (job,) = await town.one.built.store.jobs.jobs()
        assert job.session == THERE
        built = town.one.built
        await built.proactive.notifier.notify("test", "the disk is full", remember=True)
        from gateway.proactive.jobs.scheduler import job_message
        from gateway.routing.conversations import Conversations
        from gateway.store.stores import Pending

        message = job_message(job, EPOCH, late=False)
        access = built.proactive.owner_contact.access
        assert access is not None
        session = Conversations(access, shared=True).conversation_for(message)
        await built.store.inbox.accept("email", message.account, [Pending(message, session=session)], {})
        await town.mail.answers(3, conversation=MAIL)
        lines = await contents(town)
    assert session == SHARED
    assert said(town)[1][-1] == "feed the heron"
    assert {"feed the heron", "the disk is full"} <= set(lines)


class Effects(Mind):
    """Uses the tool once where the question says so."""

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> Any:
        last = max(at for at, each in enumerate(messages) if each.role == "user")
        if any(each.role == "tool" for each in messages[last:]):

            async def done() -> Any:
                yield f"done: {messages[-1].content}"

            return done()
        return await super().chat(messages, tools, stream=stream)


class Keep:
    """A tool that needs a yes."""

    name, description, effect = "keep", "Keeps.", "persist"
    parameters: dict[str, Any] = {"type": "object", "properties": {}}  # noqa: RUF012

    def __init__(self) -> None:
        self.runs = 0

    async def execute(self, **arguments: Any) -> Any:
        from agent_core.models import ToolResult

        self.runs += 1
        return ToolResult(content="kept")


async def test_a_question_is_decided_where_it_was_asked(tmp_path):
    """A yes to something else on another channel decides nothing; the answer comes where it was wished for."""
    mind, keep = Effects(), Keep()
    mind.tool = "keep"
    settings = {"tools": {"require_approval": ["keep"]}}
    async with two(tmp_path, mind, conversation="shared", tools=[keep], more_settings=settings) as town:
        await town.there("hello")
        town.one.server.say(ANN, "use the tool")
        await town.one.server.answers(1, conversation=HERE.conversation)
        doubtful = await town.there("yes")
        runs_before = keep.runs
        town.one.server.say(ANN, "yes")
        await town.one.server.answers(3, conversation=HERE.conversation)
    assert runs_before == 0
    assert "done" not in doubtful
    assert keep.runs == 1
    assert "done: kept" in said(town)[0]
    assert "done: kept" not in said(town)[1]


@pytest.mark.parametrize("conversation", ["shared", "separate"])
async def test_a_job_that_an_operator_runs_stands_where_it_belongs(tmp_path, conversation):
    """`squidbot cron run` puts its run into the shared session; apart, into that of its place."""
    async with two(tmp_path, Mind(), conversation=conversation) as town:
        await town.there("hello")
        await town.there("!remind in 5 minutes feed the heron")
        built = town.one.built
        (job,) = await built.store.jobs.jobs()
        planned = schedule_context(built.proactive, built.conversations)
        await OperationContext(built.store, built.memory, planned=planned).call("cron_run", {"id": job.id})
        await town.mail.answers(3, conversation=MAIL)
        shared, apart = await contents(town), await contents(town, THERE)
    assert said(town)[1][-1] == "feed the heron"
    assert ("feed the heron" in shared, "feed the heron" in apart) == (
        conversation == "shared",
        conversation != "shared",
    )
