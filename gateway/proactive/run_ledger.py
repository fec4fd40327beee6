"""What the ledger of heartbeat runs says about the recent past. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from agent_core.memory.scopes import OWNER
from agent_core.models import Message
from agent_core.provenance import Origins
from gateway.queue.model import Entry, Outcome

__all__ = ["alert_line", "failing_since", "resting_until"]
_LONGEST_REST = timedelta(hours=12)
_REST_AFTER = 2


def failing_since(entries: list[Entry]) -> list[Entry]:
    """The failures without a success after them, newest first; pure. What was skipped does not count."""
    failed = []
    for entry in entries:
        if entry.outcome is Outcome.FAILED:
            failed.append(entry)
        elif entry.outcome is not Outcome.SKIPPED:
            break
    return failed


def resting_until(entries: list[Entry], now: datetime, interval: timedelta) -> datetime | None:
    """
    Until when check-ins rest after failures in a row, each rest twice as long as the one before; pure.

    None: they do not rest now.
    """
    failed = failing_since(entries)
    if len(failed) < _REST_AFTER or failed[0].at is None:
        return None
    rest = min(interval * 2 ** min(len(failed) - 1, 16), max(_LONGEST_REST, interval))
    until = failed[0].at + rest
    # A failure in the future was noted by a clock that was wrong.
    return until if failed[0].at <= now < until else None


def alert_line(text: str, line_id: str, at: datetime, origins: Origins = ()) -> Message:
    """
    A proactive message to the owner, as a line of the history of the conversation where it is read.

    ``origins`` are whose words it is made of, besides the owner's and the program's.
    """
    turn = line_id.rpartition(".")[0]
    return Message(
        role="assistant",
        content=text,
        id=line_id,
        turn=turn,
        timestamp=at,
        scope=str(OWNER),
        origins=origins,
    )
