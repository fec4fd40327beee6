"""
The whole gateway, killed at every named moment and at random ones, judged by an oracle over independent logs.

After each death the same home is taken up again, more people talk meanwhile, and at the end every message has
exactly one answer, in order, no tool has run twice, each history has each line once, and no fact is lost.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.routing.crash_isolation import CRASH_APOLOGY
from tests.kill.conftest import random_kills
from tests.kill.oracle import Evidence, Saying, problems
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import THOROUGH
from tests.kill.tally import chance as chance_of

LOOPBACK_KILLS, _ = random_kills()

CHANNEL = ["fetched", "accepted", "acknowledged", "sending", "uncertain", "taken"]
THINKING = ["model.asked", "model.answered", "tool.start", "tool.effect"]
WRITES = [
    "maintenance.recover",
    "maintenance.due_now",
    "inbox.accept",
    "turns.claim",
    "turns.record_step_start",
    "turns.record_step_result",
    "usage.add",
    "turns.complete",
    "outbox.sending",
    "outbox.uncertain",
    "outbox.record_send",
    "journal.delete_filed_lines",
    "memory.append_message",
    "memory.save_global_memory",
]
READS = [
    "maintenance.suspects",
    "turns.waiting_people",
    "turns.open_sessions",
    "inbox.position",
    "state.read",
    "state.read_all",
    "state.read_below",
    "approvals.questions",
    "journal.lines",
    "outbox.rows",
    "outbox.next_sends",
    "outbox.next_send_in",
    "maintenance.stats",
    "inbox.rows",
    "outbox.new_drafts",
    "inbox.list_new_quarantine",
    "maintenance.prune",
    "maintenance.last_ids",
    "jobs.jobs",
    "jobs.list_collected_alerts",
    "jobs.prune_plans",
    "usage.usage_on",
    "queue.aclose",
    "memory.load_history",
    "memory.load_global_memory",
]
MOMENTS = [
    *CHANNEL,
    *THINKING,
    "jsonl.torn",
    *(f"{name}.{when}" for name in WRITES for when in ("before", "after")),
    *(f"{name}.{when}" for name in READS if THOROUGH for when in ("before", "after")),
]
SENDING = [
    "sending",
    "outbox.sending.after",
    "outbox.uncertain.before",
    "uncertain",
    "taken",
    "outbox.record_send.before",
    "outbox.record_send.after",
]
RECOVERING = [
    "maintenance.recover.before",
    "maintenance.recover.after",
    "journal.lines.after",
    "memory.append_message.before",
    "jsonl.torn",
    "memory.append_message.after",
    "turns.open_sessions.after",
]


def talk(world: Scenario) -> None:
    """A little of everything: two people, their own rooms and a shared one, questions that follow each other."""
    world.say("ann", "effect fact")
    world.say("bob", "fact")
    world.say("ann", "effect")
    world.say("bob", "effect fact", conversation="room")
    world.say("ann", "fact", conversation="second-ann")
    world.say("ann", "", conversation="room")


def judged(world: Scenario) -> Evidence:
    """The evidence, after the oracle has found nothing wrong."""
    evidence = world.evidence()
    assert problems(evidence) == [], world.log()[-4000:]
    return evidence


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_at_any_moment_costs_nothing(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """SIGKILL at the moment, talk, SIGKILL at its third passing if it comes to that: as if nothing had happened."""
    queue = ("each", "merge")[MOMENTS.index(moment) % 2]
    world = Scenario(tmp_path, nursery, queue=queue)
    talk(world)
    assert world.live(die=moment) == -signal.SIGKILL, f"{moment} was never passed"
    talk(world)
    world.live(die=f"{moment}#3")
    world.live_until_quiet()

    assert world.deaths >= 1
    judged(world)


@pytest.mark.parametrize("policy", ["probe", "review"])
@pytest.mark.parametrize("moment", SENDING)
def test_a_death_while_sending_follows_the_rule_of_the_channel(
    moment: str, policy: str, nursery: Nursery, tmp_path: Path
) -> None:
    """A channel that can be asked doubles and loses nothing; one that cannot doubles nothing and shows what hangs."""
    world = Scenario(tmp_path, nursery, policy=policy)
    talk(world)
    assert world.live(die=moment) == -signal.SIGKILL
    world.live(die=f"{moment}#2")
    world.live_until_quiet()

    evidence = judged(world)
    if policy == "probe":
        assert evidence.parked == []
    elif moment in ("uncertain", "taken", "outbox.record_send.before"):
        assert evidence.parked, "what may have arrived must be shown to a person"


@pytest.mark.parametrize("moment", ["outbox.probing.before", "outbox.probing.after"])
def test_a_death_while_the_server_is_asked_costs_nothing(
    moment: str, nursery: Nursery, tmp_path: Path
) -> None:
    """It is asked again after the next start."""
    world = Scenario(tmp_path, nursery, policy="probe")
    talk(world)
    assert world.live(die="taken") == -signal.SIGKILL
    for _ in range(2):
        assert world.live(die=moment) == -signal.SIGKILL
    world.live_until_quiet()

    assert judged(world).parked == []


@pytest.mark.parametrize("moment", RECOVERING)
def test_a_death_while_recovering_costs_nothing(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """Killed after the commit, then twice in the middle of putting that right."""
    world = Scenario(tmp_path, nursery)
    talk(world)
    assert world.live(die="turns.complete.after") == -signal.SIGKILL
    for _ in range(2):
        assert world.live(die=moment) == -signal.SIGKILL
    world.live_until_quiet()

    assert world.deaths == 3
    judged(world)


def test_no_moment_is_forgotten(nursery: Nursery, tmp_path: Path) -> None:
    """Every call of the store and of the memory that an ordinary life makes stands in the lists above."""
    world = Scenario(tmp_path, nursery, trace=True)
    talk(world)
    world.live_until_quiet()

    passed = set((tmp_path / "trace").read_text().split())
    listed = {
        *CHANNEL,
        *THINKING,
        *(f"{name}.{when}" for name in WRITES + READS for when in ("before", "after")),
    }
    assert passed == listed


CAMPAIGN = 10
CAMPAIGNS = [
    (seed, min(CAMPAIGN, LOOPBACK_KILLS - seed * CAMPAIGN)) for seed in range(-(-LOOPBACK_KILLS // CAMPAIGN))
]


@pytest.mark.smoke
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("seed", "kills"), CAMPAIGNS)
def test_deaths_at_random_moments_cost_nothing(
    seed: int, kills: int, nursery: Nursery, tmp_path: Path
) -> None:
    """People keep talking while the gateway is killed again and again, from the first instruction on."""
    chance = chance_of(f"gateway {seed}")
    policy = ("same_key", "probe", "same_key", "review")[seed % 4]
    world = Scenario(
        tmp_path,
        nursery,
        policy=policy,
        queue=chance.choice(["each", "merge"]),
        pause_s=0.02,
    )
    lives = 0
    while world.deaths < kills:
        world.burst(chance, chance.randint(3, 12))
        ended = world.live(kill_after_s=chance.uniform(0.01, 0.35), seed=chance.random())
        assert ended in (0, -signal.SIGKILL), world.log()[-4000:]
        lives += 1
        assert lives < kills * 10, "it was never hit"
    world.live_until_quiet()

    judged(world)


STORM = 100 if THOROUGH else 12


@pytest.mark.timeout(600)
def test_a_storm_of_kills_blames_nobody(nursery: Nursery, tmp_path: Path) -> None:
    """Four questions for each kill, several in flight at each, turns that take as long as a life: no apology."""
    chance = chance_of("storm")
    world = Scenario(tmp_path, nursery, pause_s=0.2)
    while world.deaths < STORM:
        world.burst(chance, 4)
        ended = world.live(kill_after_s=chance.uniform(0.1, 0.8), seed=chance.random())
        assert ended in (0, -signal.SIGKILL), world.log()[-4000:]
    world.live_until_quiet()

    judged(world)


CONTROLS = {
    "acknowledges_first": ("control.acknowledged", "no answer to"),
    "sends_first": ("control.sent", "answered 2 times"),
    "new_keys": ("taken", "answered 2 times"),
    "forgets_steps": ("turns.complete.before", "the tool ran 2 times"),
    "forgets_history": ("turns.complete.after", "the history asks"),
    "writes_twice": ("memory.append_message.after", "history lines doubled"),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_simpler_gateway_is_found_out(control: str, nursery: Nursery, tmp_path: Path) -> None:
    """Each defect that a simpler design would have is found by the same oracle after one death."""
    moment, complaint = CONTROLS[control]
    world = Scenario(tmp_path, nursery, control=control)
    talk(world)
    assert world.live(die=moment) == -signal.SIGKILL
    world.live_until_quiet()

    assert any(complaint in problem for problem in problems(world.evidence()))


def test_a_memory_where_the_last_writer_wins_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """Without versions, conversations of one person that write at the same time wipe each other's facts."""
    world = Scenario(tmp_path, nursery, control="forgets_facts", pause_s=0.03)
    for number in range(8):
        world.say("ann", "fact", conversation=f"side-{number}")
    world.live_until_quiet()

    assert any("the memory of person:ann" in problem for problem in problems(world.evidence()))


