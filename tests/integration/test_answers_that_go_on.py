"""
An answer with further paragraphs: the first one decides, the others reach the model. "Yes.", a blank line and "And tell
Bob." approved the call by mail, and nobody was told anything of Bob.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from agent_core.messages import MessageNotes, OutboundKind
from agent_core.models import Message, ModelChunk, ToolDefinition
from gateway.turns.commands.worded_answers import _is_mere_notice
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.integration.gateway_world import Scenario
from tests.integration.test_answers_in_words import DAY, reply
from tests.integration.test_tool_approval import BOB, Wishful, Writer, answers, asking, question


class Quiet(Wishful):
    """Leaves alone what may be left alone and is a signature."""

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        if "NO_REPLY" in messages[-1].content and "Sent from" in messages[-1].content:
            messages = [*messages, Message(role="user", content="NO_REPLY")]
            chunks = [each async for each in await super().chat(messages, tools, stream=stream)]
            said = "".join(each for each in chunks if isinstance(each, str)).removeprefix("so: ")

            async def answer() -> AsyncIterator[ModelChunk]:
                yield said

            return answer()
        return await super().chat(messages, tools, stream=stream)


@asynccontextmanager
async def at_work(
    root: Path, tool: Writer, *, by_mail: bool, server: LoopbackServer | None = None
) -> AsyncIterator[Scenario]:
    """A world in which Bob's wish may be asked about, in a chat or by mail."""
    server = server or LoopbackServer()
    channel = LoopbackChannel(server, name="matrix", email_style=by_mail)
    async with asking(
        root,
        tool,
        server=server,
        model=Quiet(),
        channels={"matrix": (channel, "each")},
        minutes=DAY,
    ) as one:
        yield one


async def both(one: Scenario, text: str, count: int) -> tuple[str, list[str]]:
    """Have Bob asked whether to write, answer with a text, and return the question's name and so many replies."""
    one.server.say(BOB, "write it")
    notice, name = await question(one, f"dm-{BOB}")
    await one.hand_over(reply(notice, text, BOB))
    found = await answers(one, f"dm-{BOB}", count)
    await anyio.sleep(0.2)
    seen = [each.text for each in one.server.seen(f"dm-{BOB}") if each.kind is OutboundKind.REPLY]
    assert seen == found
    return name, found


@pytest.mark.parametrize("by_mail", [False, True])
async def test_what_stands_below_a_yes_is_a_message(tmp_path: Path, by_mail: bool) -> None:
    """After what was approved; the outcome stands below its answer."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=by_mail) as one:
        name, found = await both(one, "Yes.\n\nAnd tell Bob.\n\nThanks", 2)
    assert tool.written == ["it"]
    assert found == [
        "so: wrote it",
        f"so: And tell Bob.\n\n`{name}` is approved: I use `write_down`.",
    ]


@pytest.mark.parametrize("by_mail", [False, True])
async def test_a_reason_is_no_message_unless_it_is_long(tmp_path: Path, by_mail: bool) -> None:
    """What fits into the refusal is known to the turn that asked; else it is read as a message."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=by_mail) as one:
        name, found = await both(one, "No.\n\nIt costs too much.", 2)
        assert min(found) == f"`{name}` is rejected: I do not use `write_down`."
        assert "It costs too much." in max(found)
        notice, name = await question_again(one)
        wish = (
            "It costs too much, " + "and it really is too late for that today, " * 3 + "so write Ann first."
        )
        await one.hand_over(reply(notice, f"No.\n\n{wish}", BOB, number=1))
        _, again = await question(one, f"dm-{BOB}", 3)
    assert again != name  # the wish below the no has its own turn
    assert tool.written == []


async def question_again(one: Scenario) -> tuple[Any, str]:
    one.server.say(BOB, "write it")
    return await question(one, f"dm-{BOB}", 2)


