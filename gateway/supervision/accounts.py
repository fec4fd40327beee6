"""
Which accounts this process works for, where several processes work on one database.

Theory of operation. Every process is the whole gateway, and an account is a channel of the settings that one
of them has at a time (`gateway.queue.sql.cluster`). Whoever has it receives by it, sends by it, and works on
the sessions of its people. So inside of one account everything is as with one process. What happens once over
all processes (the heartbeat, questions and alerts to the owner, retention) and the terminal have a holder,
too: `REST`. It goes along with the account by which the owner is written to, because only who has that
account knows whether somebody else reads along there.

With ``owner.conversation: shared`` the accounts of the owner and `REST` are one assignment, of one process.
The one conversation belongs to no account, so it is worked on with `REST`; and a turn of it types, streams,
asks, is stopped and looks who reads along on whichever account its question came by. Only who has `REST`
takes the others of its assignment, so they cannot end up in two processes.

Each process looks every few seconds, and as soon as another one says that it has let go. It takes what nobody
living has, up to its share: all accounts divided by the processes that live and look, too, rounded up. With
more than its share it gives one back at a time, whose channel is up: nothing new is begun by it, turns and
sends in hand come to their end, then the channel lets go, and only then another process may have it. If
something takes too long, all goes on as before, and it is tried again later.

A process that looks need not be one that takes an account: it may fail at its start again and again, have
died a moment ago, or have other settings. So nothing is given back before the others have been seen for a
while. What nobody takes is taken beyond the share: at the second look what a dead process has left, later
what was given back, which is then kept for longer each time.

Signals stay in the process that commits. How processes hear of each other's is in `other_processes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from agent_core.messages import SessionKey
from gateway.observability import metrics
from gateway.queue.lease import LeaseKeeper, process_of, told
from gateway.queue.sql.cluster import EVERYBODY, FREED, REST
from gateway.queue.stores import Cluster, MaintenanceStore, StoreUnavailable
from gateway.queue.wakeups import RunSession, Wakeups
from gateway.supervision.account_handover import Flow
from gateway.supervision.other_processes import OtherProcesses, Others

_LATER_S = 60.0
_LATEST_S = 16 * _LATER_S
_STEADY_LOOKS = 2
"""So many looks must find the same processes before something is given back to them."""
_LEFT_LOOKS = 1
"""What more looks than this have found with nobody is left over: it does not count for the share."""
_OFFERED_LOOKS = 5
"""The same of what this process has given back."""
_log = structlog.get_logger(__name__)
Run = Callable[[], Coroutine[Any, Any, None]]
_Assignment = tuple[str, ...]


@dataclass(slots=True)
class _Account:
    held: bool = False
    leaving: bool = False
    sessions: int = 0
    tasks: int = 0
    not_before: float = 0.0
    left_looks: int = 0
    returned: int = 0
    offered: bool = False
    held_at: float = -math.inf

    @property
    def is_left(self) -> bool:
        """Whether nobody else takes it."""
        return self.left_looks > (_OFFERED_LOOKS if self.offered else _LEFT_LOOKS)


def _always(_: str) -> bool:
    return True


def share_of(accounts: int, processes: int) -> int:
    """The most accounts that one of these processes takes."""
    return math.ceil(accounts / max(1, processes))


class Accounts:
    """
    The accounts of one process.

    Args:
        lease: That of this process; lost with it are all accounts.
        configured: The accounts of the settings: the channel of each, and the bot's address there.
        together: Those that are one assignment, and with them what happens once.
        drain_s: How long turns and sends of an account that is given back may take.
        owners: Finds the channel by which the owner is written to. What happens once goes with its account.
        others: The other processes.
    """

    def __init__(
        self,
        maintenance: MaintenanceStore,
        lease: LeaseKeeper,
        configured: Mapping[str, str],
        *,
        together: Collection[str] = (),
        look_every_s: float,
        drain_s: float,
        owners: Callable[[], Awaitable[str]],
        others: OtherProcesses,
    ) -> None:
        self._others = others
        self._maintenance = maintenance
        self._lease = lease
        self._configured = configured
        self._names = sorted(configured)
        one = tuple(sorted({*together, REST})) if together else ()
        self._bound = bool(one)
        self._assignments = [one] * bool(one) + [(name,) for name in self._names if name not in one]
        self._owners = owners
        self._is_up: Callable[[str], bool] = _always
        self._look_every_s = look_every_s
        self._drain_s = drain_s
        self._accounts = {name: _Account() for name in (*self._names, REST)}
        self._changed = anyio.Event()
        self._giving: _Assignment = ()
        self._first = ""
        self._steady_looks = 0
        self._give_after = -math.inf
        self._returned = 0
        self._stopped = False
        self._freed = False

    @property
    def found(self) -> Cluster:
        """The result of the last look."""
        return self._others.found

    def has(self, channel: str) -> bool:
        """Whether this process may start something for a channel."""
        account = self._of(channel)
        return account.held and not account.leaving

    def runs(self, channel: str) -> bool:
        """Whether this process works for a channel, perhaps only until the work in progress ends."""
        return self._of(channel).held

    def tell_of(self, wakeups: Wakeups) -> None:
        """Notify the other processes of what this one commits for their accounts."""
        wakeups.session.connect(lambda work: self._tell_other(self.of(work.session.channel)))
        wakeups.outbox.connect(lambda channel: self._tell_other(self._sent_by(channel)))
        wakeups.drafts.connect(lambda channel: self._tell_other(REST if channel else None))
        wakeups.jobs.connect(lambda job: self._tell_other(EVERYBODY if job else None))
        wakeups.owner.connect(lambda _: self._tell_other(EVERYBODY))
        wakeups.alert_kept.connect(lambda _: self._tell_other(REST))

    def _sent_by(self, channel: str) -> str:
        """By what a row of the outbox goes out; what is spoken goes out by any account."""
        return channel if channel in self._accounts else EVERYBODY

    def _tell_other(self, name: str | None) -> None:
        if name is None or self._others.alone:
            return
        mine = all(account.held for account in self._accounts.values())
        if not (mine if name == EVERYBODY else self.has(name)):
            self._others.tell(name)

    def hear(self, name: str | None) -> None:
        """
        Ask the queue soon what is due, or look who has what, because another process says so; None: because
        one may have.

        Returns at once. It does nothing about accounts of others.
        """
        if name == FREED:
            self._freed = True
            self._others.call()
        elif name is not None and name in self._configured:
            if self.runs(name):
                self._others.call(name)
        elif name in (None, EVERYBODY) or self.runs(REST):
            self._others.call()

    def elsewhere(self, channel: str) -> str:
        """The other process that has the account of a channel, as people read it; empty: there is none."""
        owner = self.found.owners.get(self.of(channel))
        return "" if owner in {None, self.holder} else process_of(str(owner))

    @property
    def holder(self) -> str:
        """The name of this process."""
        return self._lease.holder

    async def state(self) -> dict[str, Any]:
        """For ``status``: who works on the database and for what. Raises `StoreUnavailable`."""
        return told(await self._maintenance.cluster(), configured=self._names, here=self.holder)

    def of(self, channel: str) -> str:
        """The account to which a channel belongs."""
        return channel if channel in self._accounts else REST

    def _of(self, channel: str) -> _Account:
        return self._accounts[self.of(channel)]

    def over(self, run_session: RunSession) -> RunSession:
        """``run_session`` for the sessions of this process; others are left alone."""

        async def run(session: SessionKey) -> float | None:
            if not self.has(session.channel):
                return None
            account = self._of(session.channel)
            account.sessions += 1
            try:
                return await run_session(session)
            finally:
                account.sessions -= 1
                self._tell()

        return run

    def chosen(self, due: Sequence[tuple[SessionKey, bool]]) -> list[tuple[SessionKey, bool]]:
        """The due sessions that are for this process."""
        return [each for each in due if self.has(each[0].channel)]

    def ours(
        self, open_sessions: Callable[[], Awaitable[Sequence[tuple[SessionKey, float]]]]
    ) -> Callable[[], Awaitable[Sequence[tuple[SessionKey, float]]]]:
        """``open_sessions`` without those of other processes."""

        async def found() -> Sequence[tuple[SessionKey, float]]:
            return [each for each in await open_sessions() if self.has(each[0].channel)]

        return found

    async def while_held(self, channel: str, run: Run) -> None:
        """
        Run something whenever this process has the account of a channel.

        Returns when it has ended by itself, and after `stop` where the account is another process's.
        """
        account, ended = self._of(channel), False

        async def to_its_end(scope: anyio.CancelScope) -> None:
            nonlocal ended
            await run()
            ended = True
            scope.cancel()

        while not ended:
            await self._until(lambda: account.held or self._stopped)
            if not account.held:
                return
            account.tasks += 1
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(to_its_end, tasks.cancel_scope)
                    await self._until(lambda: not account.held)
                    tasks.cancel_scope.cancel()
            finally:
                account.tasks -= 1
                self._tell()

    def stop(self) -> None:
        """Take and give back no more accounts: the process ends, and its lease with it."""
        self._stopped = True
        self._tell()

    async def run(
        self,
        flows: Sequence[Flow],
        channels: Collection[str],
        *,
        is_up: Callable[[str], bool] = _always,
        taken: Callable[[Collection[str]], Awaitable[None]],
        others: Others,
    ) -> None:
        """
        Look until cancelled. Raises nothing but cancellation.

        Args:
            flows: Held up while an account is given back.
            is_up: Whether a channel is connected. One that is not is only beginning, and is not given back.
            taken: Is told of accounts that this process has from now on.
            others: Looks for what other processes have written for the accounts of this one.
        """
        new: set[str] = set()
        self._is_up = is_up
        next_look_at = anyio.current_time() + self._look_every_s
        async with anyio.create_task_group() as tasks:
            while True:
                called = await self._others.called_before(next_look_at)
                looks, self._freed = self._freed or not called, False
                try:
                    if looks:
                        new |= await self.look()
                        if new:
                            await taken(new)
                            new = set()
                        self._give_surplus(tasks, flows, channels)
                    is_new = self._steady_looks == 0
                    if called or self._others.is_due(others_are_new=is_new):
                        await self._others.ask(others, called=called)
                except StoreUnavailable as error:
                    _log.warning("accounts.unknown", error=str(error))
                if looks:
                    next_look_at = anyio.current_time() + self._look_every_s

    async def look(self) -> set[str]:
        """Find out who has which account, and take free ones; returns those. Raises `StoreUnavailable`."""
        before, self._others.found = self.found, await self._maintenance.cluster()
        is_steady = self.found.takers == before.takers
        self._steady_looks = self._steady_looks + 1 if is_steady else 0
        wanted = [] if self._stopped or self.holder not in self.found.processes else await self._wanted()
        # Also what was taken by a call of which nobody heard; whether it is ours still is seen under a lock.
        wanted += [name for name in sorted(self._mine()) if not self._accounts[name].held]
        new: set[str] = set()
        wanted = [name for name in dict.fromkeys(wanted) if name not in self._giving]
        if wanted or self._is_new():
            got = await self._maintenance.take_accounts(
                wanted, configured=self._configured, holder=self.holder
            )
            new = {name for name in got if not self._accounts[name].held}
            self._others.found = await self._maintenance.cluster()
        for name in new:
            self._hold(self._accounts[name])
        metrics.ACCOUNTS_UNOWNED.set(sum(name not in self.found.owners for name in self._names))
        if new:
            _log.info("accounts.taken", accounts=sorted(new), processes=len(self.found.processes))
            self._tell()
        return new

    def _is_new(self) -> bool:
        """Whether the others do not know yet that this process takes accounts."""
        found = self.found
        return not self._stopped and self.holder in found.processes and self.holder not in found.takers

    def _hold(self, account: _Account) -> None:
        account.held, account.held_at = True, anyio.current_time()
        if account.offered and account.is_left:
            self._give_after = anyio.current_time() + min(_LATER_S * 2**self._returned, _LATEST_S)
            self._returned += 1
            account.returned = self._returned
        account.left_looks, account.offered = 0, False

    def _note(self, account: _Account, owner: str | None) -> None:
        account.left_looks = account.left_looks + 1 if owner is None else 0
        account.offered = account.offered and owner in {None, self.holder}
        if owner not in {None, self.holder}:
            account.returned = self._returned = 0

    def _is_left(self, assignment: _Assignment) -> bool:
        return any(self._accounts[name].is_left for name in assignment)

    def _mine(self) -> set[str]:
        """What the database says is ours, of what is configured."""
        return {
            name
            for name, holder in self.found.owners.items()
            if holder == self.holder and name in self._accounts
        }

    def _surplus_of(self, mine: set[str]) -> int:
        """How many assignments of these are too many; less than 0: this process may take some."""
        share = share_of(len(self._assignments), len({*self.found.takers, self.holder}))
        return sum(not mine.isdisjoint(one) for one in self._assignments) - share

    def _ready(self, assignment: _Assignment) -> bool:
        now = anyio.current_time()
        return all(self._accounts[name].not_before <= now for name in assignment)

    def _free(self, assignment: _Assignment) -> list[str]:
        """What this process may take of an assignment."""
        owners = self.found.owners
        bound = REST in assignment and owners.get(REST) not in (None, self.holder)
        return (
            []
            if bound or not self._ready(assignment)
            else [each for each in assignment if each not in owners]
        )

    async def _wanted(self) -> list[str]:
        owners, mine = self.found.owners, self._mine()
        self._first = first = await self._owners()
        for name in self._names:
            self._note(self._accounts[name], owners.get(name))
        begun = [one for one in self._assignments if not mine.isdisjoint(one)]
        others = [one for one in self._assignments if one not in begun and self._free(one)]
        others.sort(key=lambda one: first not in one)
        room = max(0, -self._surplus_of(mine))
        more = others[:room] + [one for one in others[room:] if self._is_left(one)]
        wanted = [name for one in (*begun, *more) for name in self._free(one)]
        is_here = first not in self._names or first in wanted or owners.get(first) == self.holder
        if REST not in owners and is_here and not self._bound:
            wanted.append(REST)
        return wanted

    # ── giving back ──

    def _give_surplus(self, tasks: TaskGroup, flows: Sequence[Flow], channels: Collection[str]) -> None:
        if self._stopped or self._giving or self._steady_looks < _STEADY_LOOKS:
            return
        self._giving = self._surplus()
        if self._giving:
            given = [each for each in channels if self.of(each) in self._giving]
            tasks.start_soon(self._give, self._giving, flows, given)

    def _surplus(self) -> _Assignment:
        """What another process should have."""
        mine = self._mine()
        with_owner = self.found.owners.get(self._first)
        elsewhere = self._first in self._names and with_owner not in (None, self.holder)
        if REST in mine and elsewhere and not self._bound and self._ready((REST,)):
            return (REST,)
        ready = [
            one
            for one in self._assignments
            if not mine.isdisjoint(one) and self._ready(one) and self._is_settled(one)
        ]
        ready.sort(key=lambda one: (self._first in one, self._sessions_of(one)))
        ready.sort(key=self._returned_of)  # what nobody took is tried last
        may_give = self._surplus_of(mine) > 0 and anyio.current_time() >= self._give_after
        return ready[0] if ready and may_give else ()

    def _is_settled(self, assignment: _Assignment) -> bool:
        """Whether its channels are up, or have not come up for so long that others may try."""
        long_ago = anyio.current_time() - _LATER_S
        return all(
            name == REST or self._is_up(name) or self._accounts[name].held_at < long_ago
            for name in assignment
        )

    def _returned_of(self, assignment: _Assignment) -> int:
        return max(self._accounts[name].returned for name in assignment)

    def _sessions_of(self, assignment: _Assignment) -> int:
        return sum(self._accounts[name].sessions for name in assignment)

    async def _give(self, assignment: _Assignment, flows: Sequence[Flow], channels: Sequence[str]) -> None:
        accounts = [self._accounts[name] for name in assignment]
        with self._held_up(accounts, flows, channels):
            with anyio.move_on_after(self._drain_s) as limit:
                await self._until(lambda: self._sessions_of(assignment) == 0)
                for flow in flows:
                    for channel in channels:
                        await flow.quiet(channel)
            if limit.cancelled_caught:
                for account in accounts:
                    account.not_before = anyio.current_time() + _LATER_S
                busy = self._sessions_of(assignment)
                _log.info("accounts.still_busy", accounts=assignment, sessions=busy)
                return
            for account in accounts:
                account.held = False
            self._tell()
            await self._until(lambda: not any(account.tasks for account in accounts))
            for name in sorted(assignment, key=lambda name: name == REST):
                await self._given(name)
                self._accounts[name].offered = True
            self._others.tell(FREED)
            _log.info("accounts.given_back", accounts=assignment)

    @contextmanager
    def _held_up(
        self, accounts: Sequence[_Account], flows: Sequence[Flow], channels: Sequence[str]
    ) -> Iterator[None]:
        """Begin nothing by these accounts meanwhile."""
        for account in accounts:
            account.leaving = True
        for flow in flows:
            for channel in channels:
                flow.hold(channel)
        try:
            yield
        finally:
            for account in accounts:
                account.leaving = False
            self._others.missed = True  # what came meanwhile was not begun
            for flow in flows:
                for channel in channels:
                    flow.go_on(channel)
            self._giving = ()

    async def _given(self, name: str) -> None:
        while True:
            try:
                await self._maintenance.give_account(name, holder=self.holder)
            except StoreUnavailable as error:
                _log.warning("accounts.not_given_back", account=name, error=str(error))
                await anyio.sleep(self._look_every_s)
            else:
                return

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
