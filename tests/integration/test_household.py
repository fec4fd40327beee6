"""A household: what a guest, an adult and a second owner may, and what they may not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_core.models import ToolResult
from agent_core.tools.effects import Effect
from gateway.routing.household import HouseholdRole
from tests.doubles.agent import StreamingModel, call
from tests.proactive_world import ANN, BOB, Harness, house

pytestmark = pytest.mark.smoke

BOB_MAIL, CID, DAN, EVE, ROOM = "bob@mail.test", "@cid:hs.test", "@dan:hs.test", "@eve:hs.test", "room"
QUIET: Any = {"heartbeat": {"enabled": False}, "checklist": None}
PEOPLE: Mapping[str, Any] = {
    "bob": {"addresses": [BOB, BOB_MAIL], "role": "owner"},
    "cid": {"addresses": [CID], "role": "guest"},
    "dan": {"addresses": [DAN], "tools": ["tell"], "persona": "Speak like a pirate.", "pool": "demo"},
}


class Uses(StreamingModel):
    """Uses the tool that it is asked to use, and keeps what it was offered."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.offered: list[list[str]] = []

    async def answer(self, messages, tools):
        self.asked.append(messages)
        self.offered.append([tool.name for tool in tools])
        last = messages[-1]
        if last.role == "tool":
            yield f"It says: {last.content[:200]}"
        elif "remember " in last.content:
            yield call("memory_write", content=f"- {last.content.rpartition('remember ')[2]}")
        elif "use " in last.content:
            yield call(last.content.rpartition("use ")[2].split()[0], what="a word")
        else:
            yield "well"


class Tell:
    name, description, effect = "tell", "Tell somebody.", Effect.SEND
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"what": {"type": "string"}}}

    def __init__(self) -> None:
        self.told = 0

    async def execute(self, **_: Any) -> ToolResult:
        self.told += 1
        return ToolResult(content="told")


def home_of(root: Path, tool: Tell, model: Uses, people: Mapping[str, Any] = PEOPLE, **more: Any) -> Any:
    return house(root, **QUIET, model=model, tools=[tool], groups=(ROOM,), more={"people": people}, **more)


async def said_to(home: Harness, person: str, count: int) -> str:
    return (await home.chat.answers(count, conversation=f"dm-{person}"))[-1].text


async def test_a_guest_has_no_tools_but_those_of_talking(tmp_path: Path) -> None:
    """Whatever it is that the model calls; neither the owner nor anybody else is asked. An adult is offered it."""
    tool, model = Tell(), Uses()
    async with home_of(tmp_path, tool, model) as home:
        await home.asked(ANN, "hello")
        assert "tell" in model.offered[-1]
        answer = await home.asked(CID, "use tell")
        offered = model.offered[-1]
        assert "tell" not in offered
        assert set(offered) <= {"memory_write", "read_attachment", "read_skill", "schedule", "search_history"}
        assert {"memory_write", "schedule", "search_history"} <= set(offered)
        assert "It says: " in answer
        assert "saved" in (await home.asked(CID, "remember tea")).lower() or "tea" in str(model.asked[-1])
        assert len(home.chat.seen(f"dm-{ANN}")) == 1
        assert tool.told == 0


async def test_in_a_room_the_strictest_of_those_who_speak_counts(tmp_path: Path) -> None:
    model = Uses()
    async with home_of(tmp_path, Tell(), model) as home:
        await home.asked(EVE, "hello", conversation=ROOM)
        assert "tell" in model.offered[-1]
        await home.asked(CID, "hello", conversation=ROOM)
        assert "tell" not in model.offered[-1]


async def test_a_list_of_tools_takes_away_and_adds_nothing(tmp_path: Path) -> None:
    """``shell`` and the files are the owner's alone, whatever an entry names."""
    model = Uses()
    people = {"dan": {"addresses": [DAN], "tools": ["tell", "shell", "write_file"]}}
    async with home_of(tmp_path, Tell(), model, people) as home:
        await home.asked(DAN, "hello")
        assert model.offered[-1] == ["tell"]


async def test_a_manner_is_for_private_conversations(tmp_path: Path) -> None:
    model = Uses()
    async with home_of(tmp_path, Tell(), model) as home:
        for person, place, pirate in ((DAN, "", True), (DAN, ROOM, False), (EVE, "", False)):
            await home.asked(person, "hello", **({"conversation": place} if place else {}))
            assert ("pirate" in model.asked[-1][0].content) is pirate


async def test_a_second_owner_is_asked_too_and_the_first_answer_counts(tmp_path: Path) -> None:
    """In private; the call is made once, and the owner is told that it was decided."""
    tool = Tell()
    async with home_of(tmp_path, tool, Uses()) as home:
        await home.asked(ANN, "hello")
        assert "asked my owner" in await home.asked(EVE, "use tell")
        question = await said_to(home, BOB, 1)
        name = question.partition("**")[2].partition("**")[0]
        assert name in await said_to(home, ANN, 2)
        assert "Asked by `@eve:hs.test`" in question
        home.chat.say(BOB, f"!approve {name}")
        assert "is approved" in await said_to(home, BOB, 2)
        assert "It says: told" in await said_to(home, EVE, 2)
        home.chat.say(ANN, f"!reject {name}")
        assert "was approved before" in await said_to(home, ANN, 3)
        assert tool.told == 1


