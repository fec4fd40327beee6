"""
Declares which changes of rows fire which signals; each engine makes its triggers of these rules. Triggers see
every statement that moves a row, so no caller and no new statement can forget a signal.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """
    A change of a row (``OLD`` to ``NEW``) that fires a signal with these columns of the row.

    With ``work`` it is the signal ``session``, about the inbox row of that condition.
    """

    name: str
    table: str
    moment: str
    when: str
    signal: str = "session"
    columns: tuple[str, ...] = ()
    work: str = ""


_SOONER = "OLD.next_at IS NOT NULL AND (NEW.next_at IS NULL OR NEW.next_at < OLD.next_at)"
_MOVED = "UPDATE OF state, next_at"
_ROW = "{here} id = NEW.id"
# A subquery: SQLite ignores the ORDER BY of a query whose rows a trigger discards.
_NEXT = (
    "{here} id = (SELECT id FROM {inbox} WHERE {here} state = 'ready' AND session = NEW.session"
    " ORDER BY COALESCE(next_at, 0), id LIMIT 1)"
)

RULES = (
    Rule("work_added", "inbox", "INSERT", "NEW.state = 'ready'", work=_ROW),
    # A row that is put back without a time fires nothing: its handler knows when to continue.
    Rule(
        "work_due",
        "inbox",
        _MOVED,
        "NEW.state = 'ready' AND NOT (OLD.state = 'running' AND NEW.next_at IS NULL)"
        f" AND (OLD.state <> 'ready' OR ({_SOONER}))",
        work=_ROW,
    ),
    # A row that is done unblocks the next one.
    Rule(
        "work_next",
        "inbox",
        "UPDATE OF state",
        "OLD.state IN ('ready', 'running') AND NEW.state NOT IN ('ready', 'running')",
        work=_NEXT,
    ),
    Rule(
        "turn_stopped",
        "inbox",
        "UPDATE OF state",
        "OLD.state = 'running' AND NEW.state = 'ignored'",
        "stopped",
        ("session", "turn", "error"),
    ),
    Rule("outbox_added", "outbox", "INSERT", "NEW.state = 'pending'", "outbox", ("channel",)),
    # A row can be sent when it is pending and when a wait ends; a row that is done unblocks the next one.
    Rule(
        "outbox_moved",
        "outbox",
        _MOVED,
        "(NEW.state IN ('pending', 'dead', 'unknown') AND NEW.state <> OLD.state)"
        f" OR (NEW.state IN ('pending', 'uncertain') AND {_SOONER})",
        "outbox",
        ("channel",),
    ),
    Rule("draft_added", "outbox", "INSERT", "NEW.state = 'held'", "drafts", ("channel",)),
    Rule("line_added", "history_journal", "INSERT", "true", "history", ("session",)),
    Rule("usage_added", "usage", "INSERT", "true", "usage", ("day",)),
    Rule("usage_grew", "usage", "UPDATE", "true", "usage", ("day",)),
    Rule("job_added", "jobs", "INSERT", "true", "jobs", ("id",)),
    Rule(
        "job_sooner",
        "jobs",
        _MOVED,
        "NEW.state = 'active' AND NEW.next_at IS NOT NULL"
        " AND (OLD.state <> 'active' OR OLD.next_at IS NULL OR NEW.next_at < OLD.next_at)",
        "jobs",
        ("id",),
    ),
)