def test_the_same_conversations_keep_all_facts_with_versions(nursery: Nursery, tmp_path: Path) -> None:
    """The counterpart: the real memory keeps what all of them write."""
    world = Scenario(tmp_path, nursery, pause_s=0.03)
    for number in range(8):
        world.say("ann", "fact", conversation=f"side-{number}")
    world.live_until_quiet()

    judged(world)


def test_the_oracle_sees_each_kind_of_wrong() -> None:
    """Made-up evidence, right in everything but one thing each."""
    lines = [
        b'{"id": "a.0", "role": "user", "content": "#1 effect fact"}',
        b'{"id": "a.1", "role": "assistant", "content": "re: #1 "}',
        b'{"id": "b.0", "role": "user", "content": "#2"}',
        b'{"id": "b.1", "role": "assistant", "content": "re: #2 "}',
    ]
    right = Evidence(
        said=[Saying(1, "x", "effect fact", "person:ann"), Saying(2, "x", "", "person:ann")],
        seen=[("x", "re: #1 "), ("x", "re: #2 ")],
        effects=[1],
        histories={"x": lines},
        memory={"person:ann": "- fact 1"},
    )
    assert problems(right) == []

    wrong = {
        "no answer to [2]": replace(right, seen=right.seen[:1]),
        "#1 answered 2 times": replace(right, seen=[right.seen[0], *right.seen]),
        "out of order": replace(right, seen=right.seen[::-1]),
        "was never said here": replace(right, seen=[*right.seen, ("x", "re: #3")]),
        "no answer to anything": replace(right, seen=[*right.seen, ("x", "Sorry")]),
        "one answer for [1, 2]": replace(right, seen=[("x", "re: #1 re: #2")]),
        "the tool ran 2 times": replace(right, effects=[1, 1]),
        "ran unasked": replace(right, effects=[1, 2]),
        "did not run for [1]": replace(right, effects=[]),
        "history asks": replace(right, histories={"x": lines[2:] + lines[:2]}),
        "history lines doubled": replace(right, histories={"x": [*lines, lines[3]]}),
        "no answer to [2] ": replace(right, histories={"x": lines[:3]}),
        "a broken line": replace(right, histories={"x": [*lines, b'{"id":']}),
        "the memory of person:ann": replace(right, memory={}),
        "never reached their file": replace(right, unfiled=1),
    }
    for complaint, evidence in wrong.items():
        assert any(complaint.strip() in problem for problem in problems(evidence)), complaint


@pytest.mark.parametrize("queue", ["each", "merge"])
def test_a_message_that_kills_is_buried_after_three_starts(
    queue: str, nursery: Nursery, tmp_path: Path
) -> None:
    """It gets one apology; what came after it in the same conversation is answered."""
    world = Scenario(tmp_path, nursery, queue=queue)
    world.say("ann", "effect")
    for _ in range(3):
        assert world.live(die="model.asked") == -signal.SIGKILL
    world.say("ann", "fact")
    world.live_until_quiet()

    world.server.refresh()
    texts = [each.text for each in world.server.seen()]
    assert len(texts) == 2
    assert texts[0].startswith(f"Sorry, I could not answer this. {CRASH_APOLOGY}")
    assert texts[1].startswith("re: #2")
