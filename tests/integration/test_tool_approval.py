"""Tools that need a person's yes, through the whole gateway: asked once, run once, and only for who may say so."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import InboundMessage, OutboundKind, SessionKey
from agent_core.models import ToolResult
from agent_core.tools.effects import Effect
from gateway.system.clock import SystemClock
from tests.doubles.agent import StreamingModel, call
from tests.doubles.loopback import Delivered, LoopbackChannel, LoopbackServer
from tests.inbound import inbound
from tests.integration.gateway_world import Scenario, world

ANN, BOB, EVE = "@ann:hs.test", "@bob:hs.test", "@eve:hs.test"


class Writer:
    """A tool with an effect."""

    name, description, effect = "write_down", "Writes down.", Effect.PERSIST
    parameters: Mapping[str, Any] = {"type": "object", "properties": {"what": {"type": "string"}}}

    def __init__(self) -> None:
        self.written: list[str] = []

    async def execute(self, **arguments: Any) -> ToolResult:
        self.written.append(arguments.get("what", ""))
        return ToolResult(content=f"wrote {arguments.get('what')}")


class Guarded(Writer):
    """The same, and it says by itself that it needs a yes."""

    needs_approval = True


class Wishful(StreamingModel):
    """A model that wants to write down what it is asked after "write", and says what became of it."""

    def __init__(self) -> None:
        self.calls = 0

    async def answer(self, messages, tools):
        self.calls += 1
        last = messages[-1]
        said = last.content.rsplit("\n", 1)[-1]
        wish = re.search(r"\bwrite (.*)$", said)
        if last.role == "user" and wish is not None:
            yield call("write_down", what=wish[1])
        else:
            yield f"so: {last.content if last.role == 'tool' else said}"


@asynccontextmanager
async def asking(
    root: Path,
    tool: Writer,
    *,
    tools: Sequence[str] = ("write_down",),
    minutes: float = 30,
    server: LoopbackServer | None = None,
    model: Wishful | None = None,
    policy_table: Mapping[str, Any] | None = None,
    **more: Any,
) -> AsyncIterator[Scenario]:
    async with world(
        root,
        server=server,
        name="matrix",
        settings={
            "owner": {"aliases": [{"channel": "matrix", "address": ANN}]},
            "tools": {
                "require_approval": list(tools),
                "approval_timeout_minutes": minutes,
                "policy": policy_table or {},
            },
        },
        models={"demo": model or Wishful()},
        tools=[tool],
        **more,
    ) as one:
        yield one


async def question(one: Scenario, place: str, count: int = 1) -> tuple[Delivered, str]:
    """The newest question in a conversation, and its name."""
    with anyio.fail_after(60):
        while len(found := [m for m in one.server.seen(place) if m.kind is OutboundKind.NOTICE]) < count:
            await anyio.sleep(0.02)
    named = re.match(r"\*\*(a[0-9a-f]{6})\*\*", found[-1].text)
    assert named is not None, found[-1].text
    return found[-1], named[1]


def reaction(notice: Delivered, sign: str, person: str, *, place: str = "") -> InboundMessage:
    return inbound(
        SessionKey("matrix", place or f"dm-{person}"),
        person,
        sign,
        f"$reaction-{sign}-{person}",
        received_at=SystemClock().now(),
        kind="reaction",
        context={"outbound": notice.key},
    )


async def answers(one: Scenario, place: str, count: int) -> list[str]:
    """What was said in a conversation besides notices, as soon as there is so much of it."""
    with anyio.fail_after(60):
        while len(found := [m.text for m in one.server.seen(place) if m.kind is OutboundKind.REPLY]) < count:
            await anyio.sleep(0.02)
    return found


async def test_without_the_setting_a_tool_runs_at_once(tmp_path):
    """The control of all that follows: nothing is asked where nobody wished for it."""
    tool = Writer()
    async with asking(tmp_path, tool, tools=()) as one:
        told = await one.asked("write this", person=BOB)
    assert told.text == "so: wrote this"
    assert tool.written == ["this"]


@pytest.mark.smoke
@pytest.mark.parametrize("tool", [Writer(), Guarded()], ids=["by setting", "by itself"])
async def test_who_asked_says_yes(tmp_path, tool):
    """The question shows the call; after the yes the tool runs once, and neither more yes nor no changes it."""
    model = Wishful()
    tools = () if isinstance(tool, Guarded) else ("write_down",)
    async with asking(tmp_path, tool, tools=tools, model=model) as one:
        one.server.say(BOB, "write my name")
        asked, name = await question(one, f"dm-{BOB}")
        others = await one.asked("hello", person=EVE)  # the conversations of others go on
        assert tool.written == []
        assert model.calls == 2
        said = await one.asked(f"!approve {name}", person=BOB)
        (answer,) = [text for text in await answers(one, f"dm-{BOB}", 2) if text.startswith("so:")]
        late = await one.asked(f"!reject {name}", person=BOB)
    assert "`write_down`" in asked.text
    assert "\nwhat: my name\n" in asked.text
    assert said.text == f"`{name}` is approved: I use `write_down`."
    assert answer == "so: wrote my name"
    assert late.text == f"`{name}` was approved before. This changes nothing."
    assert others.text == "so: hello"
    assert tool.written == ["my name"]
    assert model.calls == 3


async def test_who_asked_says_no(tmp_path):
    """The tool does not run, the model is told, and the turn goes on."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write my name")
        _, name = await question(one, f"dm-{BOB}")
        said = await one.asked(f"!reject {name} not today", person=BOB)
        found = await answers(one, f"dm-{BOB}", 2)
    assert said.text == f"`{name}` is rejected: I do not use `write_down`."
    assert found[1].startswith("so: Error: The person was asked and said no (not today).")
    assert tool.written == []


