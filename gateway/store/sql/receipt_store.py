"""
Stores receipts: records of tools' effects that outlive the turns in which they happened. A receipt is written
in the transaction that records the start of a step, before the effect, and completed in the one that records
its result. So if a turn has ended and its receipt is incomplete, nobody knows whether the effect happened.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agent_core.messages import SessionKey
from agent_core.text import one_line
from gateway.store.model import EffectReceipt, ReceiptOutcome, Step
from gateway.store.sql.engine import NOTHING, ConnectionPort, Store
from gateway.store.sql.row_codec import Raw, instant, load_json, session_or_none, to_json

KEPT_S = 90 * 86_400.0
_COMMAND = "command-"
"""The prefix of the name that replaces a turn's."""
_COLUMNS = "r.turn, r.number, r.at, r.session, r.tool, r.effect, r.call, r.asked_by, r.origins, r.approved_by"
_NEWEST = (
    f"SELECT {_COLUMNS}, r.outcome, r.told, r.undo, r.ended_at, EXISTS"  # noqa: S608 - constants of this file
    " (SELECT 1 FROM inbox WHERE inbox.turn = r.turn AND inbox.state IN ('ready', 'running'))"
    " FROM receipts AS r WHERE r.at >= ?{where} ORDER BY r.id DESC LIMIT ?"
)


def begin(db: ConnectionPort, turn: str, step: Step, now: float) -> None:
    """Record that an effect is about to happen; an effect that may be repeated starts its record over."""
    receipt = step.receipt
    if receipt is None:
        return
    db.execute(
        "INSERT INTO receipts (turn, number, at, session, tool, effect, call, asked_by, origins, approved_by,"
        " outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'started') ON CONFLICT (turn, number) DO UPDATE SET"
        " at = excluded.at, call = excluded.call, origins = excluded.origins, tool = excluded.tool,"
        " effect = excluded.effect, approved_by = excluded.approved_by, outcome = 'started'",
        (
            turn,
            step.number,
            now,
            str(receipt.session),
            receipt.tool,
            receipt.effect,
            to_json(receipt.arguments),
            receipt.asked_by,
            receipt.origins,
            receipt.approved_by,
        ),
    )


def finish(db: ConnectionPort, turn: str, number: int, result: Mapping[str, Any], now: float) -> None:
    """Record that the effect has happened, or why the tool says that it did not."""
    db.execute(
        "UPDATE receipts SET outcome = ?, told = ?, undo = ?, ended_at = ?"
        " WHERE turn = ? AND number = ? AND outcome = 'started'",
        (
            _outcome(result),
            one_line(str(result.get("content") or ""), 300),
            str(result.get("undo") or ""),
            now,
            turn,
            number,
        ),
    )


def _outcome(result: Mapping[str, Any]) -> str:
    if result.get("is_unknown"):
        return "unknown"
    return "failed" if result.get("is_error") else "done"


def forget(db: ConnectionPort, before: float) -> int:
    """Delete older receipts; return how many."""
    return db.execute("DELETE FROM receipts WHERE at < ?", (before,)).rowcount


class ReceiptStore(Store):
    """
    The effects of tools, kept for 90 days.

    Receipts of turns are written with their steps (`Step.receipt`), others here.
    """

    async def begin(self, receipt: EffectReceipt) -> str:
        """Record an effect outside of turns before it happens; return the argument for `finish`."""
        now, name = self._now(), f"{_COMMAND}{secrets.token_hex(8)}"
        step = Step(0, "command", "", {}, None, receipt)
        await self._writer.call("receipt", lambda db: begin(db, name, step, now), locks=NOTHING)
        return name

    async def finish(self, name: str, told: str, *, failed: bool) -> None:
        """Record the outcome; without this call the outcome is unknown."""
        now, result = self._now(), {"content": told, "is_error": failed}
        await self._writer.call("receipt", lambda db: finish(db, name, 0, result, now), locks=NOTHING)

    async def newest(
        self, *, since: datetime | None = None, session: SessionKey | None = None, limit: int = 50
    ) -> list[EffectReceipt]:
        """Return receipts that began since then, newest first; of one session, if it is given."""
        begin = 0.0 if since is None else since.timestamp()
        where, whose = ("", ()) if session is None else (" AND r.session = ?", (str(session),))
        query = _NEWEST.format(where=where)
        raws = await self._reader.call(
            "receipts", lambda db: db.execute(query, (begin, *whose, limit)).fetchall()
        )
        return [found for raw in raws if (found := _receipt(raw)) is not None]


def _receipt(raw: Raw) -> EffectReceipt | None:
    """Convert a row; None if it is damaged."""
    turn, number, at, session, tool, effect, call, asked_by, origins, approved_by = raw[:10]
    outcome, told, undo, ended_at, is_open = raw[10:]
    key = session_or_none(session)
    if key is None:
        return None
    if outcome == "started":
        outcome = ReceiptOutcome.RUNNING if is_open else ReceiptOutcome.UNKNOWN
    try:
        arguments = load_json(call)
    except ValueError:
        return None
    return EffectReceipt(
        session=key,
        tool=tool,
        effect=effect,
        arguments=arguments,
        asked_by=asked_by,
        origins=origins,
        approved_by=approved_by,
        turn=turn,
        number=number,
        at=instant(at),
        outcome=ReceiptOutcome(outcome),
        told=told or "",
        undo=undo or "",
        ended_at=None if ended_at is None else instant(ended_at),
    )
