"""
The composition root. It and its parts (``agent.py``, ``channels.py``, ``proactive.py``,
``turns.py``) know every concrete class, and nothing else does.

Nothing is connected before `Gateway.run`; only the database is opened: a damaged one is told before all else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_core.memory_ports import MemoryPort
from agent_core.ports import Clock, LLMPort, ToolPort
from channels.base import Channel
from gateway.app.agent import build_mind, open_attachments
from gateway.app.channels import build_channels, build_deliveries, watch_channels
from gateway.app.proactive import build_unasked
from gateway.app.turns import build_turns
from gateway.budget.alerts import BudgetAlerts
from gateway.budget.metering import Metering
from gateway.operations.send import accounts_of
from gateway.proactive.alerts import OwnerAlerts
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.queue.ports import ApprovalStore, JobStore, WorkStore
from gateway.queue.rollback_guard import Extent, RollbackGuard
from gateway.queue.sqlite.store import SqliteWorkStore
from gateway.queue.wakeups import Wakeups
from gateway.routing.access import Access
from gateway.routing.acknowledgements import Acknowledgements, StaleAcknowledgements
from gateway.routing.attachment_retention import AttachmentSweeper
from gateway.routing.crash_isolation import CrashIsolation
from gateway.routing.inbox import IntakeGate
from gateway.settings import Settings
from gateway.supervision.gateway import Gateway
from gateway.supervision.status import StatusReport
from gateway.supervision.supervisor import Supervisor
from gateway.supervision.turn_watchdog import LOOK_EVERY_S, TurnWatchdog, allowed_seconds
from gateway.system.clock import SystemClock
from gateway.system.home import Home
from gateway.turns.approvals.review import Approval
from gateway.turns.commit import TurnCommit
from gateway.turns.deferral_wakeups import DeferralWakeups
from gateway.turns.dispatcher import SessionDispatcher
from gateway.turns.failure_policy import TurnPolicy
from gateway.turns.history_writer import HistoryWriter
from gateway.turns.out_of_band import LANES, OutOfBandTurns
from gateway.turns.post_turn import PostTurn

__all__ = ["Overrides", "build"]

_STALLED_S = 30.0


@dataclass(frozen=True, slots=True)
class Overrides:
    """
    What a test or a command puts in place of what the settings say.

    Args:
        channels: Used instead of the configured channels, with their queue modes.
        models: Models by the name of their key under ``llm.models``.
        allow_from: Who may talk on those channels, besides what the settings say.
        wrap_store, wrap_plans, wrap_questions, wrap_memory: Put something around these.
        tools: Tools for every run, besides the built-in ones.
        policy: How much is done for one turn.
        approval: Whose answers the owner sees first, by channel, instead of what the settings say.
        turn_allowed_s: How long a turn may take before it counts as stuck, looked at twice as often.
    """

    clock: Clock | None = None
    channels: Mapping[str, tuple[Channel, str]] | None = None
    models: Mapping[str, LLMPort] | None = None
    allow_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wrap_store: Callable[[WorkStore], WorkStore] = lambda store: store
    wrap_plans: Callable[[JobStore], JobStore] = lambda plans: plans
    wrap_questions: Callable[[ApprovalStore], ApprovalStore] = lambda questions: questions
    wrap_memory: Callable[[MemoryPort], MemoryPort] = lambda memory: memory
    tools: Sequence[ToolPort] = ()
    policy: TurnPolicy = TurnPolicy()  # noqa: RUF009 - a frozen value
    approval: Mapping[str, Approval] = field(default_factory=dict)
    turn_allowed_s: float | None = None


async def build(settings: Settings, home: Home, overrides: Overrides = Overrides()) -> Gateway:  # noqa: B008
    """
    Put a gateway together.

    Raises:
        StoreUnusable: The database is damaged or too new.
        StateUnusable: The home folder cannot be used.
    """
    clock, wakeups = overrides.clock or SystemClock(), Wakeups()
    limits = settings.llm.budget.limits(settings.agents.heartbeat.timezone)
    sqlite = await SqliteWorkStore.open(
        home.database,
        clock=clock,
        synchronous="full" if settings.gateway.durability == "full" else "normal",
        zone=limits.zone,
        wakeups=wakeups,
    )
    store = overrides.wrap_store(sqlite)
    plans = overrides.wrap_plans(sqlite.jobs)
    questions = overrides.wrap_questions(sqlite.approvals)
    spending = Metering(store, sqlite.costs, limits, clock)
    guard = await _looked_at(sqlite, home, clock)
    access = Access(
        settings.owner.aliases,
        {**settings.allow_from(), **overrides.allow_from},
        kinds=settings.channels.kinds(),
        apart=settings.channels.apart(),
        own=accounts_of(settings).values(),
    )
    attachments = open_attachments(settings, home, access)
    mind = build_mind(
        settings,
        home,
        clock,
        attachments=attachments,
        models=overrides.models,
        wrap_memory=overrides.wrap_memory,
        tools=overrides.tools,
        paid=spending.in_current,
        wakeups=wakeups,
    )
    channels = overrides.channels
    if channels is None:
        channels = build_channels(
            settings, home, clock, access=access, wakeups=wakeups, attachments=attachments
        )
    by_name = {name: channel for name, (channel, _) in channels.items()}
    contact = OwnerContact(
        store,
        setting=settings.agents.heartbeat.target,
        channels=by_name,
        access=access,
        wakeups=wakeups,
    )
    notifier = OwnerNotifier(store, contact, clock)
    alerts = OwnerAlerts(
        store=store,
        target=contact,
        notifier=notifier,
        clock=clock,
        wakeups=wakeups,
    )
    dispatcher = SessionDispatcher(
        concurrency=settings.gateway.max_concurrent_turns,
        refill=store.open_sessions,
        comes_first=access.comes_first,
    )
    history = HistoryWriter(store, mind.memory, wakeups)
    suspects = CrashIsolation(store)
    deliveries = build_deliveries(channels, store, clock, suspects=suspects, wakeups=wakeups)
    post_turn = PostTurn(
        manager=mind.manager,
        history=history,
        search=mind.search,
        spending=spending,
        clock=clock,
        wakeups=wakeups,
    )
    acknowledgements = Acknowledgements(by_name)
    commit = TurnCommit(store=store, channels=by_name, acknowledgements=acknowledgements)
    budget = BudgetAlerts(
        notifier=notifier, costs=sqlite.costs, spending=spending, clock=clock, wakeups=wakeups
    )
    proactive = build_unasked(
        settings,
        plans=plans,
        store=store,
        target=contact,
        notifier=notifier,
        notes=alerts,
        access=access,
        channels=by_name,
        clock=clock,
        wakeups=wakeups,
    )
    supervisor = Supervisor(clock, on_change=wakeups.channel.fire)
    watchdog = _watchdog(settings, dispatcher, sqlite, clock, overrides.turn_allowed_s)
    status = StatusReport(
        store=store,
        memory=mind.memory,
        models=mind.models,
        dispatcher=dispatcher,
        post_turn=post_turn,
        supervisor=supervisor,
        proactive=proactive.state,
        budget=budget,
        watchdog=watchdog,
        clock=clock,
    )
    turns = build_turns(
        settings,
        store=store,
        plans=plans,
        questions=questions,
        mind=mind,
        commit=commit,
        history=history,
        access=access,
        channels=by_name,
        modes={name: mode for name, (_, mode) in channels.items()},
        target=contact,
        notifier=notifier,
        approval=_approval(settings, overrides),
        spending=spending,
        acknowledgements=acknowledgements,
        suspects=suspects,
        proactive_tools=proactive.tools,
        status=status.read,
        policy=overrides.policy,
        clock=clock,
        wakeups=wakeups,
    )
    handler, commands = turns.handler, turns.commands
    out_of_band = OutOfBandTurns(
        SessionDispatcher(concurrency=LANES, refill=store.open_sessions, comes_first=access.comes_first),
        store=store,
        history=history,
        commands=commands,
        channels=by_name,
        run_claimed=handler.run_claimed,
        dispatcher=dispatcher,
    )
    intake = IntakeGate(guard.perhaps_answered)
    deferrals = DeferralWakeups(
        store,
        clock=clock,
        zone=limits.zone,
        wakeups=wakeups,
    )
    watch_channels(
        supervisor,
        channels,
        store=store,
        access=access,
        intake=intake,
        commands=commands,
    )
    return Gateway(
        clock=clock,
        wakeups=wakeups,
        store=store,
        questions=questions,
        memory=mind.memory,
        models=mind.models,
        dispatcher=dispatcher,
        history=history,
        handler=handler,
        out_of_band=out_of_band,
        post_turn=post_turn,
        supervisor=supervisor,
        intake=intake,
        channels=by_name,
        deliveries=deliveries,
        comes_first=contact.is_owners,
        suspects=suspects,
        proactive=proactive,
        budget=budget,
        watchdog=watchdog,
        status=status,
        drain_s=settings.gateway.drain_seconds,
        at_close=[guard.note, mind.models.aclose, mind.search.aclose],
        background=[
            mind.models.warm_up,
            guard.run,
            deferrals.run,
            post_turn.run,
            acknowledgements.run,
            StaleAcknowledgements(store, acknowledgements, by_name).run,
            turns.approvals.run,
            alerts.run,
            budget.run,
            AttachmentSweeper(
                attachments,
                store,
                mind.files.layout.sessions,
                clock=clock,
                keep_days=settings.attachments.keep_days,
            ).run,
            *proactive.background,
        ],
    )


def _approval(settings: Settings, overrides: Overrides) -> dict[str, Approval]:
    """Whose answers are held, by channel."""
    asked: dict[str, Approval] = {
        name: getattr(config, "reply_approval", "none")
        for name, config in settings.channels.enabled().items()
    }
    return asked | dict(overrides.approval)


def _watchdog(
    settings: Settings,
    dispatcher: SessionDispatcher,
    store: SqliteWorkStore,
    clock: Clock,
    allowed_s: float | None,
) -> TurnWatchdog:
    """The watch over the turns; no turn may take longer than the longest limit in the settings."""
    longest_s = max(settings.llm.limits.seconds, settings.agents.heartbeat.limits.seconds)
    return TurnWatchdog(
        dispatcher,
        store.open_sessions,
        allowed_s=allowed_seconds(longest_s) if allowed_s is None else allowed_s,
        look_every_s=LOOK_EVERY_S if allowed_s is None else allowed_s / 2,
        clock=clock,
        blocked=lambda: store.refusing or store.stalled_s > _STALLED_S,
    )


async def _looked_at(store: SqliteWorkStore, home: Home, clock: Clock) -> RollbackGuard:
    """The database, after a look at whether it is an older copy."""

    async def extent() -> Extent:
        return Extent.of(store.identity, *await store.last_ids())

    guard = RollbackGuard(home.store_mark, extent, clock)
    await guard.look()
    return guard
