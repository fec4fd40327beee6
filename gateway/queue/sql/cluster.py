"""
Records which processes live and which of them serves which account, as SQL over the table ``leases``.

Theory of operation. A process holds one lease, ``process:NAME``, and renews it. The row ``account:CHANNEL``
names the process that serves an account. This row does not expire by itself; it is valid as long as the lease
of that process. So one renewal keeps all accounts of a process, and the one lease that each transaction
checks (`MaintenanceStore.work_under`) fences all of them.

A process takes its lease early in its start, and accounts late. From then on the row ``taker:NAME`` exists:
nobody leaves an account to a process that cannot take it yet.

A process that takes an account from one whose lease has expired removes that lease in the same transaction,
and recovers what that process had in hand. It waits for what the dead process was still committing; whatever
the dead process tries later is refused.

`EVERYTHING` is the lease for exclusive use of the database. It is not granted while a process lives, and no
process begins while it is held.

A command that changes rows as any process does, in a home without a daemon, holds a lease ``command:NAME``.
It excludes only `EVERYTHING`, and has no share of the accounts. It is left to expire, so that the processes
see that somebody has written.

All calls about processes and accounts take one lock, so what they read is still true when they write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agent_core.messages import SessionKey
from gateway.queue.model import Cluster
from gateway.queue.sql.crash_records import Where
from gateway.queue.sql.engine import Connection
from gateway.queue.sql.maintenance_sql import recover

EVERYTHING = "daemon"
"""The lease for exclusive use of the database. Earlier versions' daemons hold it, too."""
PROCESS = "process:"
"""The prefix of the names of processes' leases; the holder's name follows."""
COMMAND = "command:"
"""The same prefix for a command that works beside processes."""
REST = ""
"""In place of an account: what exists once over all processes, and channels without an account."""
EVERYBODY = "*"
"""In place of an account: the account of every process."""
FREED = "-"
"""In place of an account: one that has just become free."""
_ACCOUNT = "account:"
_TAKER = "taker:"
_SHARING = (PROCESS, COMMAND)


def lock_of(name: str) -> str:
    """Return the name of the lock for a lease: the same one for all that exclude each other."""
    return EVERYTHING if name.startswith(_SHARING) else name


def make_room(db: Connection, name: str, now: float, instead_of: Collection[str]) -> bool:
    """
    Whether a lease of this name may begin beside the leases that exclude it; expired ones are ended.

    The processes of ``instead_of`` are dead.
    """
    if lock_of(name) != EVERYTHING:
        return True
    over = []
    for other, holder, expires_at in _held(db):
        dead = holder in instead_of
        excluded = other.startswith(_SHARING) if name == EVERYTHING else other == EVERYTHING
        excluded = excluded or (other.startswith(COMMAND) and (dead or expires_at <= now))
        if excluded and not dead and expires_at > now:
            return False
        if other != name and (excluded or (dead and other.startswith(PROCESS))):
            over.append(other)
    for other in over:
        _end(db, other)
    return True


def forget(db: Connection, name: str, holder: str) -> None:
    """End the lease of a process; its name is never used again."""
    db.execute("DELETE FROM leases WHERE name IN (?, ?) AND holder = ?", (name, _TAKER + holder, holder))


def cluster(db: Connection, now: float) -> Cluster:
    """Return the live processes, and which of them has which account."""
    held = _held(db)
    living = sorted(holder for name, holder, ends_at in held if name.startswith(PROCESS) and ends_at > now)
    owners = {
        name.removeprefix(_ACCOUNT): holder
        for name, holder, _ in held
        if name.startswith(_ACCOUNT) and holder in living
    }
    written = any(name.startswith(COMMAND) and ends_at > now for name, _, ends_at in held)
    takers = [name.removeprefix(_TAKER) for name, _, _ in held if name.startswith(_TAKER)]
    return Cluster(living, owners, written, [holder for holder in living if holder in takers])