@pytest.mark.parametrize(
    ("text", "by_mail"),
    [
        ("Yes\n\nThanks!\n\nKind regards", False),
        ("Yes\n\nYes please", False),
        ("Yes\n\nKind regards\n\nmfg", True),
        ("Yes\n\n> You asked\n\nThanks", True),
    ],
)
async def test_thanks_are_no_message(tmp_path: Path, text: str, by_mail: bool) -> None:
    """The control: as before, one reply says what was decided, and one is the answer."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=by_mail) as one:
        name, found = await both(one, text, 2)
    assert sorted(found) == [f"`{name}` is approved: I use `write_down`.", "so: wrote it"]


async def test_a_signature_below_a_yes_is_left_alone(tmp_path: Path) -> None:
    """The model may be silent about it; that the yes counts is said."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=True) as one:
        name, found = await both(one, "Yes\n\nSent from my phone", 2)
    assert found == ["so: wrote it", f"`{name}` is approved: I use `write_down`."]


@pytest.mark.parametrize("below", ["But not today.", "Is it safe?", "No!", "!stop", "Stop it, I meant Ann."])
async def test_what_takes_a_yes_back_is_asked_about(tmp_path: Path, below: str) -> None:
    """The control: nothing is done, and the person is told."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=False) as one:
        name, found = await both(one, f"Yes.\n\n{below}", 1)
    assert tool.written == []
    assert found[0].startswith(f"Is that a yes or a no to `{name}`")


async def test_below_a_yes_that_comes_late_it_is_a_message_too(tmp_path: Path) -> None:
    """It is told what was decided."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=True) as one:
        await both(one, "Yes", 2)
        (notice,) = (m for m in one.server.seen(f"dm-{BOB}") if m.kind is OutboundKind.NOTICE)
        await one.hand_over(reply(notice, "Yes\n\nAnd tell Bob.", BOB, number=1))
        found = await answers(one, f"dm-{BOB}", 3)
    assert found[2].startswith("so: And tell Bob.\n\n")
    assert "approved" in found[2]
    assert tool.written == ["it"]


async def test_it_is_one_message_however_often_it_is_handed_over(tmp_path: Path) -> None:
    """Decision and message are accepted in one transaction, and known again after a restart."""
    tool, server = Writer(), LoopbackServer()
    async with at_work(tmp_path, tool, by_mail=False, server=server) as one:
        server.say(BOB, "write it")
        notice, _ = await question(one, f"dm-{BOB}")
        said = reply(notice, "Yes.\n\nAnd tell Bob.", BOB)
        await one.hand_over(said)
    async with at_work(tmp_path, tool, by_mail=False, server=server) as two:
        await two.hand_over(said)
        await answers(two, f"dm-{BOB}", 2)
        await two.hand_over(said)
        assert (await two.asked("hello", person=BOB)).text == "so: hello"
    assert tool.written == ["it"]
    assert [m.kind.value for m in server.seen(f"dm-{BOB}")] == ["notice", "reply", "reply", "reply"]


@pytest.mark.parametrize(("more", "mere"), [(False, True), (True, False)])
def test_the_answer_to_it_is_the_models(more: bool, mere: bool) -> None:
    """A yes after it may be meant for that; after the mere outcome of a question it counts for the next one."""
    notes = MessageNotes(answers={"a1": "write_down"}, settled="approved", more=more)
    row: Any = SimpleNamespace(
        message=SimpleNamespace(kind=OutboundKind.REPLY, notes=notes, text="Shall I call him. Say so")
    )
    assert _is_mere_notice(row) is mere


@pytest.mark.parametrize("by_mail", [False, True])
@pytest.mark.parametrize(("below", "is_no"), [("put it into facts/", True), ("unless it is free", False)])
async def test_a_reason_may_begin_in_small_letters(
    tmp_path: Path, below: str, is_no: bool, by_mail: bool
) -> None:
    """On a phone people write so; a condition is asked about, and nothing is done in either case."""
    tool = Writer()
    async with at_work(tmp_path, tool, by_mail=by_mail) as one:
        name, found = await both(one, f"no\n\n{below}", 2 if is_no else 1)
    told = "is rejected" if is_no else "Is that a yes or a no"
    assert any(told in each and name in each for each in found)
    assert any(below in each for each in found) is is_no
    assert tool.written == []
