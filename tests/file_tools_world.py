"""A home with a workspace, and the file tools of one conversation over it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind, Session
from agent_core.tools.files import file_tools
from agent_core.tools.files.change_journal import ChangeJournal
from agent_core.tools.files.command_origins import CommandFiles
from agent_core.tools.files.journaled_files import JournaledFiles
from agent_core.tools.files.roots import Roots
from agent_core.tools.tool_registry import run_tool


class FileDesk:
    """Calls tools by name. ``day`` is how many days have passed."""

    def __init__(self, home: Path, *, more=None, own=True, turn="turn1", origins=lambda: (), **history):
        self.home, self.ws = home, home / "workspace"
        self.ws.mkdir(parents=True, exist_ok=True)
        self.day = 0.0
        self._how = history
        self._more = more
        self.known: dict[str, str] = {}
        self.own, self.origins = own, origins
        self.restart()
        self.begin(turn)

    def restart(self, **history):
        """As a new process."""
        roots = Roots(self.ws, self._more, home=self.home, private=[self.home / "squidbot.yaml"])
        kept = ChangeJournal(self.home / "state" / "files", now=self.now, **{**self._how, **history})
        self.journaled = JournaledFiles(roots, kept)

    def now(self):
        return datetime(2026, 11, 22, 12, 0, tzinfo=UTC) + timedelta(days=self.day)

    def begin(self, turn):
        """The tools of a new turn."""
        scope = MemoryScope(ScopeKind.OWNER)
        session = Session(SessionKey("matrix", "!room:hs.test"), scope, turn=turn)
        self.tools = {
            tool.name: tool
            for tool in file_tools(
                lambda: self.journaled,
                session,
                own=self.own,
                known=self.known,
                origins=lambda: self.origins(),
            )
        }

    async def __call__(self, name, **arguments):
        """A result; what is refused is one, too."""
        from agent_core.errors import ToolError
        from agent_core.models import ToolResult

        try:
            return await run_tool(self.tools[name], arguments)
        except ToolError as error:
            return ToolResult(content=str(error), is_error=True)

    async def ok(self, name, **arguments):
        result = await self(name, **arguments)
        assert not result.is_error, result.content
        return result

    async def refused(self, name, **arguments):
        result = await self(name, **arguments)
        assert result.is_error, result.content
        return result.content


def command_files(workspace: Path, *outside: str) -> CommandFiles:
    """What commands can read, beside a journal of changes that knows nothing."""

    def now() -> datetime:
        return datetime(2026, 11, 22, 12, 0, tzinfo=UTC)

    journal = ChangeJournal(workspace.parent / "journal", now=now)
    return CommandFiles(workspace, journal, outside=outside, now=now)
