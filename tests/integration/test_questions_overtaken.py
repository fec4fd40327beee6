"""What happens meanwhile to a question that waits: settings, people, commands, and two answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.messages import Amendment, SessionKey
from agent_core.tools.effects import Effect
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import Scenario
from tests.integration.test_answers_in_words import reply, said
from tests.integration.test_edited_and_deleted import amend
from tests.integration.test_tool_approval import ANN, BOB, Writer, answers, asking, question, reaction

pytestmark = pytest.mark.integration


class Machine(Writer):
    """Runs what it is told."""

    effect = Effect.EXECUTE


async def decided_after_a_restart(
    tmp_path: Path, tool: Writer, person: str, then: dict[str, Any], *, later: Writer | None = None
) -> tuple[Scenario, str]:
    """A question is asked, the settings change, and the person says yes; what was said after that."""
    server = LoopbackServer()
    async with asking(tmp_path, tool, server=server) as one:
        one.server.say(person, "write it")
        _, name = await question(one, f"dm-{person}")
    async with asking(tmp_path, later or tool, server=server, **then) as two:
        before = len(two.server.seen(f"dm-{person}"))
        two.server.say(person, f"!approve {name}")
        with anyio.move_on_after(3):
            await two.server.answers(before + 2, conversation=f"dm-{person}")
        with anyio.fail_after(60):
            while "running" in await two.inbox():
                await anyio.sleep(0.02)
        return two, "\n".join(message.text for message in two.server.seen(f"dm-{person}")[before:])


class Other(Writer):
    """Another tool: the one that was asked about is switched off."""

    name = "something_else"


MEANWHILE: dict[str, tuple[dict[str, Any], Writer | None, bool]] = {
    # what has changed: the settings, the tool if another one, and whether the yes still runs it
    "nothing": ({}, None, True),
    "the policy denies": ({"policy_table": {"execute": {"owner": "deny", "known": "deny"}}}, None, False),
    "the tool is off": ({}, Other(), False),
    "the person is removed": ({"allow_from": {"matrix": ["@somebody:hs.test"]}}, None, False),
}


@pytest.mark.parametrize("what", MEANWHILE)
async def test_a_yes_is_for_the_settings_of_the_moment(tmp_path: Path, what: str) -> None:
    """What is not allowed any more when the yes comes is not run. The first one is the control."""
    then, later, runs = MEANWHILE[what]
    tool = Machine() if what == "the policy denies" else Writer()
    person = ANN if what == "the policy denies" else BOB
    _, told = await decided_after_a_restart(tmp_path, tool, person, then, later=later)
    assert tool.written == (["it"] if runs else [])
    assert not later or later.written == []
    if what == "the policy denies":
        assert "does not allow it" in told
    elif what == "the tool is off":
        assert "no tool 'write_down'" in told


async def test_a_question_of_somebody_who_was_removed_is_not_run_by_the_owners_yes_either(
    tmp_path: Path,
) -> None:
    """The wish is nobody's any more. The control is the same yes for somebody who is still there."""
    for allowed, written in (("@somebody:hs.test", []), (BOB, ["it"])):
        home, server, tool = tmp_path / allowed[1:4], LoopbackServer(), Writer()
        async with asking(home, tool, server=server) as one:
            one.server.say(BOB, "write it")
            _, name = await question(one, f"dm-{BOB}")
        async with asking(home, tool, server=server, allow_from={"matrix": [allowed]}) as two:
            two.server.say(ANN, f"!approve {name}")
            await said(two, f"dm-{ANN}", f"`{name}`")
            with anyio.fail_after(60):
                while {"ready", "running"} & set(await two.inbox()):
                    await anyio.sleep(0.02)
        assert tool.written == written, allowed


