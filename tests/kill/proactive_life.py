"""A daemon that dies again and again beside its checklist, and what may be wrong with what it said."""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import anyio

from channels.heartbeat.channel import NOTHING
from gateway.store.model import LedgerEntry
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import InboxRow
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.daemon import Daemon
from tests.kill.tally import TALLY, chance

PATIENCE_S = 120.0

SAID = (
    "message.accepted",
    "message.sent",
    "heartbeat.run_skipped",
    "job.due",
    "channel=heartbeat",
    "digest.sent",
)
"""What the daemon says on its way; a death strikes up to a moment after it."""


class Life:
    """A daemon that dies again and again, and its checklist."""

    def __init__(self, home: Path, settings: dict, *, seed: int) -> None:
        self.daemon = Daemon(home, settings)
        self.chance = chance(f"check-ins on real servers {seed}")
        self.deaths = 0
        self._list = home / "workspace" / "HEARTBEAT.md"
        self._list.parent.mkdir()

    def wants(self, *items: str) -> None:
        """Let these be the open items."""
        new = self._list.with_suffix(".new")
        new.write_text("".join(f"- [ ] {item}\n" for item in items))
        new.rename(self._list)

    def dies(self) -> None:
        """Live for a moment, and die."""
        deadline = time.monotonic() + self.chance.choice([self.chance.uniform(0.1, 2), 12.0])
        told = self.daemon.home / "daemon.log"
        start = told.stat().st_size if told.exists() else 0
        mark = self.chance.choice(SAID)
        while time.monotonic() < deadline:
            with told.open("rb") as log:
                log.seek(start)
                if mark.encode() in log.read():
                    time.sleep(
                        self.chance.choice([0.0, self.chance.uniform(0, 0.05), self.chance.uniform(0, 0.5)])
                    )
                    break
            time.sleep(0.005)
        self.daemon.kill()
        assert self.daemon.ended() == -signal.SIGKILL, self.daemon.log()[-4000:]
        self.deaths += 1
        TALLY["of check-ins on real Matrix and mail"] += 1

    def at_rest(self) -> tuple[list[InboxRow], list[LedgerEntry], int]:
        """The check-ins, their ledger, and how many alerts wait for the digest; while no daemon runs."""

        async def read() -> tuple[list[InboxRow], list[LedgerEntry], int]:
            path = open_home(self.daemon.home).database
            async with await SqliteQueue.open(path, clock=SystemClock()) as store:
                rows = [row for row in await store.inbox.rows(limit=5000) if row.message.kind == "tick"]
                ledger = await store.jobs.ledger(name="heartbeat", limit=5000)
                return rows, ledger, len(await store.jobs.list_collected_alerts())

        return anyio.run(read)

    def ends(self) -> None:
        """Nothing is left to do, and what is kept of the check-ins fits together."""
        self.wants()
        daemon = self.daemon
        daemon.wait_until(lambda: daemon.asked("/readyz")[0] == 200, within_s=PATIENCE_S)
        daemon.wait_until(
            lambda: daemon.work("outbox", "pending", "sending", "uncertain") == 0, within_s=PATIENCE_S
        )
        daemon.wait_until(lambda: daemon.work("inbox", "ready", "running") == 0, within_s=PATIENCE_S)
        assert daemon.work("outbox", "unknown", "dead") == 0
        daemon.terminate()
        assert daemon.ended() == 0
        rows, ledger, _ = self.at_rest()
        assert ledger_problems([(row.message.received_at, row.state.value) for row in rows], ledger) == []


def ledger_problems(ticks: list[tuple[datetime, str]], ledger: list[LedgerEntry]) -> list[str]:
    """What is wrong between the check-ins, each with its state, and their lines; nothing if all is well."""
    # A check-in on its way may rest after failures: a server was asked while it could not answer. What
    # has nothing to do never comes into the inbox, so a line of that says nothing of a check-in there.
    lines = {
        tick: [
            one.reason or one.outcome.value
            for one in ledger
            if one.instant <= tick <= (one.until or one.instant) and not one.reason.startswith(NOTHING)
        ]
        for tick, _ in ticks
    }
    found = [
        f"{tick} is in the inbox twice" for tick, times in Counter(at for at, _ in ticks).items() if times > 1
    ]
    found += [f"{tick} has the lines {lines[tick]}" for tick, _ in ticks if len(lines[tick]) != 1]
    found += [f"{tick} is {state}" for tick, state in ticks if state != "settled"]
    return found if ticks else [*found, "there was no check-in"]


def once_each(numbers: list[str], wanted: int) -> list[str]:
    """What was told not at all, or not once, or out of order; nothing if all is well."""
    counted = Counter(map(int, numbers))
    found = [f"#{one} came {counted[one]} times" for one in range(1, wanted + 1) if counted[one] != 1]
    found += [f"#{one} was never meant" for one in counted if not 1 <= one <= wanted]
    return found if found or [*map(int, numbers)] == sorted(counted) else ["out of order"]
