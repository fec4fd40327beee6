"""The start, the waits that end, forgetting, leases, and the state of the database.

The SQL is in ``maintenance_sql.py``, ``crash_records.py`` and ``leases.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from agent_core.messages import SessionKey
from gateway.queue.model import Cluster, Lease, Suspect
from gateway.queue.sql import cluster, crash_records, leases, maintenance_sql, receipts
from gateway.queue.sql.approvals import forget_withdrawn
from gateway.queue.sql.base import Part
from gateway.queue.sql.codec import session_or_none
from gateway.queue.sql.engine import ALONE, NOTHING, Locks, named_lock
from gateway.queue.sql.locking import of_inbox_between
from gateway.queue.sql.stats import counted
from gateway.queue.states import IGNORED_S, QUARANTINE_S, StoreStats

_PRUNE_ROWS = 2000


class MaintenanceStore(Part):
    """The start, the waits that end, forgetting, and the state of the database."""

    async def recover(self) -> None:
        """
        Once at start, before anything else: running turns become ready again, what was ``sending`` becomes
        pending, what is uncertain stays so (also if it was just being sent again). May be repeated, also
        after a crash in the middle. What was running or sending is remembered as in flight at a death.
        """
        now, all_rows = self._now(), ("", ())
        await self._writer.call(
            "recover", lambda db: maintenance_sql.recover(db, now, all_rows, all_rows), locks=ALONE
        )

    async def suspects(self) -> list[Suspect]:
        """
        The turns and outbox rows that were in flight at a death and are still open. What is dead-lettered
        leaves this list, and is no suspect any more if it is tried again.
        """
        found = await self._reader.call("suspects", crash_records.suspects)
        return [
            Suspect(session, record, turn, outbox_id)
            for turn, outbox_id, text, record in found
            if (session := session_or_none(text)) is not None
        ]

    async def due_now(self, waits_for: str) -> None:
        """
        What a turn or an outbox row waits for is there: whatever was put back with this ``waits_for`` is due
        at once.
        """
        await self._writer.call("due_now", lambda db: maintenance_sql.due_now(db, waits_for), locks=NOTHING)

    async def stats(self) -> StoreStats:
        """Counts and ages."""
        now = self._now()
        return await self._reader.call("stats", lambda db: counted(db, now))

    async def prune(self, *, older_than_s: float) -> int:
        """
        Forget payloads of rows that ended longer ago than this; their keys stay. Returns how many.

        Of rows that were ignored longer ago than this or than `IGNORED_S` only a digest of the key stays,
        which recognises the message if it comes again; nothing else finds them any more. What nobody let in
        for `QUARANTINE_S` is IGNORED as ``quarantine_expired``.
        """
        now = self._now()
        ended, ignored = now - older_than_s, now - min(older_than_s, IGNORED_S)
        last_inbox, last_outbox = await self._reader.call("prune", maintenance_sql.last_ids)
        forgotten = await self._writer.call(
            "prune",
            lambda db: maintenance_sql.end_quarantine(db, now - QUARANTINE_S, now),
            locks=NOTHING,
        )
        await self._writer.call("prune", lambda db: receipts.forget(db, now - receipts.KEPT_S), locks=NOTHING)
        await self._writer.call("prune", lambda db: forget_withdrawn(db, now), locks=NOTHING)
        # In small pieces, so that nobody waits for it.
        digests, payloads = maintenance_sql.keep_digests, maintenance_sql.forget_payloads
        for table, condition, last, before, forget, locks in (
            ("inbox", maintenance_sql.IGNORED_LONG_AGO, last_inbox, ignored, digests, _of_rows),
            ("inbox", maintenance_sql.INBOX_ENDED, last_inbox, ended, payloads, _alone),
            ("outbox", maintenance_sql.OUTBOX_ENDED, last_outbox, ended, payloads, _alone),
        ):
            find = partial(maintenance_sql.chosen, table=table, condition=condition, before=before)
            drop = partial(forget, table=table, condition=condition, before=before)
            for first in range(1, last + 1, _PRUNE_ROWS):
                found = await self._reader.call(
                    "prune", partial(find, first=first, last=first + _PRUNE_ROWS - 1)
                )
                for ids in maintenance_sql.pages(found):
                    forgotten += await self._writer.call("prune", partial(drop, ids=ids), locks=locks(ids))
        return forgotten

    async def lease(
        self, name: str, *, holder: str, ttl_s: float, instead_of: Collection[str] = ()
    ) -> int | None:
        """
        Get a lease: its fence (it grows with each new holder), or None if it is taken.

        It ends after ``ttl_s`` by the clock that all holders share: that of the database's server, if it has
        one. A holder of ``instead_of`` is known to be dead, so that its lease need not end first.
        """
        at = self._database.lease_clock()
        return await self._writer.call(
            "lease",
            lambda db: leases.lease(db, name, holder, ttl_s, at(db), instead_of),
            locks=_of_lease(name),
        )

    async def renew_lease(self, name: str, *, holder: str, fence: int, ttl_s: float) -> bool:
        """Hold a lease for longer, with the same fence. False: it is somebody else's, or nobody's."""
        at = self._database.lease_clock()
        return await self._writer.call(
            "renew_lease",
            lambda db: leases.renew_lease(db, name, holder, fence, ttl_s, at(db)),
            locks=_of_lease(name),
        )

    async def leases(self) -> list[Lease]:
        """What is held at this moment."""
        at = self._database.lease_clock()
        found = await self._reader.call("leases", lambda db: leases.leases(db, at(db)))
        return [Lease(*row) for row in found]

    def work_under(self, name: str, *, holder: str, fence: int) -> None:
        """
        Change nothing any more without this lease: as soon as another holder has it, everything that would
        change something raises `Fenced`. Nothing happens where one process has the database for itself.
        """
        if self._database.fencing is not None:
            self._database.fencing.work_under(name, holder, fence)

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give it back early, behind what is under way; nothing happens if it is not held."""
        if self._database.fencing is not None:
            await self._database.fencing.idle()
        await self._writer.call(
            "release_lease", lambda db: leases.release_lease(db, name, holder), locks=_of_lease(name)
        )

    async def cluster(self) -> Cluster:
        """
        The processes that live, each under a lease of its own, and which of them has which account.

        A lease for the whole database is not given while a process lives, and the other way round.
        """
        at = self._database.lease_clock()
        return await self._reader.call("cluster", lambda db: cluster.cluster(db, at(db)))

    async def take_accounts(
        self, names: Sequence[str], *, configured: Mapping[str, str], holder: str
    ) -> list[str]:
        """
        Work for those of these accounts for which no other living process does; returns which these are.

        What was in flight by them, if this process did not have them already, is recovered (`recover`) in the
        same transaction. If a process had them whose lease has ended, that is over: whatever it still tries
        raises `Fenced`. An account is named by its channel; the empty name stands for what belongs to no
        account of anybody, and ``configured`` are the accounts that are known to whoever asks, each with the
        bot's address there.
        """
        now, at = self._now(), self._database.lease_clock()
        return await self._writer.call(
            "take_accounts",
            lambda db: cluster.take(db, names, configured, holder, at(db), now),
            locks=[*ALONE, named_lock("lease", cluster.EVERYTHING)],
        )

    async def give_account(self, name: str, *, holder: str) -> None:
        """Let another process have an account of which nothing is in flight any more."""
        await self._writer.call(
            "give_account",
            lambda db: cluster.give(db, name, holder),
            locks=_of_lease(cluster.EVERYTHING),
        )

    async def begin_worker(self, holder: str) -> None:
        """
        Count this process, which holds a lease of its own and takes no account, as a worker until that ends.

        A worker claims with `gateway.queue.sql.shared_turns`, and each of its turns is held under its name:
        whoever takes an account leaves those alone.
        """
        await self._writer.call(
            "begin_worker",
            lambda db: cluster.begin_worker(db, holder),
            locks=_of_lease(cluster.EVERYTHING),
        )

    async def stop_worker(self, holder: str) -> None:
        """
        Count this process as a worker no more, because it begins nothing from now on: nobody leaves anything
        to it. What it has in hand stays its own until its lease ends.
        """
        await self._writer.call(
            "stop_worker",
            lambda db: cluster.stop_worker(db, holder),
            locks=_of_lease(cluster.EVERYTHING),
        )

    async def end_workers(self) -> list[SessionKey]:
        """
        End the workers whose lease is over: whatever they still try raises `Fenced`, and the turns that they
        had in hand are recovered (`recover`), each worker's as one death. Returns the sessions, which no
        signal tells.
        """
        now, at = self._now(), self._database.lease_clock()
        found = await self._writer.call(
            "end_workers",
            lambda db: cluster.end_workers(db, at(db), now),
            locks=[*ALONE, named_lock("lease", cluster.EVERYTHING)],
        )
        return [key for text in found if (key := session_or_none(text)) is not None]

    async def last_ids(self) -> tuple[int, int]:
        """The highest ids of inbox and outbox."""
        return await self._reader.call("last_ids", maintenance_sql.last_ids)

    @property
    def identity(self) -> str:
        """The random text that tells this database from every other; a secret."""
        return self._secret

    @property
    def refusing(self) -> bool:
        """Whether the newest commit was refused by the disk."""
        return self._writer.failing

    @property
    def stalled_s(self) -> float:
        """For how long the disk has not come back from a call; for liveness checks and metrics."""
        return max(self._writer.stalled_s, self._reader.stalled_s)


def _of_lease(name: str) -> Locks:
    return [named_lock("lease", cluster.lock_of(name))]


def _alone(_: Sequence[int]) -> Locks:
    """They are forgotten by a statement that looks at each of them again."""
    return NOTHING


def _of_rows(ids: Sequence[int]) -> Locks:
    """Accepting looks for the digest first and inserts then, so a row must not become one in between."""
    return of_inbox_between(ids[0], ids[-1])
