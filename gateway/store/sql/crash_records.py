"""
Records what was in flight when the process died, as SQL, and judges each turn and each outbox row by it. The
judgement is pure. `record` runs once at a start, before recovery: turns that are ``running`` and outbox rows
that are ``sending`` at that moment were in flight at the death. One row of ``deaths`` stands for one of them
at one death. It has the number of steps in the journal, and how many others were in flight as well. A death
is weak evidence against everything that was in flight. It is strong evidence against something that was
alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gateway.store.sql.engine import ConnectionPort
from gateway.store.states import CrashRecord

KEPT = 100
"""How many deaths are kept."""


@dataclass(frozen=True, slots=True)
class Death:
    """One item in flight at death ``number``, after ``step`` steps, with ``company`` other items."""

    number: int
    item: str
    step: int
    company: int


def turn_item(turn: str) -> str:
    """Return the name of a turn as an item in flight."""
    return f"turn:{turn}"


def send_item(outbox_id: int) -> str:
    """Return the name of an outbox row as an item in flight."""
    return f"send:{outbox_id}"


def records_of(deaths: Iterable[Death], still_open: Collection[str]) -> dict[str, CrashRecord]:
    """Return the records of the items ``still_open``; the others have come through."""
    by_item: dict[str, list[Death]] = defaultdict(list)
    for death in sorted(deaths, key=lambda death: death.number):
        by_item[death.item].append(death)
    return {
        item: CrashRecord(
            deaths=len(own), alone=sum((death.step, death.company) == (own[-1].step, 0) for death in own)
        )
        for item in still_open
        if (own := by_item.get(item))
    }


def record(db: ConnectionPort, now: float) -> None:
    """Record what is in flight; its process is dead."""
    in_flight: list[tuple[str, int]] = [
        (turn_item(turn), steps)
        for turn, steps in db.execute(
            "SELECT turn, (SELECT COUNT(*) FROM turn_steps WHERE turn_steps.turn = inbox.turn) FROM inbox"
            " WHERE state = 'running' GROUP BY turn"
        )
    ]
    in_flight += [
        (send_item(row_id), 0) for (row_id,) in db.execute("SELECT id FROM outbox WHERE state = 'sending'")
    ]
    if not in_flight:
        return
    (number,) = db.execute("SELECT COALESCE(MAX(number), 0) + 1 FROM deaths").fetchone()
    db.executemany(
        "INSERT INTO deaths (number, item, step, company, at) VALUES (?, ?, ?, ?, ?)",
        [(number, item, step, len(in_flight) - 1, now) for item, step in in_flight],
    )
    db.execute("DELETE FROM deaths WHERE number <= ?", (number - KEPT,))


def forget_deaths(db: ConnectionPort, item: str) -> None:
    """Delete the deaths of a dead-lettered item: they count neither for others nor for a retry of it."""
    db.execute("DELETE FROM deaths WHERE item = ?", (item,))


_OPEN_TURNS = (
    "SELECT DISTINCT turn, session FROM inbox WHERE state IN ('ready', 'running') AND turn IS NOT NULL"
)
_OPEN_SENDS = (
    "SELECT id, session FROM outbox WHERE state IN ('pending', 'sending', 'uncertain')"
    " AND 'send:' || id IN (SELECT item FROM deaths)"
)


def suspects(db: ConnectionPort) -> list[tuple[str | None, int | None, str, CrashRecord]]:
    """Return turn or outbox row, session and record of each open item that was in flight at a death."""
    rows = [Death(*row) for row in db.execute("SELECT number, item, step, company FROM deaths")]
    if not rows:
        return []
    found: dict[str, tuple[str | None, int | None, str]] = {
        turn_item(turn): (turn, None, session) for turn, session in db.execute(_OPEN_TURNS)
    }
    found |= {send_item(row_id): (None, row_id, session) for row_id, session in db.execute(_OPEN_SENDS)}
    return [(*found[item], record) for item, record in records_of(rows, found).items()]