async def test_a_second_owner_answers_for_themselves(tmp_path: Path) -> None:
    """About their own call nobody else is asked; what they do is not the owner's word to anybody."""
    tool = Tell()
    async with home_of(tmp_path, tool, Uses()) as home:
        await home.asked(ANN, "hello")
        assert "I need your approval" in await home.asked(BOB, "use tell")
        assert len(home.chat.seen(f"dm-{ANN}")) == 1
        home.chat.say(BOB, "yes")
        await home.until(lambda: tool.told == 1)


@pytest.mark.parametrize("who", [CID, DAN, EVE, BOB])
async def test_nobody_decides_what_was_not_put_to_them(tmp_path: Path, who: str) -> None:
    """The owner's own call: no guest, no adult, and no second owner, by name or by a word."""
    tool = Tell()
    async with home_of(tmp_path, tool, Uses()) as home:
        question = await home.asked(ANN, "use tell")
        name = question.partition("**")[2].partition("**")[0]
        for said in (f"!approve {name}", f"!grant {name} 1h", "yes"):
            assert "is approved" not in await home.asked(who, said)
        for said in (f"!approve {name}", f"!approve {name}"):
            assert "is approved" not in await home.asked(who, said, conversation=ROOM)
        assert tool.told == 0
        assert name not in await home.asked(who, "!approve")


async def test_a_second_owner_decides_nothing_among_others(tmp_path: Path) -> None:
    tool = Tell()
    async with home_of(tmp_path, tool, Uses()) as home:
        await home.asked(ANN, "hello")
        await home.asked(EVE, "use tell")
        name = (await said_to(home, BOB, 1)).partition("**")[2].partition("**")[0]
        assert "is approved" not in await home.asked(BOB, f"!approve {name}", conversation=ROOM)
        assert tool.told == 0
        assert "is approved" in await home.asked(BOB, f"!approve {name}")


async def test_without_the_role_the_question_goes_to_the_owner_alone(tmp_path: Path) -> None:
    """The control, and what a home without ``people`` does."""
    tool = Tell()
    async with home_of(tmp_path, tool, Uses(), {}) as home:
        await home.asked(ANN, "hello")
        await home.asked(EVE, "use tell")
        name = (await said_to(home, ANN, 2)).partition("**")[2].partition("**")[0]
        assert home.chat.seen(f"dm-{BOB}") == []
        assert "is approved" not in await home.asked(BOB, f"!approve {name}")
        assert tool.told == 0


async def test_an_unproven_message_in_a_second_owners_name_decides_nothing(tmp_path: Path) -> None:
    tool = Tell()
    async with home_of(tmp_path, tool, Uses()) as home:
        await home.asked(ANN, "hello")
        await home.asked(EVE, "use tell")
        name = (await said_to(home, BOB, 1)).partition("**")[2].partition("**")[0]
        home.chat.say(BOB, f"!approve {name}", verified=False)
        home.chat.say(BOB, "yes", verified=False)
        await home.asked(EVE, "hello")
        assert tool.told == 0


async def test_a_second_owner_has_no_command_of_the_owner(tmp_path: Path) -> None:
    """Nor the owner's memory."""
    async with home_of(tmp_path, Tell(), Uses()) as home:
        await home.asked(ANN, "remember the code is blue7x")
        for command in (
            "!allow @x:y.org",
            "!console",
            "!persona You are mean.",
            "!files",
            "!model demo",
            "!continue",
        ):
            told = await home.asked(BOB, command)
            assert "Only my owner" in told or "only my owner" in told, (command, told)
        assert "blue7x" not in await home.asked(BOB, "!memory")
        assert home.built.conversations.access.household.rules(BOB).role is HouseholdRole.OWNER


async def test_two_addresses_of_one_person_have_one_memory(tmp_path: Path) -> None:
    """And nobody else's; the control: without the link they are two."""
    for number, people in enumerate((PEOPLE, {})):
        async with home_of(tmp_path / f"{number}", Tell(), Uses(), people) as home:
            await home.asked(BOB, "remember bob likes plums")
            before = len(home.mail.seen(f"dm-{BOB_MAIL}"))
            home.mail.say(BOB_MAIL, "!memory")
            told = await home.mail.answers(before + 1, conversation=f"dm-{BOB_MAIL}")
            assert ("plums" in told[-1].text) is bool(people)
            assert "plums" in await home.asked(BOB, "!memory")
            assert "plums" not in await home.asked(CID, "!memory")


async def test_a_share_of_the_budget_is_a_persons_own(tmp_path: Path) -> None:
    """The guest's ends first, then that of the others; the second owner goes on as long as there is any."""
    budget = {"tokens_per_day": 100_000}
    async with home_of(tmp_path, Tell(), Uses(), budget=budget) as home:
        metering = home.built.handler.model.metering
        for spent, served in ((20_000, {CID, EVE, BOB}), (30_000, {EVE, BOB}), (60_000, {BOB})):
            from agent_core.messages import SessionKey
            from agent_core.models import Purpose, Usage

            day = await metering.amount_today()
            usage = Usage(prompt_tokens=spent - day.tokens, calls=1)
            await home.built.store.usage.add(SessionKey("matrix", "dm"), usage, Purpose.CHAT)
            found = set()
            for person in (CID, EVE, BOB):
                share = home.built.conversations.access.household.rules(person).share
                if await metering.refusal(Purpose.CHAT, owner=False, share=share) is None:
                    found.add(person)
            assert found == served
