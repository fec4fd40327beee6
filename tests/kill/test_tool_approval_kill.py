"""Tools that wait for a yes, and deaths: asked once, and after one yes run once and answered once."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import anyio
import pytest

from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.kill.scenario import Nursery, Scenario

PLACE = "dm-bob"
ASKING = [
    "accepted",
    "turns.claim.after",
    "model.answered",
    "approvals.ask.before",
    "approvals.ask.after",
    "sending",
    "uncertain",
    "taken",
    "outbox.record_send.after",
]
DECIDING = [
    "accepted",
    "inbox.accept.after",
    "turns.claim.after",
    "approvals.questions.after",
    "approvals.decide.before",
    "approvals.decide.after",
    "turns.record_step_start.before",
    "turns.record_step_start.after",
    "tool.start",
    "tool.effect",
    "turns.record_step_result.before",
    "turns.record_step_result.after",
    "turns.complete.before",
    "turns.complete.after",
    "taken",
    "outbox.record_send.after",
]
BESIDE = {"turns.complete.before", "turns.complete.after", "taken", "outbox.record_send.after"}
"""Moments of the answer to `!approve`, while the tool may be anywhere."""


def seen(world: Scenario) -> list[str]:
    """What Bob sees of the bot, in order."""
    world.server.refresh()
    return [each.text.strip() for each in world.server.seen(PLACE)]


def names(world: Scenario) -> list[str]:
    """The names of the calls about which he was asked."""
    return [name for text in seen(world) for name in re.findall(r"^\*\*(a[0-9a-f]{6})\*\*", text)]


def effects(world: Scenario) -> list[str]:
    """What the tool has done."""
    path = world.folder / "effects"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("moment", ASKING)
def test_killed_while_it_is_asked(moment: str, number: int, nursery: Nursery, tmp_path: Path) -> None:
    """One question, and nothing is done before the yes, whenever the process dies."""
    world = Scenario(tmp_path, nursery, ask="effect")
    world.say("bob", "effect")
    world.live(die=f"{moment}#{number}")
    world.live_until_quiet()

    (name,) = names(world)
    assert len(seen(world)) == 1
    assert effects(world) == []
    world.server.say("bob", f"!approve {name}", conversation=PLACE, native_id="$yes")
    world.live_until_quiet()
    assert effects(world) == ["1"]
    assert seen(world)[1:].count("re: #1") == 1


@pytest.mark.parametrize("moment", DECIDING)
def test_killed_while_it_is_decided_or_done(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """After one yes the tool runs at most once, and the question is answered once; a second yes does nothing."""
    world = Scenario(tmp_path, nursery, ask="effect")
    world.say("bob", "effect")
    world.live_until_quiet()
    (name,) = names(world)
    world.server.say("bob", f"!approve {name}", conversation=PLACE, native_id="$yes")
    world.live(die=moment)
    world.server.say("bob", f"!approve {name}", conversation=PLACE, native_id="$again")
    world.live_until_quiet()

    # Only between the note that it starts and its effect is "never" possible, and the model is told so then.
    # The word on the decision goes out beside the tool, so that a death there may come at that moment, too.
    never = moment in {"turns.record_step_start.after", "tool.start"}
    assert effects(world) in ([[]] if never else [["1"], []] if moment in BESIDE else [["1"]])
    assert names(world) == [name]
    assert seen(world).count("re: #1") == 1
    assert len(seen(world)) == 4


CHANGED = [each for each in DECIDING if each.startswith(("turns.", "tool.")) and each not in BESIDE]


async def change(world: Scenario, name: str) -> None:
    """The owner's yes to other arguments, given while nothing runs."""
    async with await SqliteQueue.open(world.folder / "home" / "gateway.db", clock=SystemClock()) as store:
        changed = {"verdict": "approved", "by": "me", "owner": True, "why": "", "arguments": {"number": 7}}
        assert await store.approvals.decide(name, changed) is not None


@pytest.mark.parametrize("moment", CHANGED)
def test_killed_while_a_changed_call_is_made(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """The changed call runs at most once, and never the one that was not approved."""
    world = Scenario(tmp_path, nursery, ask="effect")
    world.say("bob", "effect")
    world.live_until_quiet()
    (name,) = names(world)
    anyio.run(change, world, name)
    assert world.live(die=moment) == -signal.SIGKILL
    world.live_until_quiet()

    never = moment in {"turns.record_step_start.after", "tool.start"}
    assert effects(world) == ([] if never else ["7"])
    assert seen(world).count("re: #1") == 1


def test_a_tool_that_does_not_wait_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """Where nobody wished to be asked, these eyes see the effect without a question."""
    world = Scenario(tmp_path, nursery)
    world.say("bob", "effect")
    world.live_until_quiet()
    assert names(world) == []
    assert effects(world) == ["1"]
