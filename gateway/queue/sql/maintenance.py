"""The start, the waits that end, forgetting, leases, and the state of the database.

The SQL is in ``maintenance_sql.py``, ``crash_records.py`` and ``leases.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from agent_core.messages import SessionKey
from gateway.queue.ports import IGNORED_S, QUARANTINE_S, Cluster, Lease, StoreStats, Suspect
from gateway.queue.sql import cluster, crash_records, leases, maintenance_sql, receipts
from gateway.queue.sql.approvals import forget_withdrawn
from gateway.queue.sql.base import Part
from gateway.queue.sql.codec import session_or_none
from gateway.queue.sql.engine import ALONE, NOTHING, Locks, named_lock
from gateway.queue.sql.locking import of_inbox_between
from gateway.queue.sql.stats import counted

_PRUNE_ROWS = 2000


class SqlMaintenance(Part):
    """Implements `gateway.queue.ports.MaintenanceStore`."""

    async def recover(self) -> None:
        """Nobody works on anything at this moment."""
        now, all_rows = self._now(), ("", ())
        await self._writer.call(
            "recover", lambda db: maintenance_sql.recover(db, now, all_rows, all_rows), locks=ALONE
        )

    async def suspects(self) -> list[Suspect]:
        """What is still open and was in flight when the process died."""
        found = await self._reader.call("suspects", crash_records.suspects)
        return [
            Suspect(session, record, turn, outbox_id)
            for turn, outbox_id, text, record in found
            if (session := session_or_none(text)) is not None
        ]

    async def due_now(self, waits_for: str) -> None:
        """Let nothing wait for this any more."""
        await self._writer.call("due_now", lambda db: maintenance_sql.due_now(db, waits_for), locks=NOTHING)

    async def stats(self) -> StoreStats:
        """Counts and ages."""
        now = self._now()
        return await self._reader.call("stats", lambda db: counted(db, now))

    async def prune(self, *, older_than_s: float) -> int:
        """Forget payloads of rows that ended longer ago than this; their keys stay."""
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
        for last, before, find, forget, locks in (
            (last_inbox, ignored, maintenance_sql.ignored_long_ago, maintenance_sql.keep_digests, _of_rows),
            (last_inbox, ended, maintenance_sql.ended_inbox, maintenance_sql.forget_inbox, _alone),
            (last_outbox, ended, maintenance_sql.ended_outbox, maintenance_sql.forget_outbox, _alone),
        ):
            for first in range(1, last + 1, _PRUNE_ROWS):
                until = first + _PRUNE_ROWS - 1
                found = await self._reader.call(
                    "prune", partial(find, first=first, last=until, before=before)
                )
                for ids in maintenance_sql.pages(found):
                    forgotten += await self._writer.call(
                        "prune", partial(forget, ids=ids, before=before), locks=locks(ids)
                    )
        return forgotten

    async def lease(
        self, name: str, *, holder: str, ttl_s: float, instead_of: Collection[str] = ()
    ) -> int | None:
        """Get a lease: its fence, or None if it is taken."""
        at = self._database.lease_clock()
        return await self._writer.call(
            "lease",
            lambda db: leases.lease(db, name, holder, ttl_s, at(db), instead_of),
            locks=_of_lease(name),
        )

    async def renew_lease(self, name: str, *, holder: str, fence: int, ttl_s: float) -> bool:
        """Hold it for longer, with the same fence."""
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
        """Change nothing any more without this lease."""
        if self._database.fencing is not None:
            self._database.fencing.work_under(name, holder, fence)

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give it back early; nothing happens if it is not held."""
        if self._database.fencing is not None:
            await self._database.fencing.idle()
        await self._writer.call(
            "release_lease", lambda db: leases.release_lease(db, name, holder), locks=_of_lease(name)
        )

    async def cluster(self) -> Cluster:
        """Who lives and has which account."""
        at = self._database.lease_clock()
        return await self._reader.call("cluster", lambda db: cluster.cluster(db, at(db)))

    async def take_accounts(
        self, names: Sequence[str], *, configured: Mapping[str, str], holder: str
    ) -> list[str]:
        """Take those of these accounts that no living process has."""
        now, at = self._now(), self._database.lease_clock()
        return await self._writer.call(
            "take_accounts",
            lambda db: cluster.take(db, names, configured, holder, at(db), now),
            locks=[*ALONE, named_lock("lease", cluster.EVERYTHING)],
        )

    async def give_account(self, name: str, *, holder: str) -> None:
        """Let another process take an account."""
        await self._writer.call(
            "give_account",
            lambda db: cluster.give(db, name, holder),
            locks=_of_lease(cluster.EVERYTHING),
        )

    async def begin_worker(self, holder: str) -> None:
        """Count this process as a worker."""
        await self._writer.call(
            "begin_worker",
            lambda db: cluster.begin_worker(db, holder),
            locks=_of_lease(cluster.EVERYTHING),
        )

    async def stop_worker(self, holder: str) -> None:
        """Count this process as a worker no more."""
        await self._writer.call(
            "stop_worker",
            lambda db: cluster.stop_worker(db, holder),
            locks=_of_lease(cluster.EVERYTHING),
        )

    async def end_workers(self) -> list[SessionKey]:
        """End the workers that are dead."""
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
        """For how long the disk has not come back from the work in hand; for liveness checks and metrics."""
        return max(self._writer.stalled_s, self._reader.stalled_s)


def _of_lease(name: str) -> Locks:
    return [named_lock("lease", cluster.lock_of(name))]


def _alone(_: Sequence[int]) -> Locks:
    """They are forgotten by a statement that looks at each of them again."""
    return NOTHING


def _of_rows(ids: Sequence[int]) -> Locks:
    """Accepting looks for the digest first and inserts then, so a row must not become one in between."""
    return of_inbox_between(ids[0], ids[-1])
