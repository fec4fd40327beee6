"""
Composition root: the tools of one run. `tools_of_run` gives every run those of the memory, then those of each
family, which `gateway.app.agent` lists; here are the families that read and write files, and those
of other distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent_core.llm.prompt_pictures import MAX_PICTURE_BYTES
from agent_core.memory.manager import MemoryManager
from agent_core.memory_ports import MemoryPort, SearchIndexPort
from agent_core.messages import Attachment
from agent_core.models import ScopeKind, Session
from agent_core.ports import Clock, ToolPort
from agent_core.prompt_budget import is_picture
from agent_core.tools.attachment_tools import ConversationFiles, ReadAttachmentTool, SendFileTool
from agent_core.tools.effects import Effect
from agent_core.tools.family import FamilyConfig, GuardedTool, ToolServices, ToolSource
from agent_core.tools.files import file_tools
from agent_core.tools.files.change_tools import Received
from agent_core.tools.files.read_tools import PictureViewer
from agent_core.tools.memory_write import MemoryWriteTool
from agent_core.tools.policy import is_available
from agent_core.tools.search_history import SearchHistoryTool
from channels.attachments import AttachmentRefused, AttachmentStore, AttachmentsUnavailable
from gateway.app.environment import Environment
from gateway.app.mcp_servers import file_keeper
from gateway.app.state_folders import AccountFolders
from gateway.operations.home_files import LazyHomeFiles
from gateway.plugins import tool_families
from gateway.settings import Settings
from gateway.settings.cross_checks import TOOLS
from gateway.system.home import Home

if TYPE_CHECKING:
    from agent_core.tools.mcp.servers import McpServers

_CONVERSATIONS = 200
"""The most conversations of which the process knows which files they have read."""
Family = Callable[[Session], Sequence[ToolPort]]
"""Makes the tools of one family for one run."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FileFamilies:
    """The families of tools that read or write files: of messages, of the workspace, and of servers."""

    env: Environment
    memory: MemoryPort
    attachments: AttachmentStore
    at_home: LazyHomeFiles
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


def tools_of_run(
    memory: MemoryPort,
    search: SearchIndexPort,
    manager: MemoryManager,
    clock: Clock,
    families: Sequence[Family],
) -> Callable[[Session, Callable[[str], str]], list[ToolPort]]:
    """Return the function that builds the tools of one run: those of the memory, then of each family."""

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


def picture_viewer(attachments: AttachmentStore) -> PictureViewer:
    """Return what shows pictures of the workspace to a model; each is kept as an attachment."""
    return PictureViewer(partial(_save_picture, attachments), MAX_PICTURE_BYTES)


async def _save_picture(attachments: AttachmentStore, name: str, content: bytes) -> Attachment | None:
    """Save a picture of the workspace where models are shown it from; None: it cannot be shown."""
    try:
        file = await attachments.save(name, "application/octet-stream", content)
    except (AttachmentRefused, AttachmentsUnavailable) as error:
        _log.warning("picture.not_kept", error=str(error))
        return None
    return file if is_picture(file) else None


def workspace_tools(
    session: Session,
    files: LazyHomeFiles,
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
    more = (
        ", ".join(f"{path} ({'rw' if rw else 'ro'})" for path, rw in files.further_roots.items())
        if own
        else ""
    )
    look = look if own else None
    return file_tools(files, session, own=own, known=read, roots=more, look=look, received=received)


class PluginTools:
    """The families of `plugins.enabled`. One instance serves all sessions."""

    def __init__(self, env: Environment, folders: AccountFolders) -> None:
        self._effects = env.settings.plugins.effects
        self._clock = env.clock
        self._built: dict[str, tuple[FamilyConfig, ToolSource]] = {}
        for name in env.settings.plugins.enabled:
            if (family := tool_families().get(name)) is not None:
                services = ToolServices(clock=env.clock, state=folders(f"tools.{name}"))
                config = getattr(env.settings.tools, name)
                self._built[name] = config, family.build(config, services)

    def tools(self, session: Session) -> list[ToolPort]:
        """The tools of one run."""
        return [
            GuardedTool(tool, name, self._effect(name, tool.name), self._clock)
            for name, (config, source) in self._built.items()
            if is_available(config.allow, session)
            for tool in source.tools(session)
            if _has_a_name_of_its_own(name, tool)
        ]

    async def aclose(self) -> None:
        """Close all of them."""
        for name, (_, source) in self._built.items():
            try:
                await source.aclose()
            except Exception as error:  # noqa: BLE001 - code of others; the rest is closed all the same
                _log.warning("plugin.not_closed", plugin=name, error=str(error))

    def _effect(self, family: str, tool: str) -> Effect | None:
        named = self._effects.get(family, {}).get(tool)
        return None if named is None else Effect(named)


def _has_a_name_of_its_own(family: str, tool: ToolPort) -> bool:
    fits = (tool.name == family or tool.name.startswith(f"{family}_")) and tool.name not in TOOLS
    if not fits:
        _log.error("plugin.tool_refused", plugin=family, tool=tool.name, wanted=f"{family}_…")
    return fits
