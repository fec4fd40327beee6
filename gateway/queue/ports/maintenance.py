"""The start, the waits that end, forgetting, and the state of the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from agent_core.messages import SessionKey
from gateway.queue.model import Cluster, Lease, Suspect
from gateway.queue.states import StoreStats


class MaintenanceStore(Protocol):
    """The start, the waits that end, forgetting, and the state of the database."""

    async def recover(self) -> None:
        """
        Once at start, before anything else: running turns become ready again, what was ``sending`` becomes
        pending, what is uncertain stays so (also if it was just being sent again). May be repeated, also
        after a crash in the middle. What was running or sending is remembered as in flight at a death.
        """
        ...

    async def suspects(self) -> list[Suspect]:
        """
        The turns and outbox rows that were in flight at a death and are still open. What is dead-lettered
        leaves this list, and is no suspect any more if it is tried again.
        """
        ...

    async def due_now(self, waits_for: str) -> None:
        """
        What a turn or an outbox row waits for is there: whatever was put back with this ``waits_for`` is due
        at once.
        """
        ...

    async def stats(self) -> StoreStats:
        """Counts and ages."""
        ...

    async def prune(self, *, older_than_s: float) -> int:
        """
        Forget payloads of rows that ended longer ago than this; their keys stay. Returns how many.

        Of rows that were ignored longer ago than this or than `IGNORED_S` only a digest of the key stays,
        which recognises the message if it comes again; nothing else finds them any more. What nobody let in
        for `QUARANTINE_S` is IGNORED as ``quarantine_expired``.
        """
        ...

    async def last_ids(self) -> tuple[int, int]:
        """The highest ids of inbox and outbox."""
        ...

    @property
    def identity(self) -> str:
        """The random text that tells this database from every other; a secret."""
        ...

    @property
    def refusing(self) -> bool:
        """Whether the newest commit was refused by the disk."""
        ...

    @property
    def stalled_s(self) -> float:
        """For how long the disk has not come back from a call; for liveness checks and metrics."""
        ...

    async def lease(
        self, name: str, *, holder: str, ttl_s: float, instead_of: Collection[str] = ()
    ) -> int | None:
        """
        Get a lease: its fence (it grows with each new holder), or None if it is taken.

        It ends after ``ttl_s`` by the clock that all holders share: that of the database's server, if it has
        one. A holder of ``instead_of`` is known to be dead, so that its lease need not end first.
        """
        ...

    async def renew_lease(self, name: str, *, holder: str, fence: int, ttl_s: float) -> bool:
        """Hold a lease for longer, with the same fence. False: it is somebody else's, or nobody's."""
        ...

    async def leases(self) -> list[Lease]:
        """What is held at this moment."""
        ...

    def work_under(self, name: str, *, holder: str, fence: int) -> None:
        """
        Change nothing any more without this lease: as soon as another holder has it, everything that would
        change something raises `Fenced`. Nothing happens where one process has the database for itself.
        """
        ...

    async def release_lease(self, name: str, *, holder: str) -> None:
        """Give it back early, behind what is under way; nothing happens if it is not held."""
        ...

    async def cluster(self) -> Cluster:
        """
        The processes that live, each under a lease of its own, and which of them has which account.

        A lease for the whole database is not given while a process lives, and the other way round.
        """
        ...

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
        ...

    async def give_account(self, name: str, *, holder: str) -> None:
        """Let another process have an account of which nothing is in flight any more."""
        ...

    async def begin_worker(self, holder: str) -> None:
        """
        Count this process, which holds a lease of its own and takes no account, as a worker until that ends.

        A worker claims with `gateway.queue.sql.shared_turns`, and each of its turns is held under its name:
        whoever takes an account leaves those alone.
        """
        ...

    async def stop_worker(self, holder: str) -> None:
        """
        Count this process as a worker no more, because it begins nothing from now on: nobody leaves anything
        to it. What it has in hand stays its own until its lease ends.
        """
        ...

    async def end_workers(self) -> list[SessionKey]:
        """
        End the workers whose lease is over: whatever they still try raises `Fenced`, and the turns that they
        had in hand are recovered (`recover`), each worker's as one death. Returns the sessions, which no
        signal tells.
        """
        ...
