"""Grants: a yes in advance, scoped, that ends; in the whole gateway."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from agent_core.messages import OutboundKind
from agent_core.models import ToolResult
from agent_core.provenance import Origins, untrusted_origin
from agent_core.tools.effects import Effect
from tests.clock import EPOCH, ManualClock
from tests.command_line import squidbot
from tests.doubles.loopback import LoopbackServer
from tests.integration.gateway_world import Scenario
from tests.integration.test_answers_in_words import reply, said
from tests.integration.test_tool_approval import ANN, BOB, EVE, Writer, answers, asking, question

HOUR_S = 3600.0


class Machine(Writer):
    """Runs what it is told, and gives back what somebody else has written."""

    name, effect = "write_down", Effect.EXECUTE

    def __init__(self, origins: Origins = ()) -> None:
        super().__init__()
        self._origins = origins

    async def execute(self, **arguments: Any) -> ToolResult:
        done = await super().execute(**arguments)
        return done.model_copy(update={"origins": self._origins})


async def grant(one: Scenario, terms: str = "1h", person: str = ANN, count: int = 1) -> str:
    """Grant what is asked about; the grant's id."""
    notice, name = await question(one, f"dm-{person}", count)
    assert f"`!grant {name} 1h`" in notice.text
    one.server.say(person, f"!grant {name} {terms}".strip())
    told = await said(one, f"dm-{person}", f"`{name}`")
    found = re.search(r"as `(g[0-9a-f]{6})`", told)
    assert found is not None, told
    return found[1]


async def does(one: Scenario, what: str, count: int, *, person: str = ANN) -> str:
    """What is answered to a wish, as soon as the person has so many answers."""
    one.server.say(person, f"write {what}")
    return (await answers(one, f"dm-{person}", count))[-1]


@pytest.mark.parametrize("words", ["yes for an hour", "Yes, 1h", "ja, für eine Stunde"])
async def test_a_yes_for_an_hour_gives_it(tmp_path: Path, words: str) -> None:
    """The call is made, and the same one again without a question, until the hour is over."""
    tool, server, clock = Machine(), LoopbackServer(), ManualClock()
    async with asking(tmp_path, tool, server=server, clock=clock) as one:
        one.server.say(ANN, "write git status")
        _, name = await question(one, f"dm-{ANN}")
        one.server.say(ANN, words)
        told = await said(one, f"dm-{ANN}", f"`{name}` is approved")
        await answers(one, f"dm-{ANN}", 2)
        assert await does(one, "git status", 3) == "so: wrote git status"
        (granted,) = await one.built.store.grants.rows()
        assert told.endswith(f"as `{granted.id}`; `!grants revoke {granted.id}` ends that.")
    clock.advance(HOUR_S)
    async with asking(tmp_path, tool, server=server, clock=clock) as two:
        two.server.say(ANN, "write git status")
        await question(two, f"dm-{ANN}", 2)
    assert tool.written == ["git status", "git status"]


@pytest.mark.parametrize("terms", ["1h", "1h everywhere"])
async def test_it_answers_the_questions_that_are_open_and_covered(tmp_path: Path, terms: str) -> None:
    """The same call is made at once, told as granted; another one still waits, and a late no says so."""
    tool = Machine()
    async with asking(tmp_path, tool) as one:
        for number, what in enumerate(("git status", "git push", "git status"), start=1):
            one.server.say(ANN, f"write {what}")
            _, name = await question(one, f"dm-{ANN}", number)
        one.server.say(ANN, f"!grant {name} {terms}")
        await said(one, f"dm-{ANN}", f"`{name}` is approved")
        assert (await answers(one, f"dm-{ANN}", 3))[1:] == ["so: wrote git status"] * 2
        (left,) = [each for each in await one.built.store.approvals.questions() if each.verdict is None]
        assert left.calls[0][0].arguments == {"what": "git push"}
        by = [each.approved_by for each in await one.built.store.receipts.newest()]
        (granted,) = await one.built.store.grants.rows()
        assert sorted(by) == [ANN, f"{ANN} (grant {granted.id})"]
        first = next(m for m in one.server.seen(f"dm-{ANN}") if m.kind is OutboundKind.NOTICE)
        await one.hand_over(reply(first, "no", ANN))
        await said(one, f"dm-{ANN}", f"`{first.text[2:9]}` was approved before.")
    assert tool.written == ["git status", "git status"]


