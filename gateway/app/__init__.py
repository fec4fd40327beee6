"""
The composition root. It and its parts know every concrete class, and nothing else does.

Nothing is connected before `Gateway.run`; only the database is opened: a damaged one is told before all else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from agent_core.messages import SessionKey
from gateway.app.account_state import (
    AccountFolders,
    checked_account_state,
    closing,
    folders_of,
    open_account_state,
)
from gateway.app.agent import AgentParts, build_agent
from gateway.app.channels import RoutingParts, build_accounts, build_routing, watch_channels
from gateway.app.environment import Configured, Environment, Overrides
from gateway.app.proactive import build_proactive
from gateway.app.queue import Opened, accounts_under, guard_against_rollback, open_queue, take_lease
from gateway.app.speech import SpeechParts, build_speech
from gateway.app.supervision import SupervisionParts, build_supervision
from gateway.app.turns import TurnParts, build_turns
from gateway.errors import ConfigInvalid
from gateway.queue.lease import LeaseKeeper
from gateway.queue.opening import calls_in_flight, memory_beside, notifications_beside
from gateway.queue.ports import Queue
from gateway.queue.rollback_guard import RollbackGuard
from gateway.routing.acknowledgements import StaleAcknowledgements
from gateway.routing.attachment_retention import AttachmentSweeper
from gateway.routing.inbox import IntakeGate
from gateway.routing.typing_for_workers import TypingForWorkers
from gateway.settings import Settings
from gateway.supervision.accounts import Accounts
from gateway.supervision.gateway import Gateway, Proactive
from gateway.supervision.signals import Signals, Told
from gateway.system.home import Home
from gateway.system.process_role import ProcessRole
from gateway.turns.deferral_wakeups import DeferralWakeups

if TYPE_CHECKING:
    from gateway.queue.postgres.account_state import AccountState
    from gateway.queue.postgres.notifications import Notifications
    from gateway.supervision.worker_sessions import WorkerSessions

__all__ = ["Overrides", "build"]

_NO_WORKER = (
    "a worker has no account and works on the queue of daemons that have some: `squidbot run --role worker`"
    " needs gateway.store: postgresql://…, the same as theirs"
)


def _all(_: str) -> bool:
    return True


async def build(
    settings: Settings,
    home: Home,
    overrides: Overrides = Overrides(),  # noqa: B008 - a frozen value
    role: ProcessRole = ProcessRole.ALL,
) -> Gateway:
    """
    Put a gateway together.

    Raises:
        StoreUnusable: The database is damaged or too new.
        StateUnusable: The home folder cannot be used.
        StoreUnavailable: Not now.
        LeaseTaken, LeaseLost: Somebody needs the database alone.
        ConfigInvalid: The settings cannot be for such a process.
    """
    if role is ProcessRole.WORKER and settings.store_url is None:
        raise ConfigInvalid(_NO_WORKER)
    env = Environment.of(settings, home, overrides, role)
    async with AsyncExitStack() as failed:
        opened = await open_queue(env)
        failed.push_async_callback(_released, opened.queue.aclose)
        # A worker has no account whose login or keys it could need.
        state = None if env.is_worker else await checked_account_state(settings, home, opened.queue)
        if state is not None:
            failed.push_async_callback(_released, closing(state))
        if (lease := await take_lease(env, opened)) is not None:
            failed.push_async_callback(_released, lease.give_back)
        if state is not None:
            await open_account_state(state)
        built = await _built_on(env, opened, lease, state)
        if lease is not None:
            await lease.begin()
        failed.pop_all()
    return built


async def _released(release: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await release()


async def _built_on(
    env: Environment, opened: Opened, lease: LeaseKeeper | None, state: AccountState | None
) -> Gateway:
    """Everything else, from the ground up."""
    queue = opened.queue
    guard = await guard_against_rollback(env, queue)
    folders = folders_of(env.home, state)
    agent = build_agent(env, queue, memory_beside(queue), folders)
    notifications = None if lease is None else notifications_beside(queue)
    signals = None if notifications is None else Signals(queue.maintenance.identity)
    accounts = _accounts(env, agent, folders, notifications, signals)
    shared = accounts_under(lease, env, opened, accounts, notifying=notifications, signals=signals)
    if shared is not None:
        shared.tell_of(env.wakeups)
        if agent.metering.limits.any:
            agent.metering.shared = calls_in_flight(
                queue, shared.holder, lambda: env.is_worker or bool(shared.found.workers)
            )
    proactive = build_proactive(env, queue, agent, accounts, shared)
    channels = {**accounts, **proactive.channels()}
    routing = build_routing(env, queue, channels)
    speech = await build_speech(env, queue, agent, channels, routing)
    supervision = build_supervision(env, queue, agent, proactive, speech=speech, accounts=shared)
    if isinstance(shared, Accounts):
        shared.follow(proactive.owner_contact.channel, is_up=supervision.supervisor.is_up)
    turns = build_turns(
        env, queue, agent, channels, proactive=proactive, routing=routing, supervision=supervision
    )
    parts = _Parts(agent, channels, proactive, routing, speech, supervision, turns, shared)
    return _gateway(
        env,
        queue,
        parts,
        guard=guard,
        lease=lease,
        state=state,
        told_by_others=(
            [] if notifications is None or signals is None else _told_by_others(notifications, signals, parts)
        ),
    )


def _accounts(
    env: Environment,
    agent: AgentParts,
    folders: AccountFolders,
    notifications: Notifications | None,
    signals: Signals | None,
) -> Configured:
    if env.is_worker:
        from gateway.app.worker import accounts_elsewhere  # noqa: PLC0415 - only in a worker

        return accounts_elsewhere(env, notifications, signals)
    return build_accounts(env, agent.attachments, folders)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the other files of this package have built."""

    agent: AgentParts
    channels: Configured
    proactive: Proactive
    routing: RoutingParts
    speech: SpeechParts
    supervision: SupervisionParts
    turns: TurnParts
    shared: Accounts | WorkerSessions | None


