"""
What `squidbot status` tells when no daemon runs, read by SQL alone.

The same as `gateway.operations.service.Operations.status` gives on a store at rest (a test holds them side by
side), but on the standard library only: making rows into messages needs pydantic's models, and these take
longer to load than the whole command may take.
"""
# ruff: noqa: S608 - only constants of this module are put into statements

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.queue.sqlite.migrations import APPLICATION_ID, VERSION
from gateway.queue.sqlite.stats import counted
from gateway.queue.states import OutboxState

__all__ = ["work_at_rest"]

_LOOKED_AT = 200
_SHOWN = 20
_TRYING = 10
_KNOWN_TO_A_PERSON = "error IN ('dropped', 'left') OR substr(error, 1, 8) = 'rejected'"
_APOLOGY = (
    "CASE WHEN json_valid(payload) THEN json_extract(payload, '$.kind') = 'apology'"
    " ELSE payload IS NOT NULL END"
)


def work_at_rest(path: Path, now: float | None = None) -> dict[str, Any] | None:
    """
    Counts, ages, and what is stuck, of a database that nobody has open: whoever asks holds the home's lock.

    Returns:
        The keys ``work``, ``stuck``, ``given_up`` and ``trying``; None if the file cannot be read as it is
        (older, newer, damaged, foreign), which `SqliteWorkStore.open` puts right or explains.
    """
    uri = f"file:{quote(str(path))}?mode=rw"  # with "ro" -wal and -shm would stay behind
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
            db.execute("PRAGMA query_only = ON")
            (owner,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if (owner, version) != (APPLICATION_ID, VERSION):
                return None
            stuck, given_up = _stuck(db)
            work = counted(db, time.time() if now is None else now).as_work()
            return {"work": work, "stuck": stuck, "given_up": given_up, "trying": _trying(db)}
    except sqlite3.Error:
        return None


def _stuck(db: sqlite3.Connection) -> tuple[list[dict[str, Any]], int]:
    """What nobody was told of, and how many were given up with an apology that was delivered."""
    dead = db.execute(
        "SELECT id, channel, error FROM inbox WHERE state = 'dead' ORDER BY id DESC LIMIT ?", (_LOOKED_AT,)
    )
    rows = [("not answered", inbox_id, channel, why, True) for inbox_id, channel, why in dead]
    unsent = db.execute(
        f"SELECT state, inbox_id, channel, error, state = 'dead' AND ({_KNOWN_TO_A_PERSON}) FROM outbox"
        " WHERE state IN ('dead', 'unknown') ORDER BY id DESC LIMIT ?",
        (_LOOKED_AT,),
    )
    for state, inbox_id, channel, why, known in unsent:
        if not known:
            decided = state == OutboxState.DEAD  # of the others a person must say what became of them
            rows.append(("not sent" if decided else "perhaps not sent", inbox_id, channel, why, decided))
    found: list[dict[str, Any]] = []
    told: set[int] = set()
    for what, inbox_id, channel, why, decided in rows:
        if decided and inbox_id is not None and (inbox_id in told or _apologised(db, inbox_id)):
            told.add(inbox_id)
        else:
            found.append({"what": what, "inbox": inbox_id, "channel": channel, "why": why})
    return found[:_SHOWN], len(told)


def _apologised(db: sqlite3.Connection, inbox_id: int) -> bool:
    """The person has been told, by the newest apology of this message."""
    newest = db.execute(
        "SELECT state FROM outbox WHERE (inbox_id = :id OR"
        " (inbox_id = (SELECT tail FROM inbox WHERE id = :id)"
        f" AND turn = (SELECT turn FROM inbox WHERE id = :id))) AND {_APOLOGY} ORDER BY id DESC LIMIT 1",
        {"id": inbox_id},
    ).fetchone()
    return newest is not None and newest[0] == OutboxState.SENT


def _trying(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """What did not succeed yet and is tried again, and why it did not."""
    unanswered = db.execute(
        "SELECT id, channel, error FROM inbox WHERE state = 'ready' ORDER BY id DESC LIMIT ?", (_TRYING,)
    )
    unsent = db.execute(
        "SELECT inbox_id, channel, error FROM outbox WHERE state IN ('pending', 'uncertain')"
        " ORDER BY id DESC LIMIT ?",
        (_TRYING,),
    )
    found = [("not answered yet", *row) for row in unanswered] + [("not sent yet", *row) for row in unsent]
    return [
        {"what": what, "inbox": inbox_id, "channel": channel, "why": why}
        for what, inbox_id, channel, why in found
        if why
    ]
