"""The run ledger of check-ins and jobs: its entries, and what they say about the recent past. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from agent_core.models import Usage
from gateway.store.model import LedgerEntry, RunOutcome
from gateway.store.stores import Turn

_MAX_REST = timedelta(hours=12)


def failing_since(entries: list[LedgerEntry]) -> list[LedgerEntry]:
    """The failures without a success after them, newest first; pure. What was skipped does not count."""
    failed = []
    for entry in entries:
        if entry.outcome is RunOutcome.FAILED:
            failed.append(entry)
        elif entry.outcome is not RunOutcome.SKIPPED:
            break
    return failed


def resting_until(entries: list[LedgerEntry], now: datetime, interval: timedelta) -> datetime | None:
    """Return the end of the rest after failures in a row (doubling), None without one. Pure."""
    failed = failing_since(entries)
    if len(failed) < 2 or failed[0].at is None:
        return None
    rest = min(interval * 2 ** min(len(failed) - 1, 16), max(_MAX_REST, interval))
    until = failed[0].at + rest
    # A failure in the future was noted by a clock that was wrong.
    return until if failed[0].at <= now < until else None


def ledger_name(job_id: str) -> str:
    """The name under which the runs or the end of a job are found."""
    return f"job:{job_id}"


def ledger_entry(
    job_id: str,
    turn: Turn,
    outcome: RunOutcome,
    reason: str = "",
    *,
    usage: Usage | None = None,
    took_s: float = 0.0,
) -> LedgerEntry:
    """The ledger entry for the end of a job's turn."""
    usage = usage or Usage()
    return LedgerEntry(
        name=ledger_name(job_id),
        instant=turn.head.message.received_at,
        outcome=outcome,
        reason=reason[:300],
        tokens=usage.prompt_tokens + usage.completion_tokens,
        calls=usage.calls,
        took_s=took_s,
    )
