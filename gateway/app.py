"""
The composition root: from settings to a gateway. The only file that knows every concrete class.

Nothing is connected and no thread works before `Gateway.run`; only the database is opened, so that a damaged
one is told before anything else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from agent_core.agent import AgentLoop, TurnLimits
from agent_core.llm.build import Models, build_models
from agent_core.models import Purpose, Session
from agent_core.ports import Clock, LLMPort, MemoryPort, ToolPort
from agent_core.prompt import BASE_PROMPT
from agent_core.skills import BUNDLED_SKILLS, SkillsLoader
from agent_core.storage.jsonl import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.registry import ToolRegistry
from agent_core.tools.search_history import SearchHistoryTool
from channels.base import Channel
from channels.heartbeat import HeartbeatChannel
from channels.terminal import TerminalChannel
from gateway.access import LOCAL_CHANNELS, Access, Role
from gateway.clock import SystemClock
from gateway.delivery import Delivery
from gateway.history import HistoryWriter
from gateway.home import Home
from gateway.lifecycle import CAN_SEND, Gateway, Parts
from gateway.router import ChannelInbox, Intake
from gateway.settings import Settings
from gateway.supervisor import Supervisor
from gateway.target import OwnerTarget
from gateway.turns import TurnHandler, TurnPolicy
from gateway.upkeep import Upkeep, memory_manager
from gateway.work.lanes import LaneDispatcher
from gateway.work.port import WorkStore
from gateway.work.sqlite import SqliteWorkStore

__all__ = ["Built", "Overrides", "build"]


@dataclass(frozen=True, slots=True)
class Overrides:
    """
    What a test or a command puts in place of what the settings say.

    Args:
        clock: Where time comes from.
        channels: Used instead of the configured channels, with their queue modes.
        models: Models by the name of their key under ``llm.models``.
        allow_from: Who may talk on those channels, besides what the settings say.
        wrap_store, wrap_memory: Put something around the store or the memory.
        tools: Tools for every run, besides the built-in ones.
        policy: How much is done for one turn.
    """

    clock: Clock | None = None
    channels: Mapping[str, tuple[Channel, str]] | None = None
    models: Mapping[str, LLMPort] | None = None
    allow_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wrap_store: Callable[[WorkStore], WorkStore] = lambda store: store
    wrap_memory: Callable[[MemoryPort], MemoryPort] = lambda memory: memory
    tools: Sequence[ToolPort] = ()
    policy: TurnPolicy = TurnPolicy()  # noqa: RUF009 - a frozen value


@dataclass(frozen=True, slots=True)
class Built:
    """A gateway and those of its parts that commands and tests look at."""

    gateway: Gateway
    store: WorkStore
    memory: MemoryPort
    models: Models
    supervisor: Supervisor
    channels: Mapping[str, Channel]
    upkeep: Upkeep


async def build(settings: Settings, home: Home, overrides: Overrides = Overrides()) -> Built:  # noqa: B008
    """
    Put a gateway together.

    Raises:
        StoreUnusable: The database is damaged or too new.
        StateUnusable: The home folder cannot be used.
    """
    clock = overrides.clock or SystemClock()
    sqlite = await SqliteWorkStore.open(
        home.database, clock=clock, synchronous="full" if settings.gateway.durability == "full" else "normal"
    )
    store = overrides.wrap_store(sqlite)
    workspace = home.path(settings.agents.workspace)
    files = JsonlMemory(home.root, clock=clock, workspace=workspace)
    memory = overrides.wrap_memory(files)
    search = SearchIndex(home.root / "search.db", files.layout)
    models = build_models(settings.llm, clock, given=overrides.models)
    access = Access(settings.owner.aliases, {**settings.allow_from(), **overrides.allow_from})
    channels = overrides.channels
    if channels is None:
        channels = _channels(settings, home, workspace, clock, access)

    skills = SkillsLoader(BUNDLED_SKILLS, workspace / "skills")
    registry = ToolRegistry()
    registry.register(ReadSkillTool(skills))
    for tool in overrides.tools:
        registry.register(tool)
    manager = memory_manager(settings, memory, skills, models)
    agent = AgentLoop(
        manager, registry, models.pool(), system_prompt=BASE_PROMPT, clock=clock, limits=_limits(settings)
    )

    def extra_tools(session: Session) -> list[ToolPort]:
        shown = lambda: manager.shown_version(session.id)  # noqa: E731 - bound to this session
        return [
            MemoryWriteTool(memory, session.id, scope=session.scope, turn=session.turn, shown_version=shown),
            SearchHistoryTool(search, session.id, scope=session.scope, clock=clock),
        ]

    deliveries = {
        # A local answer waits for its person as long as it takes.
        name: Delivery(channel, store, clock, **({"give_up_after_s": inf} if name in LOCAL_CHANNELS else {}))
        for name, (channel, _) in channels.items()
    }
    for name, (channel, _) in channels.items():
        if isinstance(channel, TerminalChannel):
            channel.on_attach = deliveries[name].present
    dispatcher = LaneDispatcher(concurrency=settings.gateway.max_concurrent_turns, refill=store.open_sessions)
    history = HistoryWriter(store, memory)
    upkeep = Upkeep(manager=manager, history=history, search=search, store=store, clock=clock)
    handler = TurnHandler(
        store=store,
        history=history,
        agent=agent,
        channels={name: channel for name, (channel, _) in channels.items()},
        queue_modes={name: queue for name, (_, queue) in channels.items()},
        access=access,
        extra_tools=extra_tools,
        clock=clock,
        target=OwnerTarget(store),
        wake=lambda session, after_s: dispatcher.wake(session, after_s=after_s),
        pools=_pools(settings, models),
        on_outbox=lambda name: deliveries[name].wake(),
        completed=upkeep.turn_completed,
        zone=settings.agents.heartbeat.schedule().zone,
        policy=overrides.policy,
    )
    intake = Intake()
    supervisor = Supervisor(
        clock, on_change=lambda status: deliveries[status.name].link(up=status.state in CAN_SEND)
    )
    for name, (channel, _) in channels.items():
        inbox = ChannelInbox(
            name,
            channel.account,
            store=store,
            dispatcher=dispatcher,
            access=access,
            intake=intake,
            report=partial(supervisor.report, name),
        )
        supervisor.watch(channel, inbox)
    parts = Parts(
        clock=clock,
        store=store,
        dispatcher=dispatcher,
        history=history,
        handler=handler,
        supervisor=supervisor,
        intake=intake,
        channels=[channel for channel, _ in channels.values()],
        deliveries=deliveries,
        at_close=[models.aclose, search.aclose],
        background=[upkeep.run],
    )
    gateway = Gateway(parts, drain_s=settings.gateway.drain_seconds)
    return Built(
        gateway,
        store,
        memory,
        models,
        supervisor,
        {name: channel for name, (channel, _) in channels.items()},
        upkeep,
    )


def _channels(
    settings: Settings, home: Home, workspace: Path, clock: Clock, access: Access
) -> dict[str, tuple[Channel, str]]:
    """The configured channels by name, each with its queue mode. What is off is not even imported."""
    channels: dict[str, tuple[Channel, str]] = {"terminal": (TerminalChannel(now=clock.now), "merge")}
    matrix, email = settings.channels.matrix, settings.channels.email
    if matrix is not None and matrix.enabled:
        from channels.matrix.channel import MatrixChannel  # noqa: PLC0415 - nio is heavy

        def may_invite(user_id: str) -> bool:
            return access.role("matrix", user_id, verified=True) is not Role.STRANGER

        state = home.state("matrix")
        channels["matrix"] = (
            MatrixChannel("matrix", matrix, state_dir=state, clock=clock, may_invite=may_invite),
            matrix.queue,
        )
    if email is not None and email.enabled:
        from channels.email.channel import EmailChannel  # noqa: PLC0415 - loaded where it is used

        channels["email"] = (
            EmailChannel("email", email, state_dir=home.state("email"), clock=clock),
            email.queue,
        )
    heartbeat = settings.agents.heartbeat
    if heartbeat.enabled and channels.keys() & {"matrix", "email"}:
        channels["heartbeat"] = (
            HeartbeatChannel(heartbeat.schedule(), checklist=workspace / "HEARTBEAT.md", clock=clock),
            "each",
        )
    return channels


def _pools(settings: Settings, models: Models) -> Callable[[Purpose], LLMPort | None]:
    by_purpose = {Purpose.HEARTBEAT: settings.agents.heartbeat.pool}

    def pool_for(purpose: Purpose) -> LLMPort | None:
        return models.pool(by_purpose.get(purpose, ""))

    return pool_for


def _limits(settings: Settings) -> TurnLimits:
    limits = settings.llm.limits
    return TurnLimits(
        steps=limits.steps, seconds=limits.seconds, tokens=limits.tokens, tool_seconds=limits.tool_seconds
    )
