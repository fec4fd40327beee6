"""
Check-ins and jobs, killed between tick, run, delivery and ledger, on a chat-like and a mail-like target.

After each death the same home is taken up again. At the end every tick that ran has one line in the ledger and
one alert, said once; every reminder and every scheduled question was done once; and nothing collected for the
digest was lost or sent twice.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from agent_core.messages import SessionKey
from gateway.proactive.jobs.job_service import JobPlace, JobService
from gateway.proactive.jobs.trigger_parsing import TriggerRequest
from gateway.store.model import JobKind
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.home import open_home
from tests.clock import EPOCH
from tests.doubles.loopback import FileLoopbackServer
from tests.kill.conftest import random_kills
from tests.kill.nursery import Nursery
from tests.kill.proactive_child import FastClock, Life, settings_for
from tests.kill.tally import chance as chance_of

LOOPBACK_KILLS, _ = random_kills()
JOBS = 6
MOMENTS = [
    "inbox.accept.before",
    "inbox.accept.after",
    "turns.claim.after",
    "turns.complete.before",
    "turns.complete.after",
    "outbox.sending.after",
    "uncertain",
    "taken",
    "outbox.record_send.before",
    "outbox.record_send.after",
    "jobs.record_run.before",
    "jobs.record_run.after",
    "jobs.ledger.after",
    "jobs.was_said.after",
]
MAIL_MOMENTS = ["outbox.post.before", "outbox.post.after", "turns.complete.after", "taken"]


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    with Nursery("tests.kill.proactive_child", "of check-ins and jobs") as one:
        yield one


@dataclass
class Evidence:
    """What is left: what was said where, and what the database says of it."""

    chat: list[str]
    mails: list[str]
    ran: list[str]
    ticks: dict[str, str]
    jobs: list[str]


class Folder:
    """A home with jobs, and its lives."""

    def __init__(self, path: Path, children: Nursery, target: str) -> None:
        self.path, self._children, self._target = path, children, target
        (path / "born").touch()
        home = open_home(path / "home")
        (home.root / "workspace" / "HEARTBEAT.md").write_text("- [ ] look\n")
        anyio.run(self._plan)

    async def _plan(self) -> None:
        clock = FastClock(self.path)
        async with await SqliteQueue.open(open_home(self.path / "home").database, clock=clock) as store:
            desk = JobService(store.jobs, settings_for(self._target).agents.schedule, zone="UTC", clock=clock)
            place = JobPlace(SessionKey("matrix", "dm-bob"), "bot", "bob")
            for number in range(JOBS):
                kind = (JobKind.REMIND, JobKind.ASK)[number % 2]
                await desk.add(
                    place, TriggerRequest(in_minutes=number + 0.5), text=f"job {number}", kind=kind
                )

    def live(self, **life) -> int:
        return self._children.live(Life(folder=str(self.path), target=self._target, **life))

    def log(self) -> str:
        return (self.path / "log").read_text()[-3000:]

    def end(self) -> Evidence:
        """Live until it has checked in, on a slow machine longer, then until nothing is left to do."""
        for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
            assert self.live(kill_after_s=seconds) == -signal.SIGKILL
            if anyio.run(self._evidence).ticks:
                break
        (self.path / "home" / "workspace" / "HEARTBEAT.md").unlink()
        assert self.live(to_the_end=True) == 0, self.log()
        if self._target == "email":
            assert self.live(kill_after_s=1.0) == -signal.SIGKILL
        return anyio.run(self._evidence)

    async def _evidence(self) -> Evidence:
        servers = {name: FileLoopbackServer(self.path / name) for name in ("matrix", "email")}
        for server in servers.values():
            server.refresh()
        async with await SqliteQueue.open(
            open_home(self.path / "home").database, clock=FastClock(self.path)
        ) as store:
            entries = await store.jobs.ledger(limit=1000)
            rows = await store.inbox.rows(limit=1000)
            waiting = await store.jobs.list_collected_alerts()
        ran = [entry for entry in entries if entry.outcome != "skipped"]
        return Evidence(
            chat=[one.text for one in servers["matrix"].delivered],
            mails=[one.text for one in servers["email"].delivered] + [one.text for one in waiting],
            ran=[f"{entry.name} {entry.instant:%Y-%m-%d %H:%M:%S}" for entry in ran],
            ticks={
                f"{row.message.received_at:%Y-%m-%d %H:%M}": row.state.value
                for row in rows
                if row.message.kind == "tick"
            },
            jobs=[row.message.text for row in rows if row.message.kind == "job"],
        )


def problems(evidence: Evidence, target: str) -> list[str]:
    """What is wrong; nothing, if all is well."""
    said = Counter(text for text in evidence.chat if not text.startswith("alert"))
    wanted = Counter(f"job {n}" if n % 2 == 0 else f"answer to job {n}" for n in range(JOBS))
    found = [f"{text} was said {said[text]} times" for text in wanted | said if said[text] != wanted[text]]
    found += [f"{text} was taken twice" for text, times in Counter(evidence.jobs).items() if times != 1]
    found += [f"{run} is in the ledger twice" for run, times in Counter(evidence.ran).items() if times != 1]
    spoken = (
        evidence.chat
        if target == "matrix"
        else [line for mail in evidence.mails for line in mail.split("\n")]
    )
    alerts = Counter(line.removeprefix("alert ") for line in spoken if line.startswith("alert "))
    found += [
        f"the alert of {tick} came {alerts[tick]} times" for tick in evidence.ticks if alerts[tick] != 1
    ]
    found += [f"an alert of {tick}, when there was no tick" for tick in alerts if tick not in evidence.ticks]
    found += [f"tick {tick} is {state}" for tick, state in evidence.ticks.items() if state != "settled"]
    noted = {run.removeprefix("heartbeat ")[:16] for run in evidence.ran if run.startswith("heartbeat")}
    found += [f"tick {tick} is not in the ledger" for tick in evidence.ticks if tick not in noted]
    return found if evidence.ticks else [*found, "there was no tick at all"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_at_any_moment_costs_nothing(moment, children, tmp_path):
    """SIGKILL at the moment, and later at its second passing: as if nothing had happened."""
    folder = Folder(tmp_path, children, "matrix")
    assert folder.live(die=moment) == -signal.SIGKILL, f"{moment} was never passed: {folder.log()}"
    folder.live(die=f"{moment}#2", kill_after_s=0.8)
    assert problems(folder.end(), "matrix") == [], folder.log()


@pytest.mark.parametrize(
    "moment", [*MAIL_MOMENTS[:-1], pytest.param(MAIL_MOMENTS[-1], marks=pytest.mark.smoke)]
)
def test_a_digest_is_sent_once_whatever_dies(moment, children, tmp_path):
    """Collected alerts are in one mail or still wait, each in one place, after deaths around the sending."""
    folder = Folder(tmp_path, children, "email")
    folder.live(die=moment, kill_after_s=1.2)
    folder.live(die=f"{moment}#2", kill_after_s=0.6)
    assert problems(folder.end(), "email") == [], folder.log()


def test_deaths_at_random_moments_cost_nothing(children, tmp_path):
    """So many lives that end at a moment that nobody has chosen."""
    chance = chance_of("check-ins")
    folder = Folder(tmp_path, children, "matrix")
    for _ in range(max(4, LOOPBACK_KILLS // 3)):
        assert folder.live(kill_after_s=chance.uniform(0.05, 0.6)) == -signal.SIGKILL, folder.log()
    assert problems(folder.end(), "matrix") == [], folder.log()


def test_the_oracle_sees_each_kind_of_wrong():
    """The control: made-up evidence, right in everything but one thing each."""
    tick = f"{EPOCH + timedelta(minutes=1):%Y-%m-%d %H:%M}"
    jobs = [f"job {n}" if n % 2 == 0 else f"answer to job {n}" for n in range(JOBS)]
    taken = [f"job {n}" for n in range(JOBS)]
    right = {
        "chat": [*jobs, f"alert {tick}"],
        "mails": [],
        "ran": [f"heartbeat {tick}:00"],
        "ticks": {tick: "settled"},
        "jobs": taken,
    }
    assert problems(Evidence(**right), "matrix") == []
    for change, said in (
        ({"chat": jobs}, "came 0 times"),
        ({"chat": [*right["chat"], f"alert {tick}"]}, "came 2 times"),
        ({"chat": [*jobs[1:], f"alert {tick}"]}, "job 0 was said 0 times"),
        ({"chat": [*right["chat"], "job 0"]}, "job 0 was said 2 times"),
        ({"chat": [*right["chat"], "alert never"]}, "when there was no tick"),
        ({"ran": []}, "not in the ledger"),
        ({"ran": right["ran"] * 2}, "in the ledger twice"),
        ({"ticks": {tick: "ready"}}, "is ready"),
        ({"ticks": {}}, "no tick at all"),
        ({"jobs": [*taken, "job 0"]}, "taken twice"),
    ):
        assert any(said in problem for problem in problems(Evidence(**{**right, **change}), "matrix")), said
    mailed = {**right, "chat": jobs, "mails": [f"2 things\n\nalert {tick}"]}
    assert problems(Evidence(**mailed), "email") == []
    assert problems(Evidence(**{**mailed, "mails": []}), "email") != []
