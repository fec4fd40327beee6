"""
The composition root: from settings to a gateway. The only file that knows every concrete class.

Nothing is connected and no thread works before `Gateway.run`; only the database is opened, so that a damaged
one is told before anything else happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from agent_core.agent import AgentLoop, TurnLimits
from agent_core.llm.build import Models, build_models
from agent_core.memory.manager import MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import Purpose, Session
from agent_core.ports import Clock, LLMPort, MemoryPort, ToolPort
from agent_core.prompt import BASE_PROMPT
from agent_core.skills import SkillsLoader
from agent_core.storage.jsonl import JsonlMemory
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.registry import ToolRegistry
from channels.base import Channel
from gateway.access import Access, Alias
from gateway.clock import SystemClock
from gateway.delivery import Delivery
from gateway.history import HistoryWriter
from gateway.home import Home
from gateway.lifecycle import Gateway, Parts
from gateway.router import ChannelInbox, Intake
from gateway.settings import Settings
from gateway.supervisor import ChannelStatus, Supervisor
from gateway.target import OwnerTarget
from gateway.turns import TurnHandler, TurnPolicy
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
        wrap_store, wrap_memory: Put something around the store or the memory.
        tools: Tools for every run, besides the built-in ones.
    """

    clock: Clock | None = None
    channels: Mapping[str, tuple[Channel, str]] | None = None
    models: Mapping[str, LLMPort] | None = None
    wrap_store: Callable[[WorkStore], WorkStore] = lambda store: store
    wrap_memory: Callable[[MemoryPort], MemoryPort] = lambda memory: memory
    tools: Sequence[ToolPort] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """A gateway and those of its parts that commands and tests look at."""

    gateway: Gateway
    store: WorkStore
    memory: MemoryPort
    models: Models
    supervisor: Supervisor
    channels: Mapping[str, Channel]


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
    memory = overrides.wrap_memory(JsonlMemory(home.path, clock=clock))
    models = build_models(settings.llm.spec, clock, given=overrides.models)
    channels = overrides.channels if overrides.channels is not None else _channels(settings, home, clock)
    access = _access(settings, channels)

    skills = SkillsLoader(home.workspace / "skills")
    registry = ToolRegistry()
    registry.register(ReadSkillTool(skills))
    for tool in overrides.tools:
        registry.register(tool)
    manager = MemoryManager(
        memory,
        skills=skills,
        consolidation_threshold=settings.agents.consolidation_threshold,
        keep_recent_ratio=settings.agents.keep_recent_ratio,
        always_skills=settings.skills.always,
    )
    agent = AgentLoop(
        manager, registry, models.pool(), system_prompt=BASE_PROMPT, clock=clock, limits=_limits(settings)
    )

    def extra_tools(session: Session) -> list[ToolPort]:
        shown = lambda: manager.shown_version(session.id)  # noqa: E731 - bound to this session
        return [MemoryWriteTool(memory, session.id, scope=session.scope, turn=session.turn, shown_version=shown)]

    deliveries = {name: Delivery(channel, store, clock) for name, (channel, _) in channels.items()}
    dispatcher = LaneDispatcher(limit=settings.gateway.max_concurrent_turns, clock=clock)
    history = HistoryWriter(store, memory)
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
        zone=_zone(settings),
        policy=TurnPolicy(),
    )
    intake = Intake()
    supervisor = Supervisor(clock, on_change=lambda status: _link_changed(deliveries, status))
    for channel, _ in channels.values():
        supervisor.watch(channel, _inbox(channel, store, dispatcher, access, intake, supervisor))
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
        at_close=[models.aclose],
    )
    gateway = Gateway(parts, drain_s=settings.gateway.drain_seconds)
    return Built(gateway, store, memory, models, supervisor, {name: channel for name, (channel, _) in channels.items()})
