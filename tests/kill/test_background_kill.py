"""
Twenty background jobs over four channels, killed at named moments and at random ones.

After each death the same home is taken up again. At the end each job has told its conversation once what came of
it, and nobody else; the history of that conversation has it once; and no effect of a job has happened twice.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_core.children.order import landlock_version
from agent_core.messages import SessionKey
from tests.doubles.loopback import FileLoopbackServer
from tests.kill.background_child import CHANNELS, Life
from tests.kill.conftest import random_kills
from tests.kill.nursery import Nursery
from tests.kill.tally import chance as chance_of

LOOPBACK_KILLS, _ = random_kills()
JOBS = 20
MAX_WRITES = 40
"""So often a command that writes every 50 ms may write while its tree is being ended, however slow all is."""
PERSON = "bob"
MOMENTS = [
    "inbox.accept.before#5",
    "inbox.accept.after#6",
    "inbox.find_by_key.after#2",
    "start.answered#3",
    "turns.claim.after#7",
    "turns.record_step_start.before#4",
    "turns.record_step_start.after#5",
    "turns.record_step_result.before#3",
    "turns.record_step_result.after#6",
    "job.asked#2",
    "job.answered#3",
    "tool.start#2",
    "tool.effect#2",
    "turns.complete.before#4",
    "turns.complete.after#4",
    "outbox.sending.after#3",
    "uncertain#4",
    "taken#5",
    "outbox.record_send.after#6",
]


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    with Nursery("tests.kill.background_child", "of background jobs") as one:
        yield one


@dataclass(frozen=True)
class Evidence:
    """
    What is left.

    Args:
        seen: What was said on each channel.
        kept: The texts in the history of the conversation on each.
        effects: The numbers of the jobs whose effect has happened.
    """

    seen: dict[str, list[str]]
    kept: dict[str, list[str]]
    effects: list[int]


class Folder:
    """A home, four servers on which everything is said already, and lives."""

    def __init__(self, path: Path, children: Nursery, *, shell: str = "", **life: Any) -> None:
        self.path, self._children, self._life, self.shell = path, children, life, shell
        open_to = {name: FileLoopbackServer(path / name) for name in CHANNELS}
        for number in range(0 if shell else JOBS):
            name = CHANNELS[number % len(CHANNELS)]
            open_to[name].say(PERSON, f"start {number}", native_id=f"$say-{number}")

    def live(self, **life: Any) -> int:
        return self._children.live(Life(folder=str(self.path), **{**self._life, **life}))

    def log(self) -> str:
        return (self.path / "log").read_text(errors="replace")[-4000:]

    def end(self) -> Evidence:
        """Live until nothing is left to do."""
        assert self.live(kill_after_s=600.0) == 0, self.log()
        seen, kept = {}, {}
        for name in CHANNELS:
            server = FileLoopbackServer(self.path / name)
            server.refresh()
            seen[name] = [one.text for one in server.seen(f"dm-{PERSON}")]
            assert len(seen[name]) == len(server.seen())
            file = SessionKey(name, f"dm-{PERSON}").file_name
            lines = (self.path / "home" / "sessions" / f"{file}.jsonl").read_text().splitlines()
            kept[name] = [str(json.loads(line).get("content")) for line in lines]
        effects = self.path / "effects"
        return Evidence(seen, kept, [int(line) for line in effects.read_text().split()])


def problems(evidence: Evidence) -> list[str]:
    """What is wrong; nothing, if all is well."""
    found = []
    for place, name in enumerate(CHANNELS):
        wanted = Counter(number for number in range(JOBS) if number % len(CHANNELS) == place)
        for where, texts in (("on", evidence.seen[name]), ("in the history of", evidence.kept[name])):
            for word in ("begun", "finished"):
                came = Counter(int(n) for text in texts for n in re.findall(rf"{word} #(\d+)", text))
                found += [
                    f"{word} #{number} came {came[number]} times {where} {name}"
                    for number in wanted | came
                    if came[number] != wanted[number]
                ]
        found += [f"{text!r} on {name}" for text in evidence.seen[name] if "Sorry" in text]
    done = Counter(evidence.effects)
    found += [
        f"the effect of #{number} has happened {times} times" for number, times in done.items() if times > 1
    ]
    return found


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_at_any_moment_costs_nothing(moment: str, children: Nursery, tmp_path: Path) -> None:
    """SIGKILL at the moment, and at the same one in the next life: as if nothing had happened."""
    folder = Folder(tmp_path, children)
    assert folder.live(die=moment) == -signal.SIGKILL, f"{moment} was never passed: {folder.log()}"
    folder.live(die=moment)
    assert problems(folder.end()) == [], folder.log()


@pytest.mark.timeout(3600)
def test_deaths_at_random_moments_cost_nothing(children: Nursery, tmp_path: Path) -> None:
    """So many lives that end at a moment that nobody has chosen."""
    chance = chance_of("background jobs")
    kills = rounds = 0
    while kills < LOOPBACK_KILLS:
        path = tmp_path / f"round-{rounds}"
        path.mkdir()
        folder = Folder(path, children)
        for life in range(6):
            code = folder.live(kill_after_s=chance.uniform(0.15, 0.8), seed=chance.randrange(1 << 30))
            kills += code == -signal.SIGKILL
            if code == 0:
                break
            assert code == -signal.SIGKILL, (life, folder.log())
        assert problems(folder.end()) == [], folder.log()
        rounds += 1


def settled(file: Path) -> str:
    """What stands in a file in the end: the tree of a command is ended a moment after the gateway."""
    last, since, writes = "", time.monotonic(), 0
    while time.monotonic() - since < 1:
        time.sleep(0.02)
        if (now := file.read_text() if file.exists() else "") != last:
            last, since, writes = now, time.monotonic(), writes + 1
            assert writes <= MAX_WRITES, "something goes on writing"
    return last


@pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no Landlock")
@pytest.mark.parametrize(
    "moment", ["turns.record_step_start.after#2", "turns.record_step_result.before#5", ""]
)
def test_a_command_dies_with_the_process_and_says_so(moment: str, children: Nursery, tmp_path: Path) -> None:
    """
    Killed before it runs, before its end is noted, or in the middle: it was begun once at the most, and its person
    is told once that the restart has ended it; nothing of it goes on.
    """
    folder = Folder(
        tmp_path, children, shell="echo x >> begun; while :; do date +%N > alive; sleep 0.05; done"
    )
    command = "echo x >> begun" if "before" in moment else folder.shell
    work = tmp_path / "home" / "workspace" / "work"
    alive = work / "alive"
    for seconds in [60.0] if moment else [8.0, 16.0, 32.0, 64.0]:
        if not alive.exists():
            life = {"shell": command, "die": moment, "kill_after_s": seconds}
            assert folder.live(**life) == -signal.SIGKILL, folder.log()
    before = settled(alive)
    assert folder.live(shell=command, kill_after_s=600.0) == 0, folder.log()
    assert (alive.read_text() if alive.exists() else "") == before
    server = FileLoopbackServer(tmp_path / "matrix")
    server.refresh()
    texts = [one.text for one in server.seen("dm-@ann:hs.test")]
    assert len([text for text in texts if "Background command" in text]) == 1, texts
    assert "restart of squidbot ended it" in texts[-1]
    begun = (work / "begun").read_text() if (work / "begun").exists() else ""
    assert begun == ("" if "step_start" in moment else "x\n")


def test_a_job_that_is_not_recognised_is_done_twice(children: Nursery, tmp_path: Path) -> None:
    """The control: without its own id a job whose start was cut off is started once more, and the oracle sees it."""
    folder = Folder(tmp_path, children, control="new_ids")
    assert folder.live(die="control.taken#3") == -signal.SIGKILL, folder.log()
    found = problems(folder.end())
    assert any(problem.startswith("finished #") and "came 2 times" in problem for problem in found), found


def test_the_oracle_sees_each_kind_of_wrong() -> None:
    """The control: made-up evidence, right in everything but one thing each."""

    def texts(name: str) -> list[str]:
        mine = [number for number in range(JOBS) if number % len(CHANNELS) == CHANNELS.index(name)]
        return [f"{word} #{number}" for number in mine for word in ("begun", "finished")]

    right = {name: texts(name) for name in CHANNELS}
    assert problems(Evidence(right, right, list(range(JOBS)))) == []
    twice = {**right, "matrix": [*right["matrix"], "finished #0"]}
    lost = {**right, "email": right["email"][1:]}
    astray = {
        **right,
        "work": [*right["work"], "finished #0"],
        "matrix": right["matrix"][:1] + right["matrix"][2:],
    }
    for seen, kept, effects, said in (
        (twice, right, [], "finished #0 came 2 times on matrix"),
        (right, twice, [], "finished #0 came 2 times in the history of matrix"),
        (lost, right, [], "begun #1 came 0 times on email"),
        (astray, right, [], "finished #0 came 1 times on work"),
        (right, right, [3, 3], "the effect of #3 has happened 2 times"),
        ({**right, "home": [*right["home"], "Sorry"]}, right, [], "'Sorry' on home"),
    ):
        assert said in problems(Evidence(seen, kept, effects))
