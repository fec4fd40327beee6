"""
Composition root: models, memory, search, and the agent that uses them with the families of its tools
(`agent_tools`). `gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent_core.agent import AgentLoop, TurnLimits
from agent_core.llm.factory import Models, build_models
from agent_core.llm.model_client import ModelClient
from agent_core.memory.manager import MemoryManager
from agent_core.memory_ports import MemoryPort, SearchIndexPort, SearchPort
from agent_core.models import Purpose, Session
from agent_core.persona import Persona
from agent_core.ports import LLMPort, SkillsPort, ToolPort
from agent_core.prompt import BASE_PROMPT
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.session_files import named_in_files
from agent_core.storage.storage_integrity import left_in_files
from agent_core.tools.dav.plugin import DavTools
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.tool_registry import ToolRegistry
from agent_core.tools.web.plugin import WebTools
from channels.attachments import AttachmentStore
from gateway.app.agent_tools import Family, FileFamilies, PluginTools, picture_viewer, tools_of_run
from gateway.app.environment import Environment
from gateway.app.image_tools import Pictures
from gateway.app.mcp_servers import mcp_servers
from gateway.app.shell_tools import Shell
from gateway.app.state_folders import folders_of
from gateway.budget.metering import Metering
from gateway.operations.home_files import LazyHomeFiles, open_skills
from gateway.proactive.jobs.trigger_parsing import zone_name
from gateway.proactive.owner_alerts import (
    credit_alert,
    history_set_aside,
    memory_unusable,
    prompt_cut,
    substitute_alert,
)
from gateway.routing.access import Access, Role
from gateway.settings import Settings
from gateway.store.opening import memory_in_database
from gateway.store.stores import MemoryInDatabase, Queue
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.tools.mcp.servers import McpServers
    from gateway.store.postgres.account_documents import AccountState

_PICTURES = 9
"""The most pictures of one question that a model is shown; the history has a third of it."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentParts:
    """
    The result of `build_agent`.

    ``in_tables``: histories are in the queue's database, so answers need no journal. ``named_files`` returns
    the files that histories name; ``tools`` builds those of one run.
    """

    memory: MemoryPort
    in_tables: bool
    named_files: Callable[[], Awaitable[set[str]]]
    search: SearchIndexPort
    models: Models
    manager: MemoryManager
    agent: AgentLoop
    tools: Callable[[Session, Callable[[str], str]], list[ToolPort]]
    pools: Callable[[Purpose], LLMPort]
    shell: Shell
    mcp: McpServers | None
    attachments: AttachmentStore
    metering: Metering
    workspace_files: LazyHomeFiles
    pictures: Pictures
    dav: DavTools
    plugins: PluginTools
    persona: Persona


def build_agent(env: Environment, queue: Queue, state: AccountState | None) -> AgentParts:
    """Build models, memory, tools and metering."""
    settings, home, clock, wakeups = env.settings, env.home, env.clock, env.wakeups
    attachments = open_attachments(settings, home, env.access)
    zone = settings.agents.heartbeat.timezone
    metering = Metering(queue, queue.usage, settings.llm.budget.limits(zone), clock)
    workspace = home.path(settings.agents.workspace)
    kept, in_tables = _open_histories(env, queue, workspace)
    memory, search = env.overrides.wrap_memory(kept.memory), kept.search
    built = _build_models(env, attachments)
    skills = open_skills(settings, home)
    manager = memory_manager(
        settings,
        memory,
        skills,
        built,
        search=search if settings.memory.lookup else None,
        paid=metering.with_current_meter,
        on_unusable=lambda what: wakeups.alert.fire(memory_unusable(what)),
    )
    persona = Persona(workspace)
    agent = _build_loop(env, manager, built, skills, persona)
    at_home = LazyHomeFiles(settings, home, clock)
    folders = folders_of(home, state)
    shell, mcp = Shell(settings, home, clock, at_home), mcp_servers(settings, folders, clock, wakeups)
    pictures = Pictures(env, metering, attachments, built.litellm)
    dav = DavTools(settings.tools.dav, clock, zone_name(zone))
    plugins = PluginTools(env, folders)
    look = picture_viewer(attachments) if built.vision else None
    files = FileFamilies(env, memory, attachments, at_home, mcp, look)
    families: Sequence[Family] = (
        files.message_tools,
        files.work_tools,
        shell.tools,
        WebTools(settings.tools.web, clock).tools_for,
        dav.tools_for,
        pictures.tools_for,
        files.server_tools,
        plugins.tools,
    )
    return AgentParts(
        memory,
        in_tables,
        kept.named_files,
        search,
        built,
        manager,
        agent,
        tools_of_run(memory, search, manager, clock, families),
        partial(_pool_for, settings, built),
        shell,
        mcp,
        attachments,
        metering,
        at_home,
        pictures,
        dav,
        plugins,
        persona,
    )


