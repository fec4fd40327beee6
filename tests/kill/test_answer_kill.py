"""Words and other messages while a question waits, and deaths: each settles the question once, or is a message, once."""

from __future__ import annotations

import os
import random
from pathlib import Path

import anyio
import pytest

from gateway.routing.crash_isolation import CRASH_APOLOGY, MAX_DEATHS
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.kill.scenario import Nursery, Scenario
from tests.kill.test_tool_approval_kill import PLACE, effects, names, seen

SEED = int(os.environ.get("SQUIDBOT_KILL_SEED", "1115"))
KILLS = int(os.environ.get("SQUIDBOT_KILLS", "6"))
MOMENTS = [
    "inbox.accept.before",
    "inbox.accept.after",
    "accepted",
    "approvals.questions.after",
    "approvals.newest_rows.after",
    "turns.claim.before",
    "turns.claim.after",
    "turns.steps.after",
    "turns.record_step_result.before",
    "turns.record_step_result.after",
    "model.asked",
    "model.answered",
    "turns.complete.before",
    "turns.complete.after",
    "sending",
    "uncertain",
    "taken",
    "outbox.record_send.before",
    "outbox.record_send.after",
]
EFFECT = ["turns.record_step_start.before", "turns.record_step_start.after", "tool.start", "tool.effect"]


def asked(world: Scenario) -> str:
    """A question waits; its name."""
    world.say("bob", "effect")
    world.live_until_quiet()
    (name,) = names(world)
    return name


async def outcomes(world: Scenario) -> list[str]:
    """What is known of each effect."""
    async with await SqliteQueue.open(world.folder / "home" / "gateway.db", clock=SystemClock()) as store:
        return [each.outcome.value for each in await store.receipts.newest()]


def died_at(number: int, moments: list[str]) -> list[str]:
    """One to three deaths, by the seed."""
    chance = random.Random(f"{SEED} {number} {len(moments)}")
    return [f"{chance.choice(moments)}#{chance.randint(1, 2)}" for _ in range(chance.randint(1, 3))]


def answers_in(world: Scenario, texts: list[str]) -> list[str]:
    """
    The answers, an apology named as the answer that it stands for.

    Three deaths in a row at one step are what a turn is given up for; after fewer it must be answered.
    """
    given_up = world.deaths >= MAX_DEATHS
    return [
        f"re: #{number}" if given_up and CRASH_APOLOGY in text else text
        for number, text in enumerate(texts, start=1)
    ]


@pytest.mark.parametrize("number", range(KILLS))
def test_what_is_written_instead_leaves_it_open(number: int, nursery: Nursery, tmp_path: Path) -> None:
    """Whenever the process dies: nothing is done, the message has its answer, and a late yes counts once."""
    world = Scenario(tmp_path, nursery, ask="effect")
    name = asked(world)
    world.say("bob")
    for moment in died_at(number, MOMENTS):
        world.live(die=moment)
    world.live_until_quiet()
    (answer,) = seen(world)[1:]
    assert answer == "re: #2" or (world.deaths >= MAX_DEATHS and CRASH_APOLOGY in answer)
    assert effects(world) == []
    world.server.say("bob", f"!approve {name}", conversation=PLACE, native_id="$late")
    world.live_until_quiet()
    assert sorted(seen(world)[2:]) == [f"`{name}` is approved: I use `effect`.", "re: #1"]
    assert effects(world) == ["1"]
    assert names(world) == [name]


@pytest.mark.parametrize("number", range(KILLS))
def test_a_word_is_one_yes(number: int, nursery: Nursery, tmp_path: Path) -> None:
    """Whenever the process dies: run once, answered once, told once; what is said after it changes nothing."""
    world = Scenario(tmp_path, nursery, ask="effect")
    name = asked(world)
    world.server.say("bob", "yes", conversation=PLACE, native_id="$yes")
    world.say("bob")
    for moment in died_at(number, MOMENTS + EFFECT):
        world.live(die=moment)
    world.live_until_quiet()
    # Only between the note that it starts and its effect is "never" possible, and then it is called unknown.
    told = [text for text in seen(world) if text.startswith(f"`{name}`")]
    answers = [text for text in seen(world)[1:] if text not in told]
    assert told == [f"`{name}` is approved: I use `effect`."]
    assert answers_in(world, answers) == ["re: #1", "re: #2"]
    done = (effects(world), anyio.run(outcomes, world))
    before_it_began = ([], []) if CRASH_APOLOGY in answers[0] else None
    assert done in ((["1"], ["done"]), (["1"], ["unknown"]), ([], ["unknown"]), before_it_began)


GRANTING = [
    "approvals.decide.before",
    "approvals.decide.after",
    "grants.expire.before",
    "grants.expire.after",
    "turns.complete.before",
    "turns.complete.after",
    "taken",
]


@pytest.mark.parametrize("moment", [*GRANTING, "inbox.accept.before", "inbox.accept.after"])
@pytest.mark.parametrize("words", ["!grant {} 1h", "yes for an hour"])
def test_a_grant_is_given_with_its_yes_once(
    words: str, moment: str, nursery: Nursery, tmp_path: Path
) -> None:
    """Whenever the process dies: one grant, and the next wish, which it covers, is done once, unasked."""
    world = Scenario(tmp_path, nursery, ask="effect", effect="network_get")
    name = asked(world)
    world.server.say("bob", words.format(name), conversation=PLACE, native_id="$grant")
    world.live(die=moment)
    world.live_until_quiet()
    assert names(world) == [name]
    world.say("bob", "effect")
    world.live(die=moment)
    world.live_until_quiet()
    world.server.say("bob", "!grants", conversation=PLACE, native_id="$list")
    world.live_until_quiet()
    assert seen(world)[-1].count("- `g") == 1
    assert f"- `g{name[1:]}`: fetching from `https://effect.test`" in seen(world)[-1]
    assert names(world) == [name]
    assert (effects(world).count("2"), effects(world).count("1") <= 1) == (1, True)


def test_settling_in_a_second_transaction_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """Dead in between, the yes is an answer that has decided nothing."""
    world = Scenario(tmp_path, nursery, ask="effect", control="settles_afterwards")
    name = asked(world)
    world.server.say("bob", "yes", conversation=PLACE, native_id="$yes")
    world.live(die="control.between")
    world.live_until_quiet()
    assert effects(world) == []
    world.server.say("bob", f"!approve {name}", conversation=PLACE, native_id="$late")
    world.live_until_quiet()
    assert effects(world) == ["1"]
