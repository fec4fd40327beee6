"""
Which sessions a worker takes: the counterpart of `accounts.py` in a process that never has an account.

Theory of operation. What waits for a worker is told by the daemons that have accounts (``signals.py``), and
looked for every two seconds at most. A hash of session and living workers says in which order they take what
is found, each two seconds after the one before, so that they seldom meet. The claim decides: a session that
another process works on is not given. A worker takes no more than it has places for and as many again, so
that the others get the rest. As long as it has most of that in hand it does not look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

import anyio
import structlog

from agent_core.messages import SessionKey
from gateway.queue.lease import LeaseKeeper, process_of, told
from gateway.queue.model import Cluster
from gateway.queue.sql.cluster import EVERYBODY, FREED, REST
from gateway.queue.stores import MaintenanceStore, StoreUnavailable
from gateway.queue.wakeups import RunSession, Wakeups
from gateway.supervision.account_handover import Flow
from gateway.supervision.accounts import Run
from gateway.supervision.other_processes import OtherProcesses, Others
from gateway.supervision.signals import WORK

_NEXT_AFTER_S = 2.0
_log = structlog.get_logger(__name__)


class WorkerSessions:
    """
    The sessions that a worker works on; to a gateway it is what `Accounts` is to a daemon with accounts.

    Args:
        others: The other processes.
    """

    is_worker = True

    def __init__(
        self,
        maintenance: MaintenanceStore,
        lease: LeaseKeeper,
        configured: Collection[str],
        *,
        places: int,
        look_every_s: float,
        others: OtherProcesses,
    ) -> None:
        self._maintenance = maintenance
        self._lease = lease
        self._configured = configured
        self._most = 2 * places
        self._look_every_s = look_every_s
        self._others = others
        self._seen: dict[SessionKey, float] = {}
        """Since when what waits is known."""
        self._in_hand: set[SessionKey] = set()
        self._stopped = anyio.Event()

    def tell_of(self, wakeups: Wakeups) -> None:
        """Notify the daemons with accounts of what this process commits for them."""
        wakeups.session.connect(lambda work: self._tell(work.session.channel))
        wakeups.outbox.connect(
            lambda channel: self._tell(channel if self.is_configured(channel) else EVERYBODY)
        )
        wakeups.drafts.connect(lambda channel: self._tell(REST if channel else None))
        wakeups.owner.connect(lambda _: self._tell(EVERYBODY))
        wakeups.alert_kept.connect(lambda _: self._tell(REST))
        wakeups.history.connect(self._others.tell_growth)

    def _tell(self, name: str | None) -> None:
        if name is not None:
            self._others.tell(name)

    def hear(self, name: str | None) -> None:
        """Look for work soon; returns at once."""
        if name in (None, WORK, EVERYBODY) or self.is_configured(name):
            if self._has_room():
                self._others.call()
            else:
                self._others.missed = True

    @property
    def found(self) -> Cluster:
        """The result of the last look."""
        return self._others.found

    def is_configured(self, channel: str | None) -> bool:
        """Whether the settings have an account of this name."""
        return channel in self._configured

    @property
    def holder(self) -> str:
        """The name of this process."""
        return self._lease.holder

    async def state(self) -> dict[str, Any]:
        """For ``status``: who works on the database and for what. Raises `StoreUnavailable`."""
        return told(await self._maintenance.cluster(), configured=sorted(self._configured), here=self.holder)

    def elsewhere(self, channel: str) -> str:
        """The process that has the account of a channel, as people read it; empty: there is none."""
        owners = self.found.owners
        owner = owners.get(channel if self.is_configured(channel) else REST)
        return "" if owner is None else process_of(owner)

    def has(self, channel: str) -> bool:
        """Say no: a worker has no account."""
        return False

    def leaves(self, _: object) -> bool:
        """Say no: a worker leaves nothing to others."""
        return False

    def offer(self) -> None:
        """Do nothing: others find what this process has no place for."""

    def ours(
        self, _: Callable[[], Awaitable[Sequence[tuple[SessionKey, float]]]]
    ) -> Callable[[], Awaitable[Sequence[tuple[SessionKey, float]]]]:
        """Nothing: a waiting session is a worker's only after it has taken it."""

        async def found() -> Sequence[tuple[SessionKey, float]]:
            return []

        return found

    def over(self, run_session: RunSession) -> RunSession:
        """``run_session``; its end makes room for another one."""

        async def run(session: SessionKey) -> float | None:
            self._in_hand.add(session)
            try:
                return await run_session(session)
            finally:
                self._in_hand.discard(session)
                if self._others.missed and self._has_room():
                    self._others.call()

        return run

    def chosen(self, due: Sequence[tuple[SessionKey, bool]]) -> list[tuple[SessionKey, bool]]:
        """The due sessions that this process takes now; out-of-band turns are for the account's daemon."""
        now = anyio.current_time()
        waiting = [session for session, overtakes in due if not overtakes and session not in self._in_hand]
        self._seen = {session: self._seen.get(session, now) for session in waiting}
        before = {session: _workers_before(self.holder, session, self.found.workers) for session in waiting}
        mine = [one for one in waiting if now - self._seen[one] >= before[one] * _NEXT_AFTER_S]
        room = max(0, self._most - len(self._in_hand))
        taken = sorted(mine, key=before.__getitem__)[:room]
        for session in taken:
            del self._seen[session]
        self._in_hand.update(taken)
        self._others.missed |= bool(self._seen)
        return [(session, False) for session in taken]

    def _has_room(self) -> bool:
        """Whether it is worth to look for more: half of what is in hand at most only waits for its place."""
        return self._most - len(self._in_hand) >= max(1, self._most // 4)

    async def while_held(self, _channel: str, _run: Run) -> None:
        """Run nothing; returns after `stop`."""
        await self._stopped.wait()

    def stop(self) -> None:
        """Take nothing more, and give back what was taken."""
        self._stopped.set()
        self._others.call()

    async def _leave(self) -> None:
        """Let the daemons with accounts know that this one begins nothing more."""
        try:
            await self._maintenance.stop_worker(self.holder)
        except StoreUnavailable as error:  # they see it when the lease ends
            _log.warning("worker.not_left", error=str(error))
        self._tell(FREED)

    async def run(
        self,
        _flows: Sequence[Flow],
        _channels: Collection[str],
        *,
        is_up: Callable[[str], bool] | None = None,
        taken: Callable[[Collection[str]], Awaitable[None]],
        others: Others,
    ) -> None:
        """
        Look until `stop` or cancellation. Raises nothing else.

        Args:
            is_up: Never asked.
            taken: Never called.
            others: Wakes what is `chosen`.
        """
        next_look_at = anyio.current_time() + self._look_every_s
        while True:
            called = await self._others.called_before(next_look_at)
            if self._stopped.is_set():
                await self._leave()
                return
            try:
                before = self.found.workers
                if not called:
                    await self.look()
                are_new = before != self.found.workers
                if called or self._others.is_due(others_are_new=are_new):
                    await self._others.ask(others, called=called)
            except StoreUnavailable as error:
                _log.warning("worker.blind", error=str(error))
            if not called:
                next_look_at = anyio.current_time() + self._look_every_s

    async def look(self) -> set[str]:
        """Find out which processes live; a worker takes no account. Raises `StoreUnavailable`."""
        self._others.found = await self._maintenance.cluster()
        return set()


def _workers_before(worker: str, session: SessionKey, workers: Iterable[str]) -> int:
    """
    How many of these workers begin with a session before this one does.

    All of them find the same order, so they seldom meet at a claim. With a worker that comes or goes only the
    sessions change hands that it gets or had (rendezvous hashing, https://doi.org/10.1109/90.663936).
    """

    def weight(worker: str) -> bytes:
        return hashlib.blake2b(f"{worker} {session}".encode("utf-8", "surrogatepass")).digest()

    mine = weight(worker)
    return sum(weight(other) > mine for other in workers)
