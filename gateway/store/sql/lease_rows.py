"""
Grants, renews and releases leases, as SQL: exclusive rights with an expiry time and a growing fence. A lease
is a row that expires, not a lock: a holder that is frozen rather than dead loses it, too.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.store.model import Machine
from gateway.store.sql.engine import ConnectionPort

_MACHINE = "machine:"
"""
The prefix of the names of rows that show which machines live: holder and version, the second of its start in
place of a fence.
"""
_MACHINES = (_MACHINE, "machine;")
"""The bounds of these names: the semicolon sorts after the colon."""


def lease(  # noqa: PLR0917 - as below
    db: ConnectionPort, name: str, holder: str, ttl_s: float, now: float, instead_of: Collection[str] = ()
) -> int | None:
    """Take a lease; return its fence, or None if it is taken."""
    row = db.execute("SELECT holder, fence, expires_at FROM leases WHERE name = ?", (name,)).fetchone()
    held_by, fence, expires_at = row or (None, 0, 0.0)
    if held_by not in (None, holder, *instead_of) and expires_at > now:
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
    db: ConnectionPort, name: str, holder: str, fence: int, ttl_s: float, now: float
) -> bool:
    """Extend a lease, if it is still held with this fence."""
    renewed = db.execute(
        "UPDATE leases SET expires_at = ? WHERE name = ? AND holder = ? AND fence = ?",
        (now + ttl_s, name, holder, fence),
    )
    return renewed.rowcount > 0


def leases(db: ConnectionPort, now: float) -> list[tuple[str, str, int, float]]:
    """Return name, holder, fence and remaining seconds of the leases that are held."""
    rows = db.execute(
        "SELECT name, holder, fence, expires_at FROM leases WHERE holder IS NOT NULL AND expires_at > ?"
        " AND NOT (name >= ? AND name < ?) ORDER BY name",
        (now, *_MACHINES),
    )
    return [(name, holder, fence, expires_at - now) for name, holder, fence, expires_at in rows.fetchall()]


def release_lease(db: ConnectionPort, name: str, holder: str) -> None:
    """Give a lease back. Its fence stays, so that the next holder gets a higher one."""
    db.execute(
        "UPDATE leases SET holder = NULL, expires_at = 0 WHERE name = ? AND holder = ?", (name, holder)
    )


def show_machine(  # noqa: PLR0917 - in the order of the columns
    db: ConnectionPort, machine: str, holder: str, version: str, ttl_s: float, now: float
) -> None:
    """Note that a machine lives for ``ttl_s`` more; it gives no right."""
    db.execute(
        "INSERT INTO leases (name, holder, fence, expires_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at, holder = excluded.holder,"
        " fence = CASE WHEN leases.holder = excluded.holder THEN leases.fence ELSE excluded.fence END",
        (_MACHINE + machine, f"{version} {holder}", int(now), now + ttl_s),
    )
    db.execute(
        "DELETE FROM leases WHERE name >= ? AND name < ? AND expires_at < ?",
        (*_MACHINES, now - (7 * 86_400.0)),
    )


def hide_machine(db: ConnectionPort, machine: str, holder: str, version: str) -> None:
    """Remove the note of a process that ends in order."""
    db.execute(
        "DELETE FROM leases WHERE name = ? AND holder = ?", (_MACHINE + machine, f"{version} {holder}")
    )


def machines(db: ConnectionPort, daemon: str, ttl_s: float, now: float) -> list[Machine]:
    """Return the machines that were seen within a week; ``daemon`` is the name of the home's lease."""
    active = db.execute(
        "SELECT holder FROM leases WHERE name = ? AND expires_at > ?", (daemon, now)
    ).fetchone()
    rows = db.execute(
        "SELECT holder, fence, expires_at FROM leases WHERE name >= ? AND name < ? ORDER BY name", _MACHINES
    ).fetchall()
    found = []
    for noted, since, ends_at in rows:
        version, _, holder = str(noted).partition(" ")
        is_active = active is not None and active[0] == holder
        lives = is_active or ends_at > now
        found.append(
            Machine(holder, version, is_active, lives, max(0.0, now - since), max(0.0, now - ends_at + ttl_s))
        )
    return found
