"""
Records what was in flight when the process died.

`record` runs once at a start, before recovery: turns that are ``running`` and outbox rows that are
``sending`` at that moment were in flight at the death. One row of ``deaths`` stands for one of them at one
death. It has the number of steps in the journal, and how many others were in flight as well: a death says
little of each of many, and much of something that was alone.
"""

from __future__ import annotations

from gateway.queue.sql.engine import Connection
from gateway.queue.states import CrashRecord

KEPT = 100
"""How many deaths are kept."""


def turn_item(turn: str) -> str:
    """Return the name of a turn as an item in flight."""
    return f"turn:{turn}"


def send_item(outbox_id: int) -> str:
    """Return the name of an outbox row as an item in flight."""
    return f"send:{outbox_id}"


def record(db: Connection, now: float) -> None:
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


def acquit(db: Connection, item: str) -> None:
    """Delete the deaths of a dead-lettered item: they count neither for others nor for a retry of it."""
    db.execute("DELETE FROM deaths WHERE item = ?", (item,))


_OPEN_TURNS = (
    "SELECT DISTINCT turn, session FROM inbox WHERE state IN ('ready', 'running') AND turn IS NOT NULL"
)
_OPEN_SENDS = (
    "SELECT id, session FROM outbox WHERE state IN ('pending', 'sending', 'uncertain')"
    " AND 'send:' || id IN (SELECT item FROM deaths)"
)
_RECORDS = (
    "SELECT item, COUNT(*), SUM(CASE WHEN company = 0 AND step ="
    " (SELECT MAX(step) FROM deaths AS newest WHERE newest.item = deaths.item) THEN 1 ELSE 0 END)"
    " FROM deaths GROUP BY item ORDER BY item"
)


def suspects(db: Connection) -> list[tuple[str | None, int | None, str, CrashRecord]]:
    """Return turn or outbox row, session and record of each open item that was in flight at a death."""
    records = [(item, CrashRecord(deaths, alone)) for item, deaths, alone in db.execute(_RECORDS)]
    if not records:
        return []
    found: dict[str, tuple[str | None, int | None, str]] = {
        turn_item(turn): (turn, None, session) for turn, session in db.execute(_OPEN_TURNS)
    }
    found |= {send_item(row_id): (None, row_id, session) for row_id, session in db.execute(_OPEN_SENDS)}
    return [(*found[item], record) for item, record in records if item in found]