async def test_a_grant_that_does_not_hold_there_answers_nothing(tmp_path: Path) -> None:
    """The control: another conversation's question stays open, the same call or not."""
    tool = Machine()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write git status")
        with anyio.fail_after(60):
            while not await one.built.store.approvals.questions():
                await anyio.sleep(0.02)
        one.server.say(ANN, "write git status")
        with anyio.fail_after(60):
            while len(found := await one.built.store.approvals.questions()) < 2:
                await anyio.sleep(0.02)
        own = next(each for each in found if ANN in each.people)
        one.server.say(ANN, f"!grant {own.name} 1h")
        await said(one, f"dm-{ANN}", f"`{own.name}` is approved")
        await said(one, f"dm-{ANN}", "so: wrote git status")
        (left,) = [each for each in await one.built.store.approvals.questions() if each.verdict is None]
        assert left.people == (BOB,)
    assert tool.written == ["git status"]


@pytest.mark.parametrize("words", ["yes for 2 days", "yes if it takes an hour", "yes for an hour, 2h"])
async def test_what_is_no_such_yes_neither_grants_nor_approves(tmp_path: Path, words: str) -> None:
    """The control; and a question without an offer is not approved by a yes for an hour."""
    tool = Machine()
    async with asking(tmp_path, tool) as one:
        one.server.say(ANN, "write git status")
        await question(one, f"dm-{ANN}")
        await one.asked(words, person=ANN)
        assert await one.built.store.grants.rows() == []
    assert tool.written == []


async def test_it_covers_the_same_call_for_an_hour_and_nothing_else(tmp_path: Path) -> None:
    """Over a restart, without a question; then it ends, or is asked about what is not the same."""
    tool, server, clock = Machine(), LoopbackServer(), ManualClock()
    async with asking(tmp_path, tool, server=server, clock=clock) as one:
        one.server.say(ANN, "write git status")
        granted = await grant(one)
        await answers(one, f"dm-{ANN}", 2)
        assert await does(one, "git status", 3) == "so: wrote git status"
        (receipt, first) = await one.built.store.receipts.newest()
        listed = (await one.asked("!grants", person=ANN)).text
        assert f"for `{ANN}` here, until" in listed
    clock.advance(HOUR_S / 2)
    async with asking(tmp_path, tool, server=server, clock=clock) as two:
        assert await does(two, "git status", 5) == "so: wrote git status"
        two.server.say(ANN, "write git status; rm -rf ~")
        _, name = await question(two, f"dm-{ANN}", 2)
        await two.asked(f"!reject {name}", person=ANN)
        await answers(two, f"dm-{ANN}", 7)
        clock.advance(HOUR_S / 2)
        two.server.say(ANN, "write git status")
        await question(two, f"dm-{ANN}", 3)
        over = (await two.asked("!grants", person=ANN)).text
    assert tool.written == ["git status"] * 3
    assert (receipt.approved_by, first.approved_by) == (f"{ANN} (grant {granted})", ANN)
    assert f"`{granted}`" in listed
    assert over == "There are no grants."


async def test_without_a_grant_each_call_is_asked_about(tmp_path: Path) -> None:
    """The control: a yes is for one call."""
    tool = Machine()
    async with asking(tmp_path, tool) as one:
        one.server.say(ANN, "write git status")
        await question(one, f"dm-{ANN}")
        one.server.say(ANN, "yes")
        await answers(one, f"dm-{ANN}", 2)
        one.server.say(ANN, "write git status")
        await question(one, f"dm-{ANN}", 2)
    assert tool.written == ["git status"]