@pytest.mark.parametrize("command", ["!new", "!stop"])
async def test_commands_while_a_question_waits(tmp_path: Path, command: str) -> None:
    """``!stop`` ends the turn, and a yes is too late; ``!new`` leaves it, and the yes still runs it, once."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(ANN, "write it")
        _, name = await question(one, f"dm-{ANN}")
        await one.asked(command, person=ANN)
        one.server.say(ANN, f"!approve {name}")
        if command == "!new":
            await said(one, f"dm-{ANN}", "so: wrote it")
        else:
            await said(one, f"dm-{ANN}", f"`{name}` was withdrawn, because the request was stopped")
        assert {"ready", "running"}.isdisjoint(await one.inbox())
    assert tool.written == (["it"] if command == "!new" else [])


async def test_two_yeses_at_once_run_it_once(tmp_path: Path) -> None:
    """By reaction, word and command, of who asked and of the owner, all accepted in the same moment."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write it")
        notice, name = await question(one, f"dm-{BOB}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.hand_over, reaction(notice, "✅", BOB))
            one.server.say(BOB, "yes")
            one.server.say(ANN, f"!approve {name}")
            tasks.start_soon(one.hand_over, reaction(notice, "👍", BOB))
        await said(one, f"dm-{BOB}", "so: wrote it")
        with anyio.fail_after(60):
            while {"ready", "running"} & set(await one.inbox()):
                await anyio.sleep(0.02)
        assert [m.text for m in one.server.seen(f"dm-{BOB}")].count("so: wrote it") == 1
    assert tool.written == ["it"]


async def test_a_yes_and_a_no_at_once_are_one_of_them(tmp_path: Path) -> None:
    """The first counts, and who was second is told what counted."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{BOB}")
        one.server.say(BOB, "no")
        one.server.say(ANN, f"!approve {name}")
        told = (await answers(one, f"dm-{ANN}", 1))[-1]
        await said(one, f"dm-{BOB}", "so: ")
        await one.built.history.flush(SessionKey("matrix", f"dm-{BOB}"))
    assert bool(tool.written) is ("is approved" in told)


@pytest.mark.parametrize(("command", "word", "decides"), [("!did", "yes", True), ("!did", "ok", False)])
async def test_a_yes_after_a_commands_answer_decides(
    tmp_path: Path, command: str, word: str, decides: bool
) -> None:
    """A command asks nothing, so the yes is to the question; ``ok`` may take note of what it said."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(ANN, "write it")
        await question(one, f"dm-{ANN}")
        await one.asked(command, person=ANN)
        one.server.say(ANN, word)
        await said(one, f"dm-{ANN}", "so: wrote it" if decides else "Is that a yes or a no")
    assert tool.written == (["it"] if decides else [])


async def test_what_waits_for_its_person_is_not_waited_for(tmp_path: Path) -> None:
    """``!undo`` names the open question instead of telling its person to wait."""
    async with asking(tmp_path, Writer()) as one:
        one.server.say(ANN, "write it")
        _, name = await question(one, f"dm-{ANN}")
        told = await one.asked("!undo", person=ANN)
        assert "waits for your answer" in told.text and f"`{name}`" in told.text


@pytest.mark.parametrize("sign", ["yes", "no", "👍", "hm, why?"])
async def test_a_sign_to_a_question_that_an_edit_has_ended_is_told_so(tmp_path: Path, sign: str) -> None:
    """It decides nothing, and neither goes to the model nor is left without a word; other words go to the model."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        wished = one.server.say(ANN, "write it")
        notice, name = await question(one, f"dm-{ANN}")
        await amend(one, wished, "write that")
        _, new = await question(one, f"dm-{ANN}", 2)
        to_it = reaction(notice, sign, ANN) if sign == "👍" else reply(notice, sign, ANN)
        await one.hand_over(to_it)
        edited = f"`{name}` was withdrawn, because the request was edited; I do not do it. The question is `{new}` now."
        await said(one, f"dm-{ANN}", "so: hm, why?" if sign == "hm, why?" else edited)
        assert not tool.written
        one.server.say(ANN, f"!approve {new}")
        await said(one, f"dm-{ANN}", "so: wrote that")
    assert tool.written == ["that"]


@pytest.mark.parametrize("sign", ["yes", "no", "👍", "!approve"])
@pytest.mark.parametrize("end", ["deleted", "stopped"])
async def test_a_sign_to_a_question_whose_request_is_gone_is_told_so(
    tmp_path: Path, end: str, sign: str
) -> None:
    """By deletion or ``!stop``; it decides nothing. The control: a name that nobody asked about is not known."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        wished = one.server.say(ANN, "write it")
        notice, name = await question(one, f"dm-{ANN}")
        if end == "stopped":
            await one.asked("!stop", person=ANN)
        else:
            await amend(one, wished)
        if sign == "!approve":
            one.server.say(ANN, f"!approve {name}")
        else:
            await one.hand_over(reaction(notice, sign, ANN) if sign == "👍" else reply(notice, sign, ANN))
        await said(
            one, f"dm-{ANN}", f"`{name}` was withdrawn, because the request was {end}; I do not do it."
        )
        assert (await one.asked("!approve afafafa", person=ANN)).text.startswith("Nothing waits for you")
    assert tool.written == []


async def test_a_yes_after_the_bot_has_left_the_room_is_told_so(tmp_path: Path) -> None:
    """The owner says it in their own conversation; it decides nothing."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.groups.add("room")
        one.server.say(ANN, "write it", conversation="room")
        _, name = await question(one, "room")
        await one.hand_over(amendments=[Amendment(kind="leave", session=SessionKey("matrix", "room"))])
        told = (await one.asked(f"!approve {name}", person=ANN)).text
    assert told == f"`{name}` was withdrawn, because I am no longer in that conversation; I do not do it."
    assert tool.written == []
