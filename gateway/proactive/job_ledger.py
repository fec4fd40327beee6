"""How jobs, scheduled and in the background, stand in the run ledger. Pure."""

from __future__ import annotations

from agent_core.models import Usage
from gateway.queue.model import Entry, Outcome
from gateway.queue.ports import Turn

__all__ = ["ledger_entry", "ledger_name"]

_REASON_CHARS = 300


def ledger_name(job_id: str) -> str:
    """Under which name the runs or the end of a job are found."""
    return f"job:{job_id}"


def ledger_entry(
    job_id: str,
    turn: Turn,
    outcome: Outcome,
    reason: str = "",
    *,
    usage: Usage | None = None,
    took_s: float = 0.0,
) -> Entry:
    """What came of one turn of a job."""
    usage = usage or Usage()
    return Entry(
        name=ledger_name(job_id),
        instant=turn.head.message.received_at,
        outcome=outcome,
        reason=reason[:_REASON_CHARS],
        tokens=usage.prompt_tokens + usage.completion_tokens,
        calls=usage.calls,
        took_s=took_s,
    )
