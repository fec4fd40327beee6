"""What a restarted turn knows: recorded steps, and the state of tools that have one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ModelAnswer, ScopeKind, ToolCall, ToolResult, Usage
from agent_core.provenance import untrusted_origin
from agent_core.tools.attachment_tools import ReadAttachmentTool, SendFileTool
from agent_core.tools.effects import Effect
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.policy import Approval, Proposal
from agent_core.tools.schedule_tool import ScheduleTool
from agent_core.tools.search_history import SearchHistoryTool
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, Pending, Turn
from gateway.turns.step_journal import Resumable, StoreStepJournal
from tests.clock import ManualClock
from tests.doubles.in_memory_storage import InMemoryMemory
from tests.file_tools_world import FileDesk
from tests.inbound import inbound
from tests.unit.gateway.turns.test_tool_questions import asking

SESSION = SessionKey("loopback", "dm-ann")
OWNER = MemoryScope(ScopeKind.OWNER)
CALL = ToolCall(id="m", name="memory_write", arguments={"content": "- tea"})
ABOUT: dict[str, Any] = {"effect": "persist", "origins": (), "approval": None}


async def loaded(store, turn, tools=()) -> StoreStepJournal:
    """The journal of a turn, with what its earlier starts have done."""
    return StoreStepJournal(store, turn, await store.turns.steps(turn), tools)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteQueue]:
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=ManualClock()) as opened:
        yield opened


async def claimed(store: SqliteQueue) -> Turn:
    said = inbound(SESSION, "ann", "remember tea")
    await store.inbox.accept("loopback", "bot", [Pending(said)], {})
    turn = await store.turns.claim(SESSION)
    assert turn is not None
    return turn


async def restarted(store: SqliteQueue) -> Turn:
    await store.maintenance.recover()
    turn = await store.turns.claim(SESSION)
    assert turn is not None
    return turn


def tool_on(memory: InMemoryMemory, shown: int) -> MemoryWriteTool:
    return MemoryWriteTool(memory, str(SESSION), scope=OWNER, shown_version=lambda: shown)


async def test_a_recorded_write_does_not_wipe_what_came_since(store: SqliteQueue) -> None:
    """The model wrote its document in view of version 0; meanwhile another conversation has made version 1."""
    memory = InMemoryMemory()
    turn = await claimed(store)
    before = tool_on(memory, shown=0)
    journal = await loaded(store, turn, [before])
    await journal.record_model_answer(0, "d0", ModelAnswer("", (CALL,), Usage()))
    await memory.save_global_memory(OWNER, "- coffee")

    turn = await restarted(store)
    after = tool_on(memory, shown=1)  # the new prompt shows what is there now
    journal = await loaded(store, turn, [after])
    answer = await journal.model_answer(0, "d0")
    assert answer is not None
    result = await after.execute(**answer[0].calls[0].arguments)

    assert result.is_error
    assert "- coffee" in result.content
    assert (await memory.load_global_memory(OWNER)).text == "- coffee"


async def test_without_the_recorded_state_it_would_be_wiped() -> None:
    """Negative control: the same call by a tool that only knows the new prompt."""
    memory = InMemoryMemory()
    await memory.save_global_memory(OWNER, "- coffee")

    await tool_on(memory, shown=1).execute(content="- tea")

    assert (await memory.load_global_memory(OWNER)).text == "- tea"


async def test_a_recorded_conflict_is_still_one(store: SqliteQueue) -> None:
    """A merge into the text of an old conflict is compared with the version of that text."""
    memory = InMemoryMemory()
    await memory.save_global_memory(OWNER, "- coffee")
    turn = await claimed(store)
    before = tool_on(memory, shown=0)
    journal = await loaded(store, turn, [before])
    await journal.record_tool_start(1, "d1", CALL, **ABOUT)
    conflict = await before.execute(content="- tea")
    await journal.record_tool_result(1, "d1", conflict)
    await memory.save_global_memory(OWNER, "- coffee\n- milk")

    turn = await restarted(store)
    after = tool_on(memory, shown=2)
    journal = await loaded(store, turn, [after])
    assert await journal.tool_result(1, "d1") == conflict
    result = await after.execute(content="- coffee\n- tea")

    assert result.is_error
    assert "- milk" in result.content


async def test_a_tool_that_only_started_is_not_run_again(store: SqliteQueue) -> None:
    """Its outcome is unknown, and the model is told so."""
    turn = await claimed(store)
    await (await loaded(store, turn)).record_tool_start(1, "d1", CALL, **ABOUT)

    journal = await loaded(store, await restarted(store))
    result = await journal.tool_result(1, "d1")

    assert result is not None
    assert result.is_error
    assert "unknown" in result.content


async def test_another_digest_is_another_step(store: SqliteQueue) -> None:
    """A record is only used for the very step that made it."""
    turn = await claimed(store)
    journal = await loaded(store, turn)
    await journal.record_tool_result(1, "d1", ToolResult(content="done"))

    journal = await loaded(store, await restarted(store))

    assert await journal.tool_result(1, "other") is None
    assert await journal.model_answer(1, "d1") is None
    assert await journal.tool_result(1, "d1") == ToolResult(content="done")


def test_the_memory_tool_is_resumable() -> None:
    """The one tool with a state of its own has the shape that the journal looks for."""
    assert isinstance(tool_on(InMemoryMemory(), shown=0), Resumable)


class LookingTool:
    """Only looks something up."""

    name = "look"
    description = "Look."
    parameters: Mapping[str, Any] = {}

    def __init__(self, *, repeatable: bool) -> None:
        self.repeatable = repeatable

    async def execute(self, **arguments: Any) -> ToolResult:
        """Find nothing."""
        return ToolResult(content="nothing")


@pytest.mark.parametrize("repeatable", [True, False])
async def test_only_a_tool_without_an_effect_runs_again(store: SqliteQueue, repeatable: bool) -> None:
    """Killed in the middle: what only reads, or goes out with the answer, runs again; all else is unknown."""
    tools = [LookingTool(repeatable=repeatable)]
    call = ToolCall(id="l", name="look", arguments={})
    turn = await claimed(store)
    await (await loaded(store, turn, tools)).record_tool_start(1, "d1", call, **ABOUT)

    journal = await loaded(store, await restarted(store), tools)
    result = await journal.tool_result(1, "d1")

    assert (result is None) is repeatable


def test_which_tools_run_again() -> None:
    """Reading and attaching change nothing outside of the turn, the memory is written on a version; jobs are new."""
    tools = (ReadAttachmentTool, SendFileTool, SearchHistoryTool, MemoryWriteTool)
    assert {tool.name for tool in tools if tool.repeatable} == {tool.name for tool in tools}
    assert not hasattr(ScheduleTool, "repeatable")


async def outcomes(store: SqliteQueue) -> list[str]:
    """What the receipts say of the calls, oldest first."""
    return [one.outcome.value for one in reversed(await store.receipts.newest())]


async def test_an_effect_leaves_a_receipt_that_outlives_its_turn(store: SqliteQueue) -> None:
    """Before it happens it is running, with its result done or failed; a call that only reads leaves none."""
    turn = await claimed(store)
    journal = await loaded(store, turn)
    assert await outcomes(store) == []
    await journal.record_tool_start(1, "d1", CALL, **ABOUT)
    assert await outcomes(store) == ["running"]
    await journal.record_tool_result(1, "d1", ToolResult(content="kept", undo="squidbot memory undo"))
    await journal.record_tool_start(3, "d3", CALL, **ABOUT)
    await journal.record_tool_result(3, "d3", ToolResult(content="disk full", is_error=True))
    await journal.record_tool_start(5, "d5", CALL, **{**ABOUT, "effect": "private_read"})
    await store.turns.complete(turn, Completion())
    assert await outcomes(store) == ["done", "failed"]
    failed, done = await store.receipts.newest()
    assert (done.arguments, done.told, done.undo) == (CALL.arguments, "kept", "squidbot memory undo")
    assert (done.asked_by, done.session, failed.told) == ("ann", SESSION, "disk full")


async def test_an_effect_that_was_cut_off_is_called_unknown(store: SqliteQueue) -> None:
    """As soon as nobody works on its turn any more; one that was made again is what came of it in the end."""
    turn = await claimed(store)
    journal = await loaded(store, turn)
    await journal.record_tool_start(1, "d1", CALL, **ABOUT)
    await journal.record_tool_start(3, "d3", CALL, **ABOUT)
    await store.maintenance.recover()  # the process died
    turn = await store.turns.claim(SESSION)
    assert turn is not None
    again = await loaded(store, turn)
    await again.record_tool_start(3, "d3", CALL, **ABOUT)
    await again.record_tool_result(3, "d3", ToolResult(content="kept"))
    await store.turns.complete(turn, Completion())
    assert await outcomes(store) == ["unknown", "done"]


async def test_one_that_a_limit_cut_off_is_unknown_too(store: SqliteQueue) -> None:
    """It may have had its effect; and who had said yes is still known after a restart."""
    turn = await claimed(store)
    journal = await loaded(store, turn)
    await journal.record_tool_start(1, "d1", CALL, **{**ABOUT, "approval": ("@ann:hs", (), "", ())})
    await store.maintenance.recover()
    turn = await store.turns.claim(SESSION)
    assert turn is not None
    steps = await store.turns.steps(turn)
    proposal = Proposal(CALL, Effect.PERSIST, (untrusted_origin("web", "https://example.org"),))
    permission = await asking().consent(turn, steps).permission(1, "d1", proposal)
    assert permission.approval == Approval("@ann:hs")
    again = await loaded(store, turn)
    await again.record_tool_start(1, "d1", CALL, **{**ABOUT, "approval": permission.approval})
    await again.record_tool_result(1, "d1", ToolResult(content="?", is_error=True, is_unknown=True))
    await store.turns.complete(turn, Completion())
    (receipt,) = await store.receipts.newest()
    assert (receipt.outcome.value, receipt.approved_by) == ("unknown", "@ann:hs")


async def test_a_changed_call_is_still_the_changed_one_after_a_restart(store: SqliteQueue) -> None:
    """What was begun counts, not what the model wanted; and of an unknown outcome the model learns which call it was."""
    turn = await claimed(store)
    begun = CALL.model_copy(update={"arguments": {"content": "- coffee"}})
    approval = Approval("me", changed=True)
    await (await loaded(store, turn)).record_tool_start(1, "d1", begun, **{**ABOUT, "approval": approval})
    turn = await restarted(store)
    steps = await store.turns.steps(turn)

    def changed(arguments: Mapping[str, Any]) -> Proposal:
        return Proposal(CALL.model_copy(update={"arguments": dict(arguments)}), Effect.PERSIST)

    proposal = Proposal(CALL, Effect.PERSIST, changed=changed)
    permission = await asking().consent(turn, steps).permission(1, "d1", proposal)
    assert permission.approval == approval
    assert permission.instead is not None
    assert permission.instead.call == begun
    told = await (await loaded(store, turn)).tool_result(1, "d1")
    assert told is not None
    assert '{"content": "- coffee"}' in told.content
    assert "outcome of this call is unknown" in told.content
    (receipt,) = await store.receipts.newest()
    assert (receipt.arguments, receipt.approved_by) == ({"content": "- coffee"}, "me, who changed it")


async def test_receipts_are_kept_for_90_days(tmp_path: Path) -> None:
    """And not a day longer."""
    clock = ManualClock()
    async with await SqliteQueue.open(tmp_path / "gateway.db", clock=clock) as store:
        turn = await claimed(store)
        await (await loaded(store, turn)).record_tool_start(1, "d1", CALL, **ABOUT)
        await store.turns.complete(turn, Completion())
        clock.advance(89 * 86_400)
        await store.maintenance.prune(older_than_s=86_400)
        assert len(await store.receipts.newest()) == 1
        clock.advance(2 * 86_400)
        await store.maintenance.prune(older_than_s=86_400)
        assert await store.receipts.newest() == []


@pytest.mark.parametrize("done", [True, False], ids=["after", "before"])
async def test_a_change_of_a_file_that_was_cut_off_is_decided_by_the_file(
    store: SqliteQueue, tmp_path: Path, *, done: bool
) -> None:
    """Killed after or before the edit had its effect: the restarted turn runs the step, and it is made once."""
    desk = FileDesk(tmp_path / "home")
    (desk.ws / "a").write_text("END")
    call = ToolCall(id="e", name="edit_file", arguments={"path": "a", "old": "END", "new": "+END"})
    turn = await claimed(store)
    desk.begin(turn.id)
    journal = await loaded(store, turn, list(desk.tools.values()))
    await journal.record_tool_start(0, "d0", ToolCall(id="r", name="read_file"), **ABOUT)
    read = await desk.ok("read_file", path="a")
    await journal.record_tool_result(0, "d0", read)
    await journal.record_tool_start(1, "d1", call, **ABOUT)
    if done:
        await desk.ok("edit_file", **call.arguments)

    desk.restart()
    desk.known.clear()
    turn = await restarted(store)
    desk.begin(turn.id)
    journal = await loaded(store, turn, list(desk.tools.values()))
    assert await journal.tool_result(0, "d0") == read
    assert await journal.tool_result(1, "d1") is None  # it may be run again
    result = await desk.ok("edit_file", **call.arguments)
    assert result.undo == "squidbot files undo 1"
    assert (desk.ws / "a").read_text() == "+END"
    assert len(desk.journaled.journal.changes()) == 1

    # The control: the same call as a further step is another change.
    await desk.ok("edit_file", **call.arguments)
    assert (desk.ws / "a").read_text() == "++END"
