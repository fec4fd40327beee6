"""A tool call that the owner changes before saying yes: the changed one runs, once, and the record says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_core.tools.effects import Effect
from gateway.operations.operation_arguments import RequestInvalid
from tests.doubles.loopback import LoopbackServer
from tests.integration.test_console import looking
from tests.integration.test_questions_together import three_tools
from tests.integration.test_tool_approval import ANN, BOB, Wishful, Writer, answers, asking, question
from tests.integration.test_tool_approval_operator import operations

PLACE = f"dm-{BOB}"


class Choosing(Writer):
    """A tool whose effect its arguments decide."""

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"what": {"type": "string", "maxLength": 40}},
        "required": ["what"],
    }

    def effect_of(self, arguments: Mapping[str, Any]) -> Effect:
        return Effect.EXECUTE if str(arguments["what"]).startswith("run") else Effect.PERSIST


async def test_the_changed_call_runs_and_its_record_says_who_changed_it(tmp_path: Path) -> None:
    tool = Writer()
    async with asking(tmp_path, tool) as one, looking(one) as browser:
        one.server.say(BOB, "write it")
        _, name = await question(one, PLACE)
        assert '<textarea name="argument what"' in await browser.page("waiting")
        form = {"call": name, "back": "waiting", "argument what": "that\r\n<b>there"}
        status, after = await browser.do("calls_change", **form)
        (answer,) = await answers(one, PLACE, 1)
        _, late = await browser.do("calls_decide", call=name, yes="false")
        (receipt,) = await one.built.store.receipts.newest()
        assert "who changed it" in await browser.page("effects")
    assert (status, "Approved as you changed it." in after) == (200, True)
    assert tool.written == ["that\n<b>there"]
    assert "changed its arguments" in answer
    assert answer.endswith("wrote that\n<b>there")
    assert "no tool call" in late
    assert receipt.arguments == {"what": "that\n<b>there"}
    assert receipt.approved_by == "somebody at the machine, who changed it"


async def test_what_is_not_changed_is_approved_as_it_is(tmp_path: Path) -> None:
    """The control: the form sent as it was shown is a plain yes."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, PLACE)
        await operations(one).call("calls_change", {"call": name, "arguments": {"what": "it"}})
        (answer,) = await answers(one, PLACE, 1)
        (receipt,) = await one.built.store.receipts.newest()
    assert (tool.written, answer) == (["it"], "so: wrote it")
    assert receipt.approved_by == "somebody at the machine"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("run it", "the policy of this assistant does not allow it"),
        ("x" * 41, "The arguments do not fit, so nothing was done"),
    ],
)
async def test_policy_and_schema_judge_the_changed_call(tmp_path: Path, wanted: str, said: str) -> None:
    tool = Choosing()
    table = {"execute": {"known": "deny", "untrusted": "deny", "owner": "deny"}}
    async with asking(tmp_path, tool, policy_table=table) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, PLACE)
        await operations(one).call("calls_change", {"call": name, "arguments": {"what": wanted}})
        (answer,) = await answers(one, PLACE, 1)
        receipts = await one.built.store.receipts.newest()
    assert said in answer
    assert (tool.written, receipts) == ([], [])


async def test_a_change_outlives_a_restart(tmp_path: Path) -> None:
    """Decided while nothing runs, and carried out once by the next start; the model is not asked again."""
    tool, server, model = Writer(), LoopbackServer(), Wishful()
    async with asking(tmp_path, tool, server=server, model=model) as one:
        server.say(BOB, "write it")
        _, name = await question(one, PLACE)
        verdict = {"verdict": "approved", "by": "me", "owner": True, "why": "", "arguments": {"what": "that"}}
        await one.built.store.approvals.decide(name, verdict)
    async with asking(tmp_path, tool, server=server, model=model) as two:
        (answer,) = await answers(two, PLACE, 1)
    assert tool.written == ["that"]
    assert answer.endswith("wrote that")
    assert model.calls == 2


async def test_nobody_but_the_owner_changes_a_call(tmp_path: Path) -> None:
    """A guest's yes with other arguments, which no command can give, is a yes to what was shown."""
    tool = Writer()
    async with asking(tmp_path, tool) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, PLACE)
        verdict = {"verdict": "approved", "by": BOB, "owner": False, "why": "", "arguments": {"what": "that"}}
        await one.built.store.approvals.decide(name, verdict)
        await answers(one, PLACE, 1)
    assert tool.written == ["it"]


async def test_what_cannot_be_changed_is_said(tmp_path: Path) -> None:
    """Several calls in one question, and an argument that the call does not have; nothing is decided."""
    server = LoopbackServer()
    async with three_tools(tmp_path, server) as (one, _), looking(one) as browser:
        server.say(ANN, "go")
        _, name = await question(one, f"dm-{ANN}")
        assert "calls_change" not in await browser.page("waiting")
        with pytest.raises(RequestInvalid, match="no single call"):
            await operations(one).call("calls_change", {"call": name, "arguments": {}})
        await operations(one).call("calls_decide", {"call": name, "yes": False})
        await answers(one, f"dm-{ANN}", 1)
    async with asking(tmp_path / "2", Writer()) as one:
        one.server.say(BOB, "write it")
        _, name = await question(one, PLACE)
        with pytest.raises(RequestInvalid, match="no argument who"):
            await operations(one).call("calls_change", {"call": name, "arguments": {"who": "x"}})
        (row,) = (await operations(one).call("calls_list", {}))["rows"]
    assert row["arguments"] == {"what": "it"}
