"""A conversation with the daemon from another process: as sure as one in the same process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import pytest

from agent_core.messages import OutboundMessage, SessionKey
from channels.base import ChannelError, ChannelUnavailable
from channels.terminal import Answer, Preview, TerminalChannel
from gateway.operations.control.control_client import DaemonGone
from gateway.operations.control.control_server import serve_control
from gateway.operations.control.terminal_routes import RemoteTerminal
from gateway.operations.operation_context import OperationContext
from gateway.system.home import open_home
from tests.clock import EPOCH
from tests.doubles.inbox import MemoryInbox


def answer(number, text="hi", session="main"):
    return OutboundMessage(
        id=f"o{number}",
        channel="terminal",
        account="local",
        session=SessionKey("terminal", session),
        text=text,
        created_at=EPOCH,
    )


async def uncertain():
    """The store would note here that the client may have it."""


@asynccontextmanager
async def daemon(home, elsewhere=""):
    """The daemon's side: the channel runs, the socket is there."""
    terminal, inbox = TerminalChannel(), MemoryInbox()
    operations = OperationContext(None, None)

    async def standby_notice():
        return elsewhere

    built = SimpleNamespace(channels={"terminal": terminal}, standby_notice=standby_notice)
    async with serve_control(home, operations, built=built):
        async with anyio.create_task_group() as tasks:
            if not elsewhere:
                tasks.start_soon(terminal.run, inbox)
            await anyio.wait_all_tasks_blocked()
            yield terminal, inbox
            await terminal.aclose()
            tasks.cancel_scope.cancel()


@pytest.fixture
def home(tmp_path):
    return open_home(tmp_path / "h")


async def deliver(terminal, message, limit_s=10):
    """As the delivery loop would: again while nobody is there yet."""
    with anyio.fail_after(limit_s):
        while True:
            try:
                return await terminal.deliver(message, uncertain=uncertain)
            except ChannelUnavailable:
                await anyio.sleep(0.02)


async def test_what_is_said_arrives_and_the_answer_comes_back(home):
    """Text in, durably accepted; previews and the answer out, in order."""
    async with daemon(home) as (terminal, inbox), anyio.create_task_group() as tasks:
        async with RemoteTerminal(home) as link:
            said = []

            async def say():
                said.append(await link.say("hello 🦑", native_id="n1"))
                await terminal.preview(SessionKey("terminal", "main"), "h")
                while not events:
                    await anyio.sleep(0.01)
                await deliver(terminal, answer(1))

            tasks.start_soon(say)
            events = []
            async for event in link:
                events.append(event)
                if isinstance(event, Answer):
                    break
        assert said == ["n1"]
        assert [message.text for message in inbox.accepted] == ["hello 🦑"]
        assert events == [Preview(text="h"), Answer(id="o1", text="hi")]


async def test_an_answer_counts_when_the_person_has_seen_it_not_when_it_was_sent(home):
    """A client that dies with an answer at hand has not had it: the next one gets it."""
    async with daemon(home) as (terminal, _), anyio.create_task_group() as tasks:
        receipts = []

        async def keep_delivering():
            while not receipts:
                try:
                    receipts.append(await terminal.deliver(answer(1), uncertain=uncertain))
                except ChannelError:
                    await anyio.sleep(0.02)

        tasks.start_soon(keep_delivering)
        with pytest.raises(RuntimeError, match="killed"):
            async with RemoteTerminal(home) as link:
                assert (await anext(link)).id == "o1"
                raise RuntimeError("killed")
        assert receipts == []
        async with RemoteTerminal(home) as link:
            assert (await anext(link)).id == "o1"
        with anyio.fail_after(60):
            while not receipts:
                await anyio.sleep(0.01)


async def test_sessions_are_kept_apart(home):
    """Two conversations, each with its own answers."""
    async with (
        daemon(home) as (terminal, _),
        RemoteTerminal(home, "a/ö b") as one,
        RemoteTerminal(home, "b") as two,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliver, terminal, answer(1, "for a", "a/ö b"))
            tasks.start_soon(deliver, terminal, answer(2, "for b", "b"))
            assert (await anext(one)).text == "for a"
            assert (await anext(two)).text == "for b"
            tasks.cancel_scope.cancel()


async def test_a_daemon_that_ends_ends_the_conversation(home):
    """The iteration is over, and what is said afterwards is refused, not lost in silence."""
    async with anyio.create_task_group() as tasks:
        over = anyio.Event()
        async with daemon(home):
            link = await RemoteTerminal(home).__aenter__()

            async def listen():
                assert [event async for event in link] == []
                over.set()

            tasks.start_soon(listen)
            await anyio.sleep(0.05)
        with anyio.fail_after(60):
            await over.wait()
        with pytest.raises(ChannelUnavailable):
            await link.say("anybody?")
        await link.__aexit__(None, None, None)


async def test_no_daemon_is_told(home):
    """So that the chat can run by itself."""
    with pytest.raises(DaemonGone):
        async with RemoteTerminal(home):
            pass


async def test_garbage_on_the_socket_changes_nothing(home):
    """Neither bad JSON nor odd wishes end the conversation."""
    async with daemon(home) as (_, inbox), RemoteTerminal(home) as link, anyio.create_task_group() as tasks:
        for text in ("", "{", "[]", "5", '{"say": 5}', '{"ack": null}', '{"ack": "other"}', "null"):
            await link._socket.send_str(text)

        async def listen():
            async for _ in link:
                pass

        tasks.start_soon(listen)
        await link.say("still here")
        assert [message.text for message in inbox.accepted] == ["still here"]
        tasks.cancel_scope.cancel()


async def test_a_machine_that_stands_by_names_the_daemon(home):
    """The person learns where to go, not that nothing is taken here."""
    async with (
        daemon(home, "The daemon runs on two: do it there."),
        RemoteTerminal(home) as link,
        anyio.create_task_group() as tasks,
    ):

        async def listen():
            async for _ in link:
                pass

        tasks.start_soon(listen)
        with pytest.raises(ChannelUnavailable, match="The daemon runs on two"):
            await link.say("hello")
        tasks.cancel_scope.cancel()
