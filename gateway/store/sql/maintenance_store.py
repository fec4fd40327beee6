"""
Recovers at the start, ends waits, deletes old data, holds leases, and reports the state of the database. The
SQL is in ``maintenance_statements.py``, ``crash_records.py`` and ``lease_rows.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from gateway.store.model import Lease, Machine, Suspect
from gateway.store.sql import crash_records, maintenance_statements, receipt_store
from gateway.store.sql import lease_rows as leases
from gateway.store.sql.engine import ALONE, NOTHING, Locks, Store, named_lock
from gateway.store.sql.locking import inbox_range_locks
from gateway.store.sql.maintenance_statements import count
from gateway.store.sql.question_store import forget_withdrawn
from gateway.store.sql.row_codec import message_id, origin_of_post, session_or_none
from gateway.store.states import IGNORED_S, StoreStats

_PRUNE_ROWS = 2000


class MaintenanceStore(Store):
    """Recovery at the start, ending waits, retention, leases, and the state of the database."""

    async def recover(self) -> None:
        """
        Recover once at the start, before anything else. Running turns become ready again, ``sending`` rows
        become pending, and uncertain rows stay uncertain (also if they were being sent again). It may be
        repeated, even after a crash in the middle. What was running or sending is recorded as in flight at a
        death.
        """
        now = self._now()
        await self._writer.call("recover", lambda db: maintenance_statements.recover(db, now), locks=ALONE)

    async def suspects(self) -> list[Suspect]:
        """
        Return the turns and outbox rows that were in flight at a death and are still open. A dead-lettered
        one leaves this list, and is not a suspect if it is retried.
        """
        found = await self._reader.call("suspects", crash_records.suspects)
        return [
            Suspect(session, record, turn, outbox_id)
            for turn, outbox_id, text, record in found
            if (session := session_or_none(text)) is not None
        ]

    async def due_now(self, waits_for: str) -> None:
        """End a wait: everything that was put back with this ``waits_for`` is due at once."""
        await self._writer.call(
            "due_now", lambda db: maintenance_statements.due_now(db, waits_for), locks=NOTHING
        )

    async def stats(self) -> StoreStats:
        """Return counts and ages."""
        now = self._now()
        return await self._reader.call("stats", lambda db: count(db, now))

    async def prune(self, *, older_than_s: float) -> int:
        """
        Delete the payloads of rows that ended longer ago than this; their keys stay. Returns how many.

        Of rows that were ignored longer ago than this or than `IGNORED_S` only a digest of the key stays. It
        recognises the message if it comes again; no other query finds them any more. Rows that nobody
        released for `QUARANTINE_S` become IGNORED as ``quarantine_expired``; those of uninvited people after
        `UNINVITED_S`. With a message that was posted once, it forgets that, except for alerts.
        """
        now = self._now()
        ended, ignored = now - older_than_s, now - min(older_than_s, IGNORED_S)
        last_inbox, last_outbox = await self._reader.call("prune", maintenance_statements.last_ids)
        forgotten = await self._writer.call(
            "prune",
            lambda db: maintenance_statements.end_quarantine(db, now),
            locks=NOTHING,
        )
        await self._writer.call(
            "prune", lambda db: receipt_store.forget(db, now - receipt_store.KEPT_S), locks=NOTHING
        )
        await self._writer.call("prune", lambda db: forget_withdrawn(db, now), locks=NOTHING)
        # In small pieces, so that nobody waits for it.
        digests, payloads = maintenance_statements.keep_digests, maintenance_statements.forget_payloads
        for table, condition, last, before, forget, locks in (
            ("inbox", maintenance_statements.IGNORED_LONG_AGO, last_inbox, ignored, digests, _of_rows),
            ("inbox", maintenance_statements.INBOX_ENDED, last_inbox, ended, payloads, _alone),
            ("outbox", maintenance_statements.OUTBOX_ENDED, last_outbox, ended, payloads, _alone),
        ):
            find = partial(maintenance_statements.chosen, table=table, condition=condition, before=before)
            drop = partial(forget, table=table, condition=condition, before=before)
            for first in range(1, last + 1, _PRUNE_ROWS):
                found = await self._reader.call(
                    "prune", partial(find, first=first, last=first + _PRUNE_ROWS - 1)
                )
                for ids in maintenance_statements.pages(found):
                    forgotten += await self._writer.call("prune", partial(drop, ids=ids), locks=locks(ids))
        await self._forget_posts()
        return forgotten

    async def _forget_posts(self) -> None:
        """Forget what was posted once for an event, where only the key of the message is left."""
        posts = await self._reader.call("prune", maintenance_statements.posts_of_events)
        for page in maintenance_statements.pages(posts):
            keys = {message_id(self._secret, origin_of_post(each), 0): each for each in page}
            left = await self._reader.call(
                "prune", partial(maintenance_statements.ended_keys, keys=list(keys))
            )
            gone = [keys[key] for key in left]
            if gone:
                await self._writer.call(
                    "prune", partial(maintenance_statements.forget_posts, posts=gone), locks=NOTHING
                )

    async def lease(
        self, name: str, *, holder: str, ttl_s: float, instead_of: Collection[str] = ()
    ) -> int | None:
        """
        Take a lease; return its fence (it grows with each new holder), or None if it is taken.

        The lease expires after ``ttl_s`` by the clock that all holders share: the database server's, if there
        is one. A holder of ``instead_of`` is known to be dead, so its lease need not expire first.
        """
        at = self._database.lease_clock()
        return await self._writer.call(
            "lease",
            lambda db: leases.lease(db, name, holder, ttl_s, at(db), instead_of),
            locks=_of_lease(name),
        )

    async def renew_lease(self, name: str, *, holder: str, fence: int, ttl_s: float) -> bool:
        """Extend a lease, with the same fence. Returns False if somebody else, or nobody, holds it."""
        at = self._database.lease_clock()
        return await self._writer.call(
            "renew_lease",
            lambda db: leases.renew_lease(db, name, holder, fence, ttl_s, at(db)),
            locks=_of_lease(name),
        )

    async def leases(self) -> list[Lease]:
        """Return the leases that are held at this moment."""
        at = self._database.lease_clock()
        found = await self._reader.call("leases", lambda db: leases.leases(db, at(db)))
        return [Lease(*row) for row in found]

    def require_lease(self, name: str, *, holder: str, fence: int) -> None:
        """
        Require this lease for every change from now on: as soon as another holder has it, every call that
        would change something raises `Fenced`. Does nothing where one process has the database for itself.
        """
        if self._database.fencing is not None:
            self._database.fencing.require_lease(name, holder, fence)

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give a lease back early, after the calls in progress; do nothing if it is not held."""
        if self._database.fencing is not None:
            await self._database.fencing.idle()
        await self._writer.call(
            "release_lease", lambda db: leases.release_lease(db, name, holder), locks=_of_lease(name)
        )

    async def show_machine(self, machine: str, *, holder: str, version: str, ttl_s: float) -> None:
        """Note that a daemon of the home lives, active or standing by; it gives no right."""
        at = self._database.lease_clock()
        await self._writer.call(
            "show_machine",
            lambda db: leases.show_machine(db, machine, holder, version, ttl_s, at(db)),
            locks=NOTHING,
        )

    async def hide_machine(self, machine: str, *, holder: str, version: str) -> None:
        """Remove the note of a daemon that ends in order."""
        await self._writer.call(
            "hide_machine", lambda db: leases.hide_machine(db, machine, holder, version), locks=NOTHING
        )

    async def machines(self, daemon: str, *, ttl_s: float) -> list[Machine]:
        """Return the machines of the home, also those that are missing; for arguments see `leases`."""
        at = self._database.lease_clock()
        return await self._reader.call("machines", lambda db: leases.machines(db, daemon, ttl_s, at(db)))

    async def last_ids(self) -> tuple[int, int]:
        """Return the highest ids of inbox and outbox."""
        return await self._reader.call("last_ids", maintenance_statements.last_ids)

    @property
    def identity(self) -> str:
        """The random text that distinguishes this database from every other; a secret."""
        return self._secret

    @property
    def refusing(self) -> bool:
        """Return True if the disk refused the newest commit."""
        return self._writer.failing

    @property
    def stalled_s(self) -> float:
        """The time for which the disk has not returned from a call; for liveness checks and metrics."""
        return max(self._writer.stalled_s, self._reader.stalled_s)


def _of_lease(name: str) -> Locks:
    return [named_lock("lease", name)]


def _alone(_: Sequence[int]) -> Locks:
    """Take no lock: the statement that deletes the rows checks each of them again."""
    return NOTHING


def _of_rows(ids: Sequence[int]) -> Locks:
    """Lock the rows' sessions: accepting checks the digest before it inserts."""
    return inbox_range_locks(ids[0], ids[-1])