def _told_by_others(
    notifications: Notifications, signals: Signals, parts: _Parts
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """What hears other processes."""
    shared = parts.shared
    if shared is None:
        return []
    if shared.is_worker:
        told = Told(signals, shared.hear, stopped=parts.turns.handler.stop)
        return [partial(notifications.run, told.hear)]
    hints = TypingForWorkers({name: channel for name, (channel, _) in parts.channels.items()}, shared.has)

    def grown(session: SessionKey) -> None:
        if shared.has(session.channel):
            parts.supervision.post_turn.grown(session)

    told = Told(signals, shared.hear, typing=hints.show, grown=grown)
    return [partial(notifications.run, told.hear), hints.run]


def _gateway(
    env: Environment,
    queue: Queue,
    parts: _Parts,
    *,
    guard: RollbackGuard,
    lease: LeaseKeeper | None,
    state: AccountState | None,
    told_by_others: Sequence[Callable[[], Coroutine[Any, Any, None]]],
) -> Gateway:
    """What runs from start to stop."""
    agent, channels, proactive, supervision = parts.agent, parts.channels, parts.proactive, parts.supervision
    turns, routing, speech, shared = parts.turns, parts.routing, parts.speech, parts.shared
    store, by_name = queue, {name: channel for name, (channel, _) in channels.items()}
    intake = IntakeGate(guard.perhaps_answered)
    watch_channels(
        supervision.supervisor,
        {} if env.is_worker else channels,
        queue=queue,
        access=env.access,
        intake=intake,
        commands=turns.commands,
        answers=turns.answers,
        conversations=env.conversations,
    )
    transcription = [turns.transcription.aclose] if turns.transcription is not None else []
    sweeper = AttachmentSweeper(
        agent.attachments,
        store,
        agent.named_files,
        clock=env.clock,
        keep_days=env.settings.attachments.keep_days,
    )
    deferrals = DeferralWakeups(store, clock=env.clock, zone=agent.metering.limits.zone, wakeups=env.wakeups)
    stale = StaleAcknowledgements(
        store, routing.acknowledgements, by_name, is_ours=_all if shared is None else shared.has
    )
    beside_accounts = [
        agent.shell.prove,
        *([agent.mcp.run] if agent.mcp is not None else []),
        deferrals.run,
        supervision.post_turn.run,
        routing.acknowledgements.run,
        stale.run,
        sweeper.run,
        agent.attachments.keep_counted,
    ]
    return Gateway(
        clock=env.clock,
        wakeups=env.wakeups,
        store=store,
        questions=queue.approvals,
        waiting=turns.waiting,
        memory=agent.memory,
        files=agent.workspace_files,
        mcp=agent.mcp,
        models=agent.models,
        dispatcher=supervision.dispatcher,
        history=supervision.history,
        handler=turns.handler,
        out_of_band=turns.out_of_band,
        post_turn=supervision.post_turn,
        supervisor=supervision.supervisor,
        intake=intake,
        channels=by_name,
        conversations=env.conversations,
        deliveries={**routing.deliveries, **speech.deliveries},
        comes_first=proactive.owner_contact.is_owners,
        suspects=routing.suspects,
        proactive=proactive,
        budget=proactive.budget,
        watchdog=supervision.watchdog,
        status=supervision.status,
        lease=lease,
        accounts=shared,
        drain_s=env.settings.gateway.drain_seconds,
        at_close=[
            *([closing(state)] if state is not None else []),
            guard.note,
            *transcription,
            agent.pictures.aclose,
            agent.models.aclose,
            agent.search.aclose,
            *speech.at_close,
        ],
        background=[
            agent.models.warm_up,
            guard.run,
            *([] if env.is_worker else beside_accounts),
            *told_by_others,
            *proactive.background,
        ],
        once=[turns.approvals.run, *proactive.once],
    )
