"""
A gateway from start to stop: the order in which its parts start, and how it drains. Start: what a crash left
is put right (`recover`), then turns and deliveries run, then the channels connect. Stop: nothing more is
taken, the turns in flight are finished or released, what is due is sent, the channels let go, files are made
durable, everything is closed. A turn that does not end in time is released: it is taken up again at the next
start, after its last finished step.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from agent_core.backoff import BackoffPolicy
from agent_core.errors import StorageUnavailable
from agent_core.language import ENGLISH, use_language
from agent_core.llm.factory import Models
from agent_core.memory_ports import MemoryPort
from agent_core.messages import InboundMessage, SessionKey
from agent_core.models import Session
from agent_core.ports import Clock, ToolPort
from channels.base import Channel
from channels.heartbeat.channel import HeartbeatChannel
from gateway.budget.budget_alerts import BudgetAlerts
from gateway.observability import metrics
from gateway.proactive.background_jobs import BackgroundJobs
from gateway.proactive.heartbeat_monitor import HeartbeatMonitor
from gateway.proactive.jobs.job_service import JobService
from gateway.proactive.jobs.scheduler import Scheduler
from gateway.proactive.owner_alerts import OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.routing import admissions, links
from gateway.routing.conversations import Conversations
from gateway.routing.crash_isolation import CrashIsolation
from gateway.routing.delivery import Delivery
from gateway.routing.intake import AcceptGate
from gateway.store.lease import LeaseKeeper, unwrap_lost_lease
from gateway.store.states import BUDGET
from gateway.store.stores import JobStore, Queue, StoreUnavailable
from gateway.store.wakeups import Wakeups
from gateway.supervision.status_report import StatusReport
from gateway.supervision.supervisor import Supervisor
from gateway.supervision.turn_watchdog import TurnWatchdog
from gateway.system.console_logins import ConsoleLogins
from gateway.system.process_tuning import trim_memory
from gateway.turns.dispatcher import SessionDispatcher
from gateway.turns.handler import TurnHandler
from gateway.turns.history_writer import HistoryWriter
from gateway.turns.out_of_band import OutOfBandTurns
from gateway.turns.post_turn import PostTurn

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import JournaledFiles
    from agent_core.tools.mcp.servers import McpServers

_RECOVER_RETRY = BackoffPolicy(first_s=1.0, cap_s=30.0)
_CLOSE_LIMIT_S = 5.0
_MAINTAIN_EVERY_S = 3600.0
_log = structlog.get_logger(__name__)


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Proactive:
    """
    The parts; see each one's own description. ``heartbeat`` is None when there is none. ``background`` runs
    until the end.
    """

    plans: JobStore
    owner_contact: OwnerContact
    notifier: OwnerNotifier
    owner_alerts: OwnerAlerts
    budget: BudgetAlerts
    jobs: JobService
    background_jobs: BackgroundJobs
    scheduler: Scheduler
    monitor: HeartbeatMonitor
    heartbeat: HeartbeatChannel | None
    tools: Callable[[Session, Sequence[InboundMessage]], list[ToolPort]]
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]]
    owner: Sequence[str]
    zone: tzinfo | None
    clock: Clock

    def channels(self) -> dict[str, tuple[Channel, str]]:
        """The channels on which nobody but the gateway itself speaks, with their batching."""
        return {} if self.heartbeat is None else {self.heartbeat.name: (self.heartbeat, "each")}

    async def state(self) -> dict[str, Any]:
        """Return the status, without texts and people. Raises `StoreUnavailable`."""
        jobs = await self.plans.jobs()
        waiting = [job for job in jobs if job.state == "active" and job.next_at is not None]
        return {
            "heartbeat": await self.monitor.state(),
            "owner": self.owner_alerts.state(),
            "schedule": {
                "jobs": len(jobs),
                "next": min(job.next_at for job in waiting if job.next_at).isoformat() if waiting else None,
                "not_run": sum(bool(job.note) for job in jobs),
            },
        }


@dataclass(frozen=True, slots=True)
class SupervisionParts:
    """The parts that run turns and watch channels; each field has its own description."""

    dispatcher: SessionDispatcher
    history: HistoryWriter
    post_turn: PostTurn
    supervisor: Supervisor
    watchdog: TurnWatchdog
    status: StatusReport


@dataclass(eq=False, kw_only=True)
class Gateway:
    """
    A gateway that runs once, with the parts chosen by `gateway.app.build`.

    Args:
        waiting: Names of questions of MCP servers with a waiting call.
        at_close: Closed at the end, in this order.
        background: Runs until the end and never fails.
        begin: Opens what only the home's daemon may touch, before the recovery.
        standing_by: Runs while waiting for the lease.
        lease: Held from start to end, its loss cancels all; None: one process.
        drain_s: The most seconds for turns in flight at a stop.
        console: Who is let into the console; None: there is none.
        language: The language of what it says to people.
    """

    wakeups: Wakeups
    store: Queue
    waiting: Container[str]
    memory: MemoryPort
    files: Callable[[], JournaledFiles]
    mcp: McpServers | None
    models: Models
    supervision: SupervisionParts
    handler: TurnHandler
    out_of_band: OutOfBandTurns
    intake: AcceptGate
    channels: Mapping[str, Channel]
    conversations: Conversations
    deliveries: Mapping[str, Delivery]
    suspects: CrashIsolation
    proactive: Proactive
    at_close: Sequence[Callable[[], Awaitable[None]]] = ()
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()
    begin: Callable[[], Awaitable[None]] = _nothing
    standing_by: Callable[[], Coroutine[Any, Any, None]] = _nothing
    lease: LeaseKeeper | None = None
    console: ConsoleLogins | None = None
    drain_s: float = 20.0
    language: str = ENGLISH

    def __post_init__(self) -> None:
        self.clock = self.proactive.clock
        supervision = self.supervision
        self.dispatcher, self.history = supervision.dispatcher, supervision.history
        self.post_turn, self.supervisor = supervision.post_turn, supervision.supervisor
        self.watchdog, self.status = supervision.watchdog, supervision.status
        self.started = anyio.Event()
        self.settled = anyio.Event()
        """Set when it is up, or stands by."""
        self._stop = anyio.Event()

    @property
    def is_standby(self) -> bool:
        """Return True if another process is the daemon of this home, or was until a moment ago."""
        return self.lease is not None and not self.lease.is_held

    @property
    def is_settled(self) -> bool:
        """Return True if the daemon is up, or stands by."""
        return (self.settled if self.is_standby else self.started).is_set()

    async def take_lease(self) -> None:
        """Become the daemon, or close; else `run` stands by. Raises LeaseTaken or StoreUnavailable."""
        if self.lease is not None:
            try:
                await self.lease.take()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._close()
                raise

    async def standby_notice(self) -> str:
        """Return, while this process stands by, a sentence that says where the daemon runs; else nothing."""
        if self.lease is None or self.lease.is_held:
            return ""
        holder = await self.lease.other_holder()
        return f"This machine stands by. The daemon runs elsewhere ({holder}): do it there."

    @property
    def stopping(self) -> bool:
        """Return True if `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Drain and end; `run` returns when that is done."""
        self._stop.set()

    async def run(self) -> None:
        """Run until `stop`, or undrained until cancelled. Raises LeaseLost or ConfigInvalid."""
        with unwrap_lost_lease(), use_language(self.language):
            if not await self._has_lease():
                return
            async with anyio.create_task_group() as keeping:
                if self.lease is not None:
                    keeping.start_soon(self.lease.run)
                await self._run()
                keeping.cancel_scope.cancel()

    async def _has_lease(self) -> bool:
        """Stand by until this process is the daemon; False: it was stopped before, and is closed."""
        is_held = self.lease is None
        try:
            if self.lease is not None and self.lease.is_held:
                await self.lease.begin()
                is_held = True
            elif self.lease is not None:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._stand_by)
                    is_held = await self.lease.wait(self._stop, self.settled)
                    tasks.cancel_scope.cancel()
            return is_held
        finally:
            if not is_held:
                with anyio.CancelScope(shield=True):
                    await self._close()

    async def _stand_by(self) -> None:
        """Begins when another process has the lease, so that this one accepts nothing that nobody has."""
        await self.settled.wait()
        await self.standing_by()

    async def _run(self) -> None:
        try:
            found = await self._recover()
            if found is None:
                return
            waiting, people = found
            self.wakeups.session.connect(self.dispatcher.handle_work)
            self.wakeups.session.connect(self.out_of_band.handle_work)
            async with anyio.create_task_group() as tasks:
                turns_ended = anyio.Event()
                tasks.start_soon(self.history.run)
                tasks.start_soon(self._dispatch, turns_ended)
                deliveries = anyio.Event()
                tasks.start_soon(self._deliver, deliveries)
                await self._wake(waiting, people)
                tasks.start_soon(self.supervisor.run)
                tasks.start_soon(self._maintain)
                tasks.start_soon(self._prune)
                for work in self.background:
                    tasks.start_soon(work)
                tasks.start_soon(self.watchdog.run)
                self.started.set()
                self.settled.set()
                await self._stop.wait()
                await self._drain(tasks, turns_ended, deliveries)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _recover(self) -> tuple[list[tuple[SessionKey, float]], dict[SessionKey, str]] | None:
        """
        Repair what a crash left, waiting for the disk, before anybody works: suspects come last.

        Returns the sessions with work, their seconds and people; None if `stop` came first.
        """
        attempt = 0
        while not self.stopping:
            try:
                await self.begin()
                await self.store.maintenance.recover()
                await admissions.load(self.store, self.conversations.access)
                await links.load(self.store.state, self.conversations.access)
                await self.store.maintenance.due_now(BUDGET)  # it may be another one
                await self.conversations.reassign_waiting(self.store.inbox, self.channels)
                await self.history.recover()
                return await self._waiting()
            except StoreUnavailable as error:
                attempt += 1
                delay_s = _RECOVER_RETRY.delay(attempt, random=random.random())
                _log.error(
                    "start.blocked", **{**error.fields, "error": str(error), "retry_in_s": round(delay_s, 1)}
                )
                with anyio.move_on_after(delay_s):
                    await self._stop.wait()
        return None

    async def _waiting(self) -> tuple[list[tuple[SessionKey, float]], dict[SessionKey, str]]:
        await self.suspects.load_suspects()
        waiting = self.suspects.suspects_last(await self.store.turns.open_sessions())
        return waiting, await self.store.turns.waiting_people()

    async def _wake(
        self, waiting: Sequence[tuple[SessionKey, float]], people: Mapping[SessionKey, str]
    ) -> None:
        for session, due_s in waiting:
            first = await self.proactive.owner_contact.is_owner_session(session)
            self.dispatcher.wake(session, after_s=due_s, first=first, person=people.get(session, ""))
            self.out_of_band.wake(session)

    async def _dispatch(self, ended: anyio.Event) -> None:
        run_session, watchdog, gate = self.handler.run_session, self.watchdog, self.suspects

        async with anyio.create_task_group() as tasks:
            # Waiting for the gate is no part of a run that may take too long.
            tasks.start_soon(self.out_of_band.run, lambda run: gate.guard(watchdog.watch(run)))
            await self.dispatcher.run(gate.guard(watchdog.guard(run_session)))
        ended.set()

    async def _deliver(self, ended: anyio.Event) -> None:
        async with anyio.create_task_group() as group:
            for delivery in self.deliveries.values():
                group.start_soon(delivery.run)
        ended.set()

    async def _maintain(self) -> None:
        """Show how the queue is, and give back the memory of what is over."""
        while True:
            try:
                metrics.show_store(await self.store.maintenance.stats())
            except StoreUnavailable as error:
                _log.warning("queue.maintenance_failed", error=str(error))
            await anyio.sleep(_MAINTAIN_EVERY_S)
            await to_thread.run_sync(trim_memory)  # after the start `gateway.app.daemon` does it

    async def _prune(self) -> None:
        while True:
            try:
                forgotten = await self.store.maintenance.prune(older_than_s=90 * 86_400.0)
                if forgotten:
                    _log.info("queue.pruned", rows=forgotten)
            except StoreUnavailable as error:
                _log.warning("queue.maintenance_failed", error=str(error))
            await anyio.sleep(_MAINTAIN_EVERY_S)

    async def _drain(self, tasks: TaskGroup, turns: anyio.Event, deliveries: anyio.Event) -> None:
        _log.info("gateway.draining", turns=len(self.dispatcher.running()))
        self.intake.close()
        self.dispatcher.stop()
        self.handler.leave_background()
        self.out_of_band.stop()
        self.suspects.stop()
        self.watchdog.stop()
        with anyio.move_on_after(self.drain_s) as limit:
            await turns.wait()
        if limit.cancelled_caught:
            _log.warning("gateway.claims_released", turns=len(self.dispatcher.running()))
        for delivery in self.deliveries.values():
            delivery.drain()
        with anyio.move_on_after(_CLOSE_LIMIT_S):
            await deliveries.wait()
        self.supervisor.stop()
        tasks.cancel_scope.cancel()

    async def _close(self) -> None:
        try:
            with anyio.move_on_after(_CLOSE_LIMIT_S):
                await self.history.sync()
        except (StoreUnavailable, StorageUnavailable) as error:
            _log.warning("history.sync_failed", error=str(error))
        for close in [channel.aclose for channel in self.channels.values()] + list(self.at_close):
            try:
                with anyio.move_on_after(_CLOSE_LIMIT_S):
                    await close()
            except Exception:  # noqa: BLE001 - one part that cannot close keeps no other from it
                _log.exception("close.failed")
        with anyio.move_on_after(_CLOSE_LIMIT_S):
            if self.lease is not None:  # last of all: from now on another process may begin
                await self.lease.release()
            await self.store.aclose()
        _log.info("gateway.stopped")
