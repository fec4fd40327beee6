"""
Commands and deaths: whatever moment the process is killed at, each command has exactly one answer, in the
order of the commands, its effect is there once, and what was stopped stays stopped.
"""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import pytest

from agent_core.messages import SessionKey
from agent_core.storage.jsonl_memory import JsonlMemory
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState
from gateway.system.clock import SystemClock
from tests.kill.scenario import Nursery, Scenario

MOMENTS = [
    "accepted",
    "inbox.accept.before",
    "inbox.accept.after",
    "turns.claim.before",
    "turns.claim.after",
    "memory.save_consolidation.before",
    "memory.save_consolidation.after",
    "turns.complete.before",
    "turns.complete.after",
    "outbox.sending.after",
    "uncertain",
    "taken",
    "outbox.record_send.after",
    "memory.append_message.after",
]
PLACE = "dm-ann"


def command(world: Scenario, text: str) -> None:
    """Ann says something that is no numbered message."""
    world.server.say("ann", text, conversation=PLACE, native_id=f"$command-{len(world.server.said)}")


def seen(world: Scenario) -> list[str]:
    """The first words of what Ann sees, in order."""
    world.server.refresh()
    return [each.text.strip()[:12] for each in world.server.seen(PLACE)]


def states(world: Scenario) -> list[InboxState]:
    """Where the messages are, in the order in which they came."""

    async def look() -> list[InboxState]:
        path = world.folder / "home" / "gateway.db"
        async with await SqliteQueue.open(path, clock=SystemClock()) as store:
            rows = await store.inbox.rows(
                states=list(InboxState), session=SessionKey("loopback", PLACE), limit=1000
            )
            return [row.state for row in rows][::-1]

    return anyio.run(look)


def after_the_cursor(world: Scenario) -> list[str]:
    """What the next prompt would hold of Ann's conversation."""

    async def look() -> list[str]:
        memory = JsonlMemory(world.folder / "home", clock=SystemClock())
        return [m.content for m in (await memory.load_history(f"loopback/{PLACE}")).messages]

    return anyio.run(look)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_is_answered_once_and_in_order(
    moment: str, number: int, nursery: Nursery, tmp_path: Path
) -> None:
    """Killed at the first, second or third passing of a moment; commands wait for no question, nor the other
    way round, and apart from that the answers are as if nothing had happened."""
    world = Scenario(tmp_path, nursery, queue=("each", "merge")[number % 2])
    world.say("ann", "fact")
    command(world, "!new")
    world.say("ann")
    command(world, "!status")
    world.live(die=f"{moment}#{number}")
    command(world, "!memory")
    command(world, "!new")
    world.live_until_quiet()

    world.say("ann")
    world.live_until_quiet()

    told = [text for text in seen(world) if not text.startswith("re: ")]
    answers = [text for text in seen(world) if text.startswith("re: ")]
    remembered = told.pop(2)
    assert remembered in ("These are my", "I have no no")  # of what was said by then, answered or not
    assert told == ["A new conver", "I have been ", "A new conver"]
    assert answers == ["re: #1", "re: #2", "re: #3"]
    assert [text for text in after_the_cursor(world) if "#1" in text or "#2" in text] == []
    assert set(states(world)) == {InboxState.SETTLED}


@pytest.mark.parametrize("moment", [m for m in MOMENTS if "consolidation" not in m])
def test_what_is_stopped_stays_stopped(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """A question that had begun, one that waited, and a stop: killed around it, and none is ever answered."""
    world = Scenario(tmp_path, nursery)
    world.say("ann", "effect")
    assert world.live(die="model.answered") == -signal.SIGKILL
    world.say("ann")
    command(world, "!stop")
    world.live(die=moment)
    world.say("ann")
    world.live_until_quiet()

    assert seen(world) == ["Stopped: I d", "re: #3"]
    assert states(world) == [InboxState.IGNORED, InboxState.IGNORED, InboxState.SETTLED, InboxState.SETTLED]


@pytest.mark.parametrize(
    "moment", ["inbox.accept.before#2", "inbox.accept.after#2", "accepted#2", "model.answered"]
)
def test_a_stop_while_the_question_runs(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """The stop comes with the next batch, while the model thinks: an answer or a stop, never both or neither."""
    world = Scenario(tmp_path, nursery, pause_s=0.1, seed=4)
    world.say("ann", "slow")
    world.say("bob")
    world.say("bob")
    command(world, "!stop")
    world.live(die=moment)
    world.live_until_quiet()

    assert seen(world) in (["Stopped: I d"], ["re: #1", "Nothing was "])
    assert states(world)[0] is (InboxState.IGNORED if len(seen(world)) == 1 else InboxState.SETTLED)


def test_a_stop_that_is_not_noted_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """Where a stop takes nothing away in the store, the question that had begun is answered after all."""
    world = Scenario(tmp_path, nursery, control="forgets_stops")
    world.say("ann", "effect")
    assert world.live(die="model.answered") == -signal.SIGKILL
    command(world, "!stop")
    world.live_until_quiet()

    assert sorted(seen(world)) == ["Nothing was ", "re: #1"]


@pytest.mark.parametrize(("control", "moment"), [("new_keys", "taken"), ("sends_first", "control.sent")])
def test_a_command_that_is_answered_twice_is_found_out(
    control: str, moment: str, nursery: Nursery, tmp_path: Path
) -> None:
    """Two designs that would answer a command twice after a death do so before these eyes."""
    world = Scenario(tmp_path, nursery, control=control)
    command(world, "!new")
    assert world.live(die=moment) == -signal.SIGKILL
    world.live_until_quiet()

    assert seen(world) == ["A new conver", "A new conver"]


def taken_back(world: Scenario) -> list[str]:
    """The turns that Ann's conversation says are taken back."""

    async def look() -> list[str]:
        memory = JsonlMemory(world.folder / "home", clock=SystemClock())
        return [m.undoes for m in (await memory.load_history(f"loopback/{PLACE}")).messages if m.undoes]

    return anyio.run(look)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "moment", [m for m in MOMENTS if "consolidation" not in m] + ["memory.append_message.before"]
)
def test_what_is_taken_back_is_taken_back_once(
    moment: str, number: int, nursery: Nursery, tmp_path: Path
) -> None:
    """Killed around `!retry` and `!undo`: one new answer, one line in the history for each, nothing else taken back."""
    world = Scenario(tmp_path, nursery)
    world.say("ann")
    world.say("ann")
    world.live_until_quiet()
    command(world, "!retry")
    world.live(die=f"{moment}#{number}")
    world.live_until_quiet()
    command(world, "!undo")
    world.live(die=f"{moment}#{number}")
    world.live_until_quiet()

    assert seen(world) == ["re: #1", "re: #2", "re: #2", "I no longer "]
    gone = taken_back(world)
    assert (len(gone), len(set(gone))) == (2, 2)
    assert [text for text in after_the_cursor(world) if "#1" in text] != []
    assert set(states(world)) == {InboxState.SETTLED}
