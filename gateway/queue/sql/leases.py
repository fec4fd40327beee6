"""
Leases, as SQL: who may do what only one may do, until when, and a fence that grows with each new holder.

A lease is a row with an end, not a lock: a holder that is frozen rather than dead loses it all the same.
"""

from __future__ import annotations

from gateway.queue.sql.engine import Connection

__all__ = ["lease", "release_lease"]


def lease(db: Connection, name: str, holder: str, ttl_s: float, now: float) -> int | None:
    """Get or renew a lease; returns its fence."""
    row = db.execute("SELECT holder, fence, expires_at FROM leases WHERE name = ?", (name,)).fetchone()
    held_by, fence, expires_at = row or (None, 0, 0.0)
    if held_by not in (None, holder) and expires_at > now:
        return None
    if held_by != holder:
        fence += 1
    db.execute(
        "INSERT INTO leases (name, holder, fence, expires_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = excluded.fence,"
        " expires_at = excluded.expires_at",
        (name, holder, fence, now + ttl_s),
    )
    return int(fence)


def release_lease(db: Connection, name: str, holder: str) -> None:
    """Give a lease back; its fence stays, so that the next holder's is higher."""
    db.execute(
        "UPDATE leases SET holder = NULL, expires_at = 0 WHERE name = ? AND holder = ?", (name, holder)
    )