async def test_a_clock_that_is_put_back_ends_it(tmp_path: Path) -> None:
    """While it runs time goes on; after a restart it is over, because time ran backwards. The control goes on."""
    tool, server = Machine(), LoopbackServer()
    late = ManualClock(EPOCH + timedelta(hours=5))
    async with asking(tmp_path, tool, server=server, clock=late) as one:
        one.server.say(ANN, "write it")
        await grant(one)
        await answers(one, f"dm-{ANN}", 2)
        late._now -= timedelta(hours=3)
        assert await does(one, "it", 3) == "so: wrote it"
        late._monotonic += HOUR_S
        one.server.say(ANN, "write it")
        await question(one, f"dm-{ANN}", 2)
        one.server.say(ANN, "no")
        await answers(one, f"dm-{ANN}", 5)
        one.server.say(ANN, "write again")
        await grant(one, count=3)
        await answers(one, f"dm-{ANN}", 7)
    early = ManualClock(EPOCH)
    async with asking(tmp_path, tool, server=server, clock=early) as two:
        two.server.say(ANN, "write again")
        await question(two, f"dm-{ANN}", 4)
    assert tool.written == ["it", "it", "again"]


@pytest.mark.parametrize("by", ["chat", "command line", "command line, stopped"])
async def test_it_is_listed_and_revoked(tmp_path: Path, by: str) -> None:
    """By the owner in chat, or from the command line, while the daemon runs and while it does not."""
    tool, server = Machine(), LoopbackServer()

    async def command(*arguments: str) -> str:
        home = tmp_path
        done = await anyio.to_thread.run_sync(partial(squidbot, home, *arguments))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async with asking(tmp_path, tool, server=server) as one:
        one.server.say(ANN, "write it")
        granted = await grant(one)
        await answers(one, f"dm-{ANN}", 2)
        if by == "chat":
            others = (await one.asked(f"!grants revoke {granted}", person=EVE)).text
            assert others == f"There is no grant `{granted}` for you to revoke."
            assert (await one.asked("!grants", person=EVE)).text == "There are no grants."
            assert (await one.asked(f"!grants revoke {granted}", person=ANN)).text == "The grant is revoked."
        elif by == "command line":
            from gateway.operations.operation_context import OperationContext

            desk = OperationContext(one.built.store, one.built.memory, questions=one.built.store.approvals)
            [row] = (await desk.call("grants_list", {}))["rows"]
            assert (row["id"], row["given_by"], row["people"]) == (granted, ANN, [ANN])
            assert (await desk.call("grants_revoke", {"grant": f"`{granted.upper()}`"}))["revoked"]
    if by == "command line, stopped":
        assert granted in await command("grants", "list")
        assert f"{granted} is revoked" in await command("grants", "revoke", granted)
        assert await command("grants", "list") == "no grants are in effect\n"
    async with asking(tmp_path, tool, server=server) as two:
        two.server.say(ANN, "write it")
        await question(two, f"dm-{ANN}", 2)
    assert tool.written == ["it"]


async def test_a_guest_grants_nothing_beyond_what_is_theirs(tmp_path: Path) -> None:
    """Not the owner's question, not everywhere; the owner's grant is for the guest's wishes alone, and there alone."""
    tool = Machine()
    async with asking(tmp_path, tool, tools=()) as one:
        await one.asked("hello", person=ANN)
        one.server.say(BOB, "write it")
        _, name = await question(one, f"dm-{ANN}")
        for person in (BOB, EVE):
            refused = (await one.asked(f"!grant {name} 1h", person=person)).text
            assert refused.startswith("Nothing waits for you under the name")
        await grant(one)
        await answers(one, f"dm-{BOB}", 1)
        one.server.say(BOB, "write it")
        with anyio.fail_after(60):
            while tool.written != ["it", "it"]:
                await anyio.sleep(0.02)
        one.server.say(EVE, "write it")  # the same words of somebody else
        await question(one, f"dm-{ANN}", 2)
    assert tool.written == ["it", "it"]