async def test_a_reaction_of_who_asked_counts_and_of_nobody_else(tmp_path):
    """In a group: others' reactions and commands do nothing; who asked decides, once."""
    tool, server = Writer(), LoopbackServer()
    server.groups.add("room")
    async with asking(tmp_path, tool, server=server) as one:
        server.say(BOB, "write it", conversation="room")
        notice, name = await question(one, "room")
        await one.hand_over(reaction(notice, "✅", EVE, place="room"))
        server.say(EVE, f"!approve {name}", conversation="room")
        found = await answers(one, "room", 1)
        elsewhere = await one.asked(f"!approve {name}", person=EVE)
        not_there = await one.asked(f"!approve {name}", person=BOB)  # he asked in the room
        assert tool.written == []
        await one.hand_over(reaction(notice, "🤔", EVE, place="room"))
        await one.hand_over(reaction(notice, "🤔", BOB, place="room"))
        unclear = (await answers(one, "room", 2))[-1]
        await one.hand_over(reaction(notice, "✅", BOB, place="room"))
        found = await answers(one, "room", 4)
        await one.hand_over(reaction(notice, "❌", BOB, place="room"))
    nothing = f"Nothing waits for you under the name `{name}` now."
    assert found[0] == elsewhere.text == not_there.text == nothing
    assert unclear == "🤔 is no yes or no, so it still waits: 👍 is yes, 👎 is no."
    assert sorted(found[2:]) == [f"`{name}` is approved: I use `write_down`.", "so: wrote it"]
    assert tool.written == ["it"]


async def test_the_owner_may_decide_for_others(tmp_path):
    """The owner sees it in the list of what waits, and decides from a conversation of the owner's own."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        others = await one.asked("!approve", person=EVE)
        his = await one.asked("!approve", person=BOB)
        listed = await one.asked("!approve", person=ANN)
        status = await one.asked("!status", person=ANN)
        unknown = await one.asked("!approve d99", person=ANN)
        waiting = await one.asked("!status", person=BOB)
        mixed = await one.asked(f"!approve {name},d99", person=BOB)
        assert tool.written == [], "of a list with an item of the owner's nothing is decided"
        await one.asked(f"!approve {name}", person=ANN)
        found = await answers(one, f"dm-{BOB}", 4)
    assert others.text == "Nothing waits for your decision."
    assert listed.text == f"These wait for your decision:\n\n- `{name}`: to use `write_down`"
    assert his.text == f"{listed.text} (it)"  # what it is given are his words, and not for the owner's list
    assert f"\n{listed.text}\n\nThe oldest waits for" in status.text
    assert unknown.text == "There is nothing named `d99`. `!approve` alone lists what waits for you."
    assert waiting.text.endswith("; 1 of your messages waits here.")
    assert mixed.text == "Only my owner can do that, in a private conversation with me."
    assert found[3] == "so: wrote it"


async def test_it_waits_over_a_restart(tmp_path):
    """The question stays asked once, the model is not asked again, and the yes after the start counts."""
    tool, server, model = Writer(), LoopbackServer(), Wishful()
    async with asking(tmp_path, tool, server=server, model=model) as one:
        server.say(BOB, "write it")
        notice, _ = await question(one, f"dm-{BOB}")
    async with asking(tmp_path, tool, server=server, model=model) as two:
        await two.asked("hello", person=EVE)
        await two.hand_over(reaction(notice, "👍", BOB))
        found = await answers(two, f"dm-{BOB}", 2)
        notices = [m for m in server.seen(f"dm-{BOB}") if m.kind is OutboundKind.NOTICE]
    assert "so: wrote it" in found
    assert tool.written == ["it"]
    assert len(notices) == 1
    assert model.calls == 3


async def test_it_is_too_late_after_a_while(tmp_path):
    """Without an answer in time the person is told plainly, and the turn goes on without the tool."""
    tool = Writer()
    async with asking(tmp_path, tool, minutes=0.02) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        (answer,) = await answers(one, f"dm-{BOB}", 1)
        told = [m.text for m in one.server.seen(f"dm-{BOB}") if m.kind is OutboundKind.NOTICE]
        await one.hand_over(reaction(notice, "✅", BOB))
        (_, late) = await answers(one, f"dm-{BOB}", 2)
        after = await one.asked("hello", person=BOB)
    assert late.startswith(f"`{name}` waited too long")
    assert told[1:] == [f"Nobody answered `{name}` in time; I go on without `write_down`."]
    assert answer.startswith("so: Error: The person was asked and did not answer in time.")
    assert after.text == "so: hello"
    assert tool.written == []


async def test_stop_while_it_waits(tmp_path):
    """`!stop` ends the turn and its question; a late yes is told that, and the next message is answered."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        stopped = await one.asked("!stop", person=BOB)
        late = await one.asked(f"!approve {name}", person=BOB)
        await one.hand_over(reaction(notice, "✅", BOB))
        sign = (await answers(one, f"dm-{BOB}", 3))[2]
        after = await one.asked("hello", person=BOB)
    assert stopped.text == "Stopped: I do not answer 1 message."
    withdrawn = f"`{name}` was withdrawn, because the request was stopped; I do not do it."
    assert late.text == sign == withdrawn
    assert after.text == "so: hello"
    assert tool.written == []