def take(  # noqa: PLR0917 - as below
    db: Connection, wanted: Sequence[str], configured: Mapping[str, str], holder: str, at: float, now: float
) -> list[str]:
    """
    Take those of the accounts that no live process has, and recover what was in flight by them; return which
    of them the holder has now.

    From now on the holder counts as a taker. Rows that belong to none of the ``configured`` accounts (address
    by channel), nor to anybody else's, belong to `REST`. ``at`` is the time of the leases, ``now`` that of
    the rows.
    """
    found = cluster(db, at)
    db.execute(
        "INSERT INTO leases (name, holder, fence, expires_at) VALUES (?, ?, 1, 0)"
        " ON CONFLICT (name) DO NOTHING",
        (_TAKER + holder, holder),
    )
    own = [name for name in wanted if found.owners.get(name) == holder]
    taken = [name for name in wanted if name not in found.owners]
    if not taken:
        return own
    before = {name: by for name, by, _ in _held(db)}
    for dead in {by for name in taken if (by := before.get(_ACCOUNT + name)) is not None}:
        _end(db, PROCESS + dead)
    for name in before:  # an earlier version, which does not know such rows, has ended the process
        if name.startswith(_TAKER) and PROCESS + name.removeprefix(_TAKER) not in before:
            db.execute("DELETE FROM leases WHERE name = ?", (name,))
    for name in taken:
        db.execute(
            "INSERT INTO leases (name, holder, fence, expires_at) VALUES (?, ?, 1, 0) ON CONFLICT (name)"
            " DO UPDATE SET holder = excluded.holder, fence = leases.fence + 1",
            (_ACCOUNT + name, holder),
        )
    known = sorted({*configured, *_accounts(db)})  # REST among them is not a channel
    recover(db, now, _turns_of(taken, known), _sends_of(taken, configured, known))
    return [*own, *taken]


def give(db: Connection, name: str, holder: str) -> None:
    """Give up an account for another process to take; do nothing if this process does not have it."""
    db.execute("UPDATE leases SET holder = NULL WHERE name = ? AND holder = ?", (_ACCOUNT + name, holder))


def _turns_of(taken: Sequence[str], known: Collection[str]) -> Where:
    """Return the condition on turns of these accounts; sessions of no account belong to `REST`."""
    ours = [name for name in taken if name != REST]
    conditions, whose = [_OF_SESSION] * len(ours), _ranges(ours)
    if REST in taken:
        others = [name for name in known if name != REST]
        conditions.append(f"NOT ({' OR '.join([_OF_SESSION] * len(others))})" if others else "TRUE")
        whose += _ranges(others)
    return f" AND ({' OR '.join(conditions)})", whose


_OF_SESSION = "(session > ? AND session < ?)"


def _ranges(channels: Sequence[str]) -> list[str]:
    """Return the bounds of the session keys of each channel."""
    edges = (str(SessionKey(name, "-"))[:-2] for name in channels)
    return [edge for begin in edges for edge in (f"{begin}/", f"{begin}0")]  # "0" sorts after the slash


def _sends_of(taken: Sequence[str], configured: Mapping[str, str], known: Collection[str]) -> Where:
    """
    Return the condition on sends by these accounts. It includes rows that pass through something else first,
    such as speech: those have the address of the account. Rows with any other address belong to no account,
    and so to `REST`.
    """
    ours = [name for name in taken if name != REST]
    no_account = f"channel NOT IN ({_marks(known)})"
    addresses = [configured[name] for name in ours if name in configured]
    conditions = [f"channel IN ({_marks(ours)})", f"({no_account} AND account IN ({_marks(addresses)}))"]
    whose = [*ours, *known, *addresses]
    if REST in taken:
        others = list(configured.values())
        conditions.append(f"({no_account} AND account NOT IN ({_marks(others)}))")
        whose += [*known, *others]
    return f" AND ({' OR '.join(conditions)})", whose


def _marks(values: Collection[str]) -> str:
    return ", ".join("?" * len(values)) or "''"


def _held(db: Connection) -> list[tuple[str, str, float]]:
    return db.execute("SELECT name, holder, expires_at FROM leases WHERE holder IS NOT NULL").fetchall()


def _accounts(db: Connection) -> Mapping[str, None]:
    """Return all accounts that any process has ever had."""
    names = (str(name) for (name,) in db.execute("SELECT name FROM leases").fetchall())
    return dict.fromkeys(name.removeprefix(_ACCOUNT) for name in names if name.startswith(_ACCOUNT))


def _end(db: Connection, name: str) -> None:
    """End a lease: its holder can change nothing any more."""
    if name.startswith(_SHARING):
        holder = name.removeprefix(PROCESS)
        db.execute("DELETE FROM leases WHERE name IN (?, ?)", (name, _TAKER + holder))
    else:  # the fence stays, so that the next holder gets a higher one
        db.execute("UPDATE leases SET holder = NULL, expires_at = 0 WHERE name = ?", (name,))
