"""
The part of the composition root that thinks: models, memory, search, tools, the agent.

`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent_core.agent import AgentLoop, TurnLimits
from agent_core.llm.factory import Models, build_models
from agent_core.memory import MemoryManager
from agent_core.memory_ports import MemoryPort
from agent_core.models import Purpose, Session
from agent_core.ports import Clock, LLMPort, ToolPort
from agent_core.prompt import BASE_PROMPT
from agent_core.skills import BUNDLED_SKILLS, SkillsLoader
from agent_core.storage.jsonl import JsonlMemory
from agent_core.storage.search_index import SearchIndex
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.registry import ToolRegistry
from agent_core.tools.search_history import SearchHistoryTool
from channels.attachments import AttachmentStore
from gateway.routing.attachment_retention import attachment_tools
from gateway.settings import Settings
from gateway.system.home import Home
from gateway.turns.post_turn import memory_manager

__all__ = ["Mind", "build_mind", "turn_limits"]


@dataclass(frozen=True, slots=True)
class Mind:
    """
    The parts; see each one's own description.

    Args:
        files: The histories on disk.
        memory: The same, with what was put around them.
        tools: The tools of one run, which belong to its session.
        pools: The model of a purpose.
    """

    files: JsonlMemory
    memory: MemoryPort
    search: SearchIndex
    models: Models
    manager: MemoryManager
    agent: AgentLoop
    tools: Callable[[Session], list[ToolPort]]
    pools: Callable[[Purpose], LLMPort]


def build_mind(
    settings: Settings,
    home: Home,
    clock: Clock,
    *,
    attachments: AttachmentStore,
    models: Mapping[str, LLMPort] | None,
    wrap_memory: Callable[[MemoryPort], MemoryPort],
    tools: Sequence[ToolPort],
    paid: Callable[[LLMPort], LLMPort],
) -> Mind:
    """
    Put it together.

    Args:
        settings: What is wanted.
        home: Where everything is.
        clock: The time.
        attachments: The files of messages.
        models: Models by the name of their key under ``llm.models``, taken instead of what is set.
        wrap_memory: Puts something around the memory.
        tools: Tools for every run, besides the built-in ones.
        paid: Makes the model that condenses one that is paid.
    """
    workspace = home.path(settings.agents.workspace)
    files = JsonlMemory(home.root, clock=clock, workspace=workspace)
    memory = wrap_memory(files)
    search = SearchIndex(home.root / "search.db", files.layout)
    built = build_models(settings.llm, clock, given=models, attachments=attachments)
    skills = SkillsLoader(BUNDLED_SKILLS, workspace / "skills")
    manager = memory_manager(settings, memory, skills, built, paid=paid)
    registry = ToolRegistry()
    for tool in (ReadSkillTool(skills), *tools):
        registry.register(tool)
    agent = AgentLoop(
        manager,
        registry,
        built.pool(),
        system_prompt=BASE_PROMPT,
        clock=clock,
        limits=turn_limits(settings),
        approve_tools=settings.agents.approve_tools,
    )

    def extra_tools(session: Session) -> list[ToolPort]:
        shown = lambda: manager.shown_version(session.id)  # noqa: E731 - bound to this session
        return [
            MemoryWriteTool(memory, session.id, scope=session.scope, turn=session.turn, shown_version=shown),
            SearchHistoryTool(search, session.id, scope=session.scope, clock=clock, not_before=session.since),
            *attachment_tools(session, memory, attachments, settings=settings, home=home),
        ]

    by_purpose = {Purpose.HEARTBEAT: settings.agents.heartbeat.pool}
    pools = lambda purpose: built.pool(by_purpose.get(purpose, ""))  # noqa: E731 - a table
    return Mind(files, memory, search, built, manager, agent, extra_tools, pools)


def turn_limits(settings: Settings) -> TurnLimits:
    """What any turn may cost."""
    limits = settings.llm.limits
    return TurnLimits(
        steps=limits.steps, seconds=limits.seconds, tokens=limits.tokens, tool_seconds=limits.tool_seconds
    )