async def test_only_the_owner_grants_everywhere(tmp_path: Path) -> None:
    """What a guest may decide, the guest may grant in the guest's own conversation."""

    class Fetcher(Machine):
        effect = Effect.NETWORK_GET

        def targets(self, arguments: Mapping[str, Any]) -> list[str]:
            return [arguments["what"]]

    tool = Fetcher()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write https://example.org/a")
        notice, name = await question(one, f"dm-{BOB}")
        assert "fetching from `https://example.org`" in notice.text
        refused = (await one.asked(f"!grant {name} 1h everywhere", person=BOB)).text
        assert refused.startswith("Only my owner")
        for terms in ("2d", "0h", "for ever", "25h"):
            told = (await one.asked(f"!grant {name} {terms}", person=BOB)).text
            assert "Nothing was done" in told
        assert tool.written == []
        await grant(one, "30m", person=BOB)
        one.server.say(BOB, "write https://example.org/b")
        with anyio.fail_after(60):
            while len(tool.written) < 2:
                await anyio.sleep(0.02)
        assert "no grants" in (await one.asked("!grants", person=EVE)).text
        assert "`g" in (await one.asked("!grants", person=BOB)).text
        one.server.say(BOB, "write https://example.net/")
        await question(one, f"dm-{BOB}", 2)
    assert tool.written == ["https://example.org/a", "https://example.org/b"]


@pytest.mark.parametrize("named", [True, False])
async def test_after_a_strangers_words_only_what_was_shown_with_them(tmp_path: Path, named: bool) -> None:
    """The very call passes after sources that its question has named; where they came in later, it is asked about."""
    page = (untrusted_origin("web", "https://evil.example/"),)
    tool = Machine(page)
    async with asking(tmp_path, tool, tools=() if named else ("write_down",)) as one:
        if named:  # the page is in the prompt when the question is asked
            await does(one, "first", 1)
            one.server.say(ANN, "write it")
            await grant(one)
            await answers(one, f"dm-{ANN}", 3)
            assert await does(one, "it", 4) == "so: wrote it"
            assert tool.written == ["first", "it", "it"]
        else:
            one.server.say(ANN, "write it")
            await grant(one)
            await answers(one, f"dm-{ANN}", 2)
            one.server.say(ANN, "write it")
            notice, _ = await question(one, f"dm-{ANN}", 2)
            assert "evil.example" in notice.text
            assert tool.written == ["it"]


async def test_a_policy_that_denies_is_not_overruled(tmp_path: Path) -> None:
    """Granted under one policy, denied by the next: it is not run. The control runs."""
    for policy, written in (({}, ["it", "it"]), ({"execute": {"owner": "deny"}}, ["it"])):
        root = tmp_path / str(len(policy))
        root.mkdir(mode=0o700)
        tool, server = Machine(), LoopbackServer()
        async with asking(root, tool, server=server) as one:
            one.server.say(ANN, "write it")
            await grant(one)
            await answers(one, f"dm-{ANN}", 2)
        async with asking(root, tool, server=server, policy_table=policy) as two:
            await does(two, "it", 3)
        assert tool.written == written


async def test_for_one_job_alone(tmp_path: Path) -> None:
    """``job`` is the turn that waits; the next one is asked about."""
    tool = Machine()
    async with asking(tmp_path, tool) as one:
        one.server.say(ANN, "write it")
        await grant(one, "job")
        await answers(one, f"dm-{ANN}", 2)
        one.server.say(ANN, "write it")
        await question(one, f"dm-{ANN}", 2)
    assert tool.written == ["it"]
