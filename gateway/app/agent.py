"""
Composition root: models, memory, search, tools, and the agent that uses them. `gateway.app` calls it, and
only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from agent_core.agent import AgentLoop, TurnLimits
from agent_core.llm.factory import Models, build_models
from agent_core.llm.model_client import ModelClient
from agent_core.llm.prompt_pictures import MAX_PICTURE_BYTES
from agent_core.memory.manager import MemoryManager
from agent_core.memory_ports import MemoryPort, SearchIndexPort, SearchPort
from agent_core.messages import Attachment, InboundMessage
from agent_core.models import Purpose, ScopeKind, Session
from agent_core.persona import Persona
from agent_core.ports import Clock, LLMPort, SkillsPort, ToolPort
from agent_core.prompt import BASE_PROMPT
from agent_core.prompt_budget import is_picture
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.session_files import named_in_files
from agent_core.storage.storage_integrity import left_in_files
from agent_core.tools.attachment_tools import ConversationFiles, ReadAttachmentTool, SendFileTool
from agent_core.tools.dav.plugin import DavTools
from agent_core.tools.files import file_tools
from agent_core.tools.files.change_tools import Received
from agent_core.tools.files.read_tools import PictureViewer
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.policy import is_available
from agent_core.tools.read_skill import ReadSkillTool
from agent_core.tools.search_history import SearchHistoryTool
from agent_core.tools.tool_registry import ToolRegistry
from agent_core.tools.web.plugin import WebTools
from channels.attachments import AttachmentRefused, AttachmentStore, AttachmentsUnavailable
from gateway.app.environment import Environment
from gateway.app.image_tools import Pictures
from gateway.app.mcp_servers import file_keeper, mcp_servers
from gateway.app.plugin_tools import PluginTools
from gateway.app.shell_tools import Shell
from gateway.app.state_folders import folders_of
from gateway.budget.metering import Metering
from gateway.operations.home_files import FilesAtHome, open_skills
from gateway.proactive.jobs.trigger_parsing import zone_name
from gateway.proactive.owner_alerts import credit_alert, history_set_aside, memory_unusable, prompt_cut
from gateway.routing.access import Access, Role, normalise
from gateway.settings import Settings
from gateway.store.opening import memory_in_database
from gateway.store.stores import MemoryInDatabase, Queue
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.tools.mcp.servers import McpServers
    from gateway.store.postgres.account_documents import AccountState

_UNPROVEN = "unproven"
"""One share for all senders who may be somebody else: nobody fills up the share of whom they imitate."""
_PICTURES = 9
"""So many of one question are shown, and the newest three of what was said before."""
_CONVERSATIONS = 200
"""So many conversations know which files they have read."""
_Family = Callable[[Session], Sequence[ToolPort]]
"""Makes the tools of one kind for one run."""
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
    workspace_files: FilesAtHome
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
        paid=metering.in_current,
        on_unusable=lambda what: wakeups.alert.fire(memory_unusable(what)),
    )
    persona = Persona(workspace)
    agent = _build_loop(env, manager, built, skills, persona)
    at_home = FilesAtHome(settings, home, clock)
    folders = folders_of(home, state)
    shell, mcp = Shell(settings, home, clock, at_home), mcp_servers(settings, folders, clock, wakeups)
    pictures = Pictures(env, metering, attachments, built.litellm)
    dav = DavTools(settings.tools.dav, clock, zone_name(zone))
    plugins = PluginTools(env, folders)
    look = PictureViewer(partial(_kept_picture, attachments), MAX_PICTURE_BYTES) if built.vision else None
    files = _FileFamilies(env, memory, attachments, at_home, mcp, look)
    families: Sequence[_Family] = (
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
        _tools_of_run(memory, search, manager, clock, families),
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


@dataclass(frozen=True, slots=True)
class _FileFamilies:
    """The families of tools that read or write files: of messages, of the workspace, and of servers."""

    env: Environment
    memory: MemoryPort
    attachments: AttachmentStore
    at_home: FilesAtHome
    mcp: McpServers | None
    look: PictureViewer | None
    known: dict[str, dict[str, str]] = field(default_factory=dict)

    def message_tools(self, session: Session) -> list[ToolPort]:
        """Read and send files of the conversation."""
        return attachment_tools(
            session,
            self.memory,
            self.attachments,
            self.env.clock,
            settings=self.env.settings,
            home=self.env.home,
        )

    def work_tools(self, session: Session) -> list[ToolPort]:
        """Read and change files of the workspace."""
        known = ConversationFiles(session, self.memory)
        return workspace_tools(
            session,
            self.at_home,
            settings=self.env.settings,
            known=self.known,
            look=self.look,
            received=ReadAttachmentTool(known, self.attachments, self.env.clock).read_whole,
        )

    def server_tools(self, session: Session) -> list[ToolPort]:
        """Call servers (MCP), whose files are kept in the workspace."""
        keep = file_keeper(session, self.at_home, self.env.settings)
        return [] if self.mcp is None else self.mcp.tools(session, keep, self.look)


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
        pool.on_credit = wakeups.credit.fire
        for model in pool.models:
            if isinstance(model, ModelClient):
                model.on_cut = lambda about, text: wakeups.alert.fire(prompt_cut(about, text, clock.now()))
    return built


def _tools_of_run(
    memory: MemoryPort,
    search: SearchIndexPort,
    manager: MemoryManager,
    clock: Clock,
    families: Sequence[_Family],
) -> Callable[[Session, Callable[[str], str]], list[ToolPort]]:
    """Return what makes the tools of one run: those of the memory, then those of each family."""

    def tools(session: Session, room_name: Callable[[str], str]) -> list[ToolPort]:
        shown = lambda: manager.shown_version(session.id)  # noqa: E731 - bound to this session
        found: list[ToolPort] = [
            MemoryWriteTool(memory, session.id, scope=session.scope, turn=session.turn, shown_version=shown),
            SearchHistoryTool(
                search,
                session.id,
                scope=session.scope,
                clock=clock,
                not_before=session.since,
                room_name=room_name,
            ),
        ]
        for family in families:
            found += family(session)
        return found

    return tools


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

    def share_of(message: InboundMessage) -> str | None:
        if access.decide(message).role is Role.OWNER:
            return None
        if not message.sender.verified:
            return _UNPROVEN
        apart = f" {message.channel}" if access.is_apart(message.channel) else ""
        return f"{normalise(message.sender.address)}{apart}"

    return AttachmentStore(
        home.root,
        max_file_bytes=int(settings.attachments.max_file_mb * 1_000_000),
        max_total_bytes=int(settings.attachments.max_total_mb * 1_000_000),
        share_of=share_of,
        storage=settings.attachments.storage(home.root),
    )


def attachment_tools(
    session: Session,
    memory: MemoryPort,
    attachments: AttachmentStore,
    clock: Clock,
    *,
    settings: Settings,
    home: Home,
) -> list[ToolPort]:
    """The tools of one run that read and send files."""
    known = ConversationFiles(session, memory)
    return [
        ReadAttachmentTool(known, attachments, clock),
        sendable_files(session, known, attachments, settings=settings, home=home),
    ]


def sendable_files(
    session: Session,
    known: ConversationFiles,
    attachments: AttachmentStore,
    *,
    settings: Settings,
    home: Home,
) -> SendFileTool:
    """The files of its conversation and of the workspace that a run may send."""
    return SendFileTool(
        known,
        attachments,
        session,
        workspace=home.path(settings.agents.workspace),
        max_bytes=attachments.max_file_bytes,
        beyond=not settings.agents.restrict_to_workspace,
        folders=[home.path(path) for path in settings.tools.files.roots],
        private=home.root,
    )


async def _kept_picture(attachments: AttachmentStore, name: str, content: bytes) -> Attachment | None:
    """A picture of the workspace, where models are shown it from; None: it cannot be shown."""
    try:
        file = await attachments.save(name, "application/octet-stream", content)
    except (AttachmentRefused, AttachmentsUnavailable) as error:
        _log.warning("picture.not_kept", error=str(error))
        return None
    return file if is_picture(file) else None


def workspace_tools(
    session: Session,
    files: FilesAtHome,
    *,
    settings: Settings,
    known: dict[str, dict[str, str]],
    look: PictureViewer | None = None,
    received: Received | None = None,
) -> list[ToolPort]:
    """
    Return the file tools of one run, if its person may have them.

    ``known`` collects what each conversation has read and forgets the oldest; ``look`` shows pictures to the
    owner's model; ``received`` reads attachments.
    """
    if not is_available(settings.tools.files.allow, session, in_rooms=False):
        return []
    own = session.scope.kind is ScopeKind.OWNER
    read = known.setdefault(session.id, {})
    while len(known) > _CONVERSATIONS:
        del known[next(iter(known))]
    more = ", ".join(f"{path} ({'rw' if rw else 'ro'})" for path, rw in files.more.items()) if own else ""
    look = look if own else None
    return file_tools(files, session, own=own, known=read, roots=more, look=look, received=received)


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
