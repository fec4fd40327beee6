"""
Grants, renews and releases leases, as SQL: exclusive rights with an expiry time and a growing fence.

A lease is a row that expires, not a lock: a holder that is frozen rather than dead loses it, too.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.queue.sql import cluster
from gateway.queue.sql.engine import Connection


def lease(  # noqa: PLR0917 - as below
    db: Connection, name: str, holder: str, ttl_s: float, now: float, instead_of: Collection[str] = ()
) -> int | None:
    """Take a lease; return its fence, or None if it is taken."""
    row = db.execute("SELECT holder, fence, expires_at FROM leases WHERE name = ?", (name,)).fetchone()
    held_by, fence, expires_at = row or (None, 0, 0.0)
    if held_by not in (None, holder, *instead_of) and expires_at > now:
        return None
    if not cluster.make_room(db, name, now, instead_of):
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


def renew_lease(  # noqa: PLR0917 - in the order of the columns
    db: Connection, name: str, holder: str, fence: int, ttl_s: float, now: float
) -> bool:
    """Extend a lease, if it is still held with this fence."""
    renewed = db.execute(
        "UPDATE leases SET expires_at = ? WHERE name = ? AND holder = ? AND fence = ?",
        (now + ttl_s, name, holder, fence),
    )
    return renewed.rowcount > 0


def leases(db: Connection, now: float) -> list[tuple[str, str, int, float]]:
    """Return name, holder, fence and remaining seconds of the leases that are held."""
    rows = db.execute(
        "SELECT name, holder, fence, expires_at FROM leases WHERE holder IS NOT NULL AND expires_at > ?"
        " ORDER BY name",
        (now,),
    )
    return [(name, holder, fence, expires_at - now) for name, holder, fence, expires_at in rows.fetchall()]


def release_lease(db: Connection, name: str, holder: str) -> None:
    """
    Give a lease back. Its fence stays, so that the next holder gets a higher one, except for a process's
    lease.
    """
    if name.startswith((cluster.PROCESS, cluster.COMMAND)):
        cluster.forget(db, name, holder)
        return
    db.execute(
        "UPDATE leases SET holder = NULL, expires_at = 0 WHERE name = ? AND holder = ?", (name, holder)
    )