def _build_loop(
    env: Environment, manager: MemoryManager, models: Models, skills: SkillsPort, persona: Persona
) -> AgentLoop:
    registry = ToolRegistry()
    for tool in (ReadSkillTool(skills), *env.overrides.tools):
        registry.register(tool)
    return AgentLoop(
        manager,
        registry,
        models.pool(),
        system_prompt=partial(persona.system_prompt, BASE_PROMPT),
        clock=env.clock,
        limits=turn_limits(env.settings),
        approve_tools=env.settings.tools.require_approval,
    )


def _pool_for(settings: Settings, models: Models, purpose: Purpose) -> LLMPort:
    by_purpose = {
        Purpose.HEARTBEAT: settings.agents.heartbeat.pool,
        Purpose.BACKGROUND: settings.tools.jobs.pool,
    }
    return models.pool(by_purpose.get(purpose, ""))


def _build_models(env: Environment, attachments: AttachmentStore) -> Models:
    """Build the pools of models; what they report becomes an alert to the owner."""
    settings, clock, wakeups = env.settings, env.clock, env.wakeups
    image = settings.tools.image
    built = build_models(
        settings.llm,
        clock,
        given=env.overrides.models,
        attachments=attachments,
        besides=settings.voice.models() | ({image.model: image.provider} if image is not None else {}),
    )
    for pool in built.pools.values():
        pool.on_credit_spent = lambda error: wakeups.alert.fire(credit_alert(error, clock.now()))
        pool.on_substitute = lambda error: wakeups.alert.fire(substitute_alert(error, clock.now()))
        pool.on_recovery = wakeups.recovery.fire
        for model in pool.models:
            if isinstance(model, ModelClient):
                model.on_cut = lambda about, text: wakeups.alert.fire(prompt_cut(about, text, clock.now()))
    return built


def _open_histories(env: Environment, queue: Queue, workspace: Path) -> tuple[MemoryInDatabase, bool]:
    """Histories and memory, and whether they are in the queue's database."""
    in_tables = memory_in_database(queue, vectors=env.settings.memory.vectors)
    if in_tables is not None and (left := left_in_files(Layout(env.home.root, workspace))):
        _log.warning("history.files_not_used", detail=left)
    return in_tables or _in_files(env), in_tables is not None


def _in_files(env: Environment) -> MemoryInDatabase:
    layout = Layout(env.home.root, env.home.path(env.settings.agents.workspace))
    search = SearchIndex(env.home.root / "search.db", layout, vectors=env.settings.memory.vectors)
    files = JsonlMemory(
        layout.home,
        clock=env.clock,
        workspace=layout.workspace,
        on_set_aside=lambda what: env.wakeups.alert.fire(history_set_aside(what)),
        on_append=search.note_growth,
    )
    return MemoryInDatabase(files, search, partial(named_in_files, files.layout.sessions))


def turn_limits(settings: Settings) -> TurnLimits:
    """The limits of any turn."""
    limits = settings.llm.limits
    return TurnLimits(
        steps=limits.steps, seconds=limits.seconds, tokens=limits.tokens, tool_seconds=limits.tool_seconds
    )


def open_attachments(settings: Settings, home: Home, access: Access) -> AttachmentStore:
    """The attachment storage of these settings; nothing is touched yet."""
    return AttachmentStore(
        home.root,
        max_file_bytes=int(settings.attachments.max_file_mb * 1_000_000),
        max_total_bytes=int(settings.attachments.max_total_mb * 1_000_000),
        is_guest=lambda message: access.decide(message).role is not Role.OWNER,
        storage=settings.attachments.storage(home.root),
    )


def memory_manager(
    settings: Settings,
    memory: MemoryPort,
    skills: SkillsPort,
    models: Models,
    *,
    search: SearchPort | None = None,
    paid: Callable[[LLMPort], LLMPort] = lambda llm: llm,
    on_unusable: Callable[[str], None] = lambda _: None,
) -> MemoryManager:
    """The memory manager; ``paid`` has the consolidating model metered, ``search`` looks up."""
    agents = settings.agents
    known = {skill.name: skill for skill in skills.list_skills()} if settings.skills.always else {}
    for name in settings.skills.always:
        if name not in known:
            _log.warning("skill.unknown", skill=name, known=sorted(known))
        elif known[name].missing:
            _log.warning("skill.unavailable", skill=name, missing=known[name].missing)
    return MemoryManager(
        memory,
        skills=skills,
        search=search,
        llm=paid(models.pool(agents.consolidation_pool)),
        consolidation_threshold=agents.consolidation_threshold,
        consolidation_tokens=agents.consolidation_tokens,
        keep_recent_ratio=agents.keep_recent_ratio,
        window=models.context_tokens,
        estimate=models.estimate,
        always_skills=settings.skills.always,
        pictures=_PICTURES if models.vision else 0,
        on_unusable=on_unusable,
    )