async def test_two_calls_are_two_questions(tmp_path):
    """A yes is for one call: the next one of the same tool is asked about by another name."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write one")
        first, name = await question(one, f"dm-{BOB}")
        await one.hand_over(reaction(first, "✅", BOB))
        await answers(one, f"dm-{BOB}", 2)
        one.server.say(BOB, "write one")
        _, other = await question(one, f"dm-{BOB}", 2)
        again = await one.asked(f"!approve {name}", person=BOB)
        assert tool.written == ["one"]
    assert other != name
    assert "was approved before. This changes nothing." in again.text


@pytest.mark.parametrize("named", [True, False])
async def test_by_letter_the_first_line_is_enough(tmp_path, named):
    """In a letter the decision is its first line; in answer to the question it needs no name."""
    tool, server = Writer(), LoopbackServer()
    channel = LoopbackChannel(server, name="matrix", email_style=True)
    async with asking(tmp_path, tool, server=server, channels={"matrix": (channel, "each")}) as one:
        server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        text = f"!approve {name}" if named else "!approve"
        letter = reaction(notice, "", BOB).model_copy(
            update={"kind": "message", "text": f"{text}\n\nOn Tuesday I wrote:\n> {notice.text}"}
        )
        await one.hand_over(letter)
        found = await answers(one, f"dm-{BOB}", 2)
    assert "in the first line" in notice.text
    assert "so: wrote it" in found
    assert any(text.startswith(f"`{name}` is approved") for text in found)
    assert tool.written == ["it"]


async def test_where_answers_wait_for_the_owner_the_question_is_the_owners(tmp_path):
    """Nobody is shown what a model wants to do before the owner is: the owner is asked, and who asked is not."""
    tool = Writer()
    async with asking(tmp_path, tool, approval={"matrix": "strangers"}) as one:
        await one.asked("!help", person=ANN)
        one.server.say(BOB, "write my secret")
        notice, _ = await question(one, f"dm-{ANN}")
        await one.hand_over(reaction(notice, "✅", ANN))
        draft, _ = await draft_of(one)
        shown = one.server.seen(f"dm-{BOB}")
    assert "\nwhat: my secret\n" in notice.text
    assert f"Asked by `{BOB}`" in notice.text
    assert "so: wrote my secret" in draft.text
    assert shown == []
    assert tool.written == ["my secret"]


async def draft_of(one: Scenario) -> tuple[Delivered, str]:
    """The draft about which the owner is asked, and its name."""
    with anyio.fail_after(60):
        while True:
            for seen in one.server.seen(f"dm-{ANN}"):
                if named := re.match(r"\*\*(d\d+)\*\*", seen.text):
                    return seen, named[1]
            await anyio.sleep(0.02)


async def test_messages_that_come_together_behind_a_question_are_all_answered(tmp_path):
    """Accepted in one transaction, they wake their conversation once; the end of each lets the next one go."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(ANN, "write it")
        _, name = await question(one, f"dm-{ANN}")
        for text in ("!approve aaaaaaa", "!help", f"!approve {name}"):
            one.server.say(ANN, text)
        assert (await answers(one, f"dm-{ANN}", 4))[-1] == "so: wrote it"
    assert tool.written == ["it"]
