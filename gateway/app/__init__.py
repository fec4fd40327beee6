"""
The composition root. It and its parts know every concrete class, and nothing else does.

Nothing is connected before `Gateway.run`; only the database is opened: a damaged one is told before all else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from gateway.app.account_state import checked_account_state, closing, folders_of, open_account_state
from gateway.app.agent import AgentParts, build_agent
from gateway.app.channels import RoutingParts, build_accounts, build_routing, watch_channels
from gateway.app.environment import Configured, Environment, Overrides
from gateway.app.proactive import build_proactive
from gateway.app.queue import accounts_under, guard_against_rollback, open_queue, take_lease
from gateway.app.speech import SpeechParts, build_speech
from gateway.app.supervision import SupervisionParts, build_supervision
from gateway.app.turns import TurnParts, build_turns
from gateway.queue.lease import LeaseKeeper
from gateway.queue.opening import memory_beside, notifications_beside
from gateway.queue.ports import Queue
from gateway.queue.rollback_guard import RollbackGuard
from gateway.routing.acknowledgements import StaleAcknowledgements
from gateway.routing.attachment_retention import AttachmentSweeper
from gateway.routing.inbox import IntakeGate
from gateway.settings import Settings
from gateway.supervision.accounts import Accounts
from gateway.supervision.gateway import Gateway, Proactive
from gateway.system.home import Home
from gateway.turns.deferral_wakeups import DeferralWakeups

if TYPE_CHECKING:
    from gateway.queue.postgres.account_state import AccountState

__all__ = ["Overrides", "build"]


def _all(_: str) -> bool:
    return True


async def build(settings: Settings, home: Home, overrides: Overrides = Overrides()) -> Gateway:  # noqa: B008
    """
    Put a gateway together.

    Raises:
        StoreUnusable: The database is damaged or too new.
        StateUnusable: The home folder cannot be used.
        StoreUnavailable: Not now.
        LeaseTaken, LeaseLost: Somebody needs the database alone.
    """
    env = Environment.of(settings, home, overrides)
    async with AsyncExitStack() as failed:
        queue = await open_queue(env)
        failed.push_async_callback(_released, queue.aclose)
        if (state := await checked_account_state(settings, home, queue)) is not None:
            failed.push_async_callback(_released, closing(state))
        if (lease := await take_lease(env, queue)) is not None:
            failed.push_async_callback(_released, lease.give_back)
        if state is not None:
            await open_account_state(state)
        built = await _built_on(env, queue, lease, state)
        if lease is not None:
            await lease.begin()
        failed.pop_all()
    return built


async def _released(release: Callable[[], Awaitable[None]]) -> None:
    with anyio.CancelScope(shield=True):
        await release()


async def _built_on(
    env: Environment, queue: Queue, lease: LeaseKeeper | None, state: AccountState | None
) -> Gateway:
    """Everything else, from the ground up."""
    guard = await guard_against_rollback(env, queue)
    folders = folders_of(env.home, state)
    agent = build_agent(env, queue, memory_beside(queue), folders)
    accounts = build_accounts(env, agent.attachments, folders)
    notifications = None if lease is None else notifications_beside(queue)
    shared = accounts_under(lease, env, queue, accounts, notifications)
    proactive = build_proactive(env, queue, agent, accounts, shared)
    channels = {**accounts, **proactive.channels()}
    routing = build_routing(env, queue, channels)
    speech = await build_speech(env, queue, agent, channels, routing)
    supervision = build_supervision(env, queue, agent, proactive, speech=speech, accounts=shared)
    if shared is not None:
        shared.follow(proactive.owner_contact.channel, is_up=supervision.supervisor.is_up)
    turns = build_turns(
        env, queue, agent, channels, proactive=proactive, routing=routing, supervision=supervision
    )
    return _gateway(
        env,
        queue,
        agent,
        channels,
        proactive=proactive,
        routing=routing,
        speech=speech,
        supervision=supervision,
        turns=turns,
        guard=guard,
        lease=lease,
        state=state,
        shared=shared,
        told_by_others=(
            [] if notifications is None or shared is None else [partial(notifications.run, shared.hear)]
        ),
    )


def _gateway(
    env: Environment,
    queue: Queue,
    agent: AgentParts,
    channels: Configured,
    *,
    proactive: Proactive,
    routing: RoutingParts,
    speech: SpeechParts,
    supervision: SupervisionParts,
    turns: TurnParts,
    guard: RollbackGuard,
    lease: LeaseKeeper | None,
    state: AccountState | None,
    shared: Accounts | None,
    told_by_others: Sequence[Callable[[], Coroutine[Any, Any, None]]],
) -> Gateway:
    """What runs from start to stop."""
    store, by_name = queue, {name: channel for name, (channel, _) in channels.items()}
    intake = IntakeGate(guard.perhaps_answered)
    watch_channels(
        supervision.supervisor,
        channels,
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
            agent.shell.prove,
            *([agent.mcp.run] if agent.mcp is not None else []),
            guard.run,
            deferrals.run,
            supervision.post_turn.run,
            routing.acknowledgements.run,
            stale.run,
            sweeper.run,
            agent.attachments.keep_counted,
            *told_by_others,
            *proactive.background,
        ],
        once=[turns.approvals.run, *proactive.once],
    )
