"""
`Operations`: everything that an operator may ask of a gateway, put together from the parts in this package.

One set of operations for both ways in: through the control socket of a running daemon, and directly on the
home folder when none runs. They take and return what JSON can hold. `OPERATIONS` names all that may be
called from outside; arguments are checked against the signatures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError, validate_call

from agent_core.memory_ports import MemoryPort
from channels.base import Channel
from gateway.errors import NotFound
from gateway.operations.approvals import CALL_OPERATIONS, DraftOperations
from gateway.operations.arguments import (
    RequestInvalid,
    parse_session,
    parse_state,
    within,
)
from gateway.operations.background import JOB_OPERATIONS, BackgroundOperations
from gateway.operations.channels import (
    MAIL_OPERATIONS,
    MATRIX_OPERATIONS,
    RETRY,
    MailOperations,
    MatrixOperations,
)
from gateway.operations.configuration import CONFIGURATION_OPERATIONS, ConfigurationOperations
from gateway.operations.console import ConsoleOperations
from gateway.operations.files import FILE_OPERATIONS, FileOperations
from gateway.operations.grants import GRANT_OPERATIONS, GrantOperations
from gateway.operations.mcp import MCP_OPERATIONS, McpOperations
from gateway.operations.memory import MemoryOperations
from gateway.operations.people import PEOPLE_OPERATIONS, PeopleOperations
from gateway.operations.receipts import ReceiptOperations
from gateway.operations.schedule import PLAN_OPERATIONS, PlannedJob, PlanOperations
from gateway.operations.send import SendOperations
from gateway.operations.sessions import SessionMaintenance, SessionOperations
from gateway.operations.snapshot import BACKUP_OPERATIONS, BackupOperations
from gateway.operations.status import StatusOperations
from gateway.operations.usage import Costs, UsageOperations
from gateway.operations.views import conversation_name, inbox_row, key_of, outbox_row, with_room_names
from gateway.proactive.background_jobs import BackgroundJobs
from gateway.queue.shared import SHARED
from gateway.queue.states import IllegalMove, InboxState
from gateway.queue.stores import InboxRow, QuestionStore, Queue
from gateway.routing.access import Access
from gateway.routing.let_in import refused_rows
from gateway.settings import Settings
from gateway.system.console_logins import ConsoleLogins
from gateway.system.home import Home
from gateway.turns.approvals.text import extra_fields

if TYPE_CHECKING:
    from agent_core.tools.files.journaled_files import JournaledFiles
    from agent_core.tools.mcp.servers import McpServers


class Operations(
    StatusOperations,
    SessionOperations,
    MemoryOperations,
    DraftOperations,
    SendOperations,
    MatrixOperations,
    MailOperations,
    PlanOperations,
    UsageOperations,
    ReceiptOperations,
    GrantOperations,
    BackupOperations,
    FileOperations,
    BackgroundOperations,
    McpOperations,
    PeopleOperations,
    ConfigurationOperations,
    ConsoleOperations,
):
    """
    Answers an operator's requests.

    Args:
        status: The report of the running daemon, or None.
        accounts: The bot's addresses by channel.
        questions: Tool calls that wait for an approval.
        waiting: Names of questions of MCP servers with a waiting call.
        console: Who is let into the console, if it is served.
        settings, home: Those of the running daemon.
        retry: Connects a channel again that waits after a failure.
    """

    def __init__(
        self,
        store: Queue,
        memory: MemoryPort,
        *,
        status: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
        upkeep: SessionMaintenance | None = None,
        accounts: Mapping[str, str] | None = None,
        access: Access | None = None,
        channels: Mapping[str, Channel] | None = None,
        planned: PlannedJob | None = None,
        costs: Costs | None = None,
        questions: QuestionStore | None = None,
        waiting: Container[str] = (),
        files: Callable[[], JournaledFiles] | None = None,
        background: BackgroundJobs | None = None,
        mcp: McpServers | None = None,
        console: ConsoleLogins | None = None,
        settings: Settings | None = None,
        home: Home | None = None,
        retry: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._home = home
        self._console = console
        self._retry = retry
        self._questions = questions
        self._waiting = waiting
        self._files = files
        self._background = background
        self._mcp = mcp
        self._costs = costs
        self._planned = planned
        super().__init__(store, status=status)
        self._memory = memory
        self._upkeep = upkeep
        self._channels = channels or {}
        self._accounts = accounts or {}
        self._access = access or Access((), {})

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation by its name. Raises RequestInvalid or NotFound."""
        if name not in OPERATIONS:
            raise RequestInvalid(f"there is no operation {name!r}")
        operation: Callable[..., Awaitable[dict[str, Any]]] = validate_call(getattr(self, name))
        try:
            answer = with_room_names(await operation(**arguments), self._channels)
            return cast("dict[str, Any]", await self._with_people(answer, {}))
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise RequestInvalid(f"{name}: {said}") from error

    async def _with_people(self, answer: Any, known: dict[str, str]) -> Any:
        """Name conversations without a room's name, too: by their person, and a mail's subject."""
        if isinstance(answer, list):
            return [await self._with_people(each, known) for each in answer]
        if not isinstance(answer, dict):
            return answer
        named = {name: await self._with_people(value, known) for name, value in answer.items()}
        key = key_of(answer.get("session"))
        if key is None or key == SHARED or named.get("room"):
            return named
        if str(key) not in known:
            newest = await self._store.inbox.accepted(key.channel, session=key, limit=1)
            known[str(key)] = conversation_name(newest[0], words=self._may_show(newest[0])) if newest else ""
        return named | ({"called": known[str(key)]} if known[str(key)] else {})

    # ── messages ──

    async def inbox_list(
        self,
        states: list[str] | None = None,
        session: str | None = None,
        limit: int = 50,
        refused: bool = False,  # noqa: FBT001, FBT002 - called by name
    ) -> dict[str, Any]:
        """
        Accepted messages, newest first, with the words of the owner's alone. Without states: all but those
        that were ignored. ``refused``: only what somebody may have written for an answer, and was not let in.
        """
        if refused:
            rows = await refused_rows(self._store, self._access, limit=within(limit))
            return {"rows": [inbox_row(row, preview=80, words=self._may_show(row)) for row in rows]}
        rows = await self._store.inbox.rows(
            states=[parse_state(state) for state in states or ()],
            session=None if session is None else parse_session(session),
            limit=within(limit),
        )
        return {"rows": [inbox_row(row, preview=80, words=self._may_show(row)) for row in rows]}

    def _may_show(self, row: InboxRow) -> bool:
        message = row.message
        return self._access.may_show(
            message.session, message.sender.address, verified=message.sender.verified
        )

    async def inbox_show(self, id: int) -> dict[str, Any]:  # noqa: A002 - the word that people type
        """One message, and what was or will be sent for it."""
        found = await self._store.inbox.row(id)
        if found is None:
            raise NotFound(f"there is no message {id}; `squidbot inbox list` lists the messages")
        row, outbound = found
        also = extra_fields(row.message, sender=row.message.sender.address)
        return {"row": {**inbox_row(row), "also": also}, "outbound": [outbox_row(sent) for sent in outbound]}

    async def inbox_retry(self, id: int) -> dict[str, Any]:  # noqa: A002
        """Retry a failed message from the beginning, unless its sender has taken it back."""
        found = await self._store.inbox.row(id)
        if found is not None and found[0].state is InboxState.DEAD and found[0].message.notes.redacted:
            raise RequestInvalid(f"message {id} was deleted by its sender, so it is not answered again")
        await self.inbox_show(id)
        session = await self._store.inbox.requeue(id)
        return {"id": id, "changed": session is not None, "running": self._report is not None}

    async def inbox_drop(self, id: int) -> dict[str, Any]:  # noqa: A002
        """Discard a message: it is not answered, and nothing more is sent for it."""
        await self.inbox_show(id)
        return {"id": id, "changed": await self._store.inbox.drop(id)}

    async def inbox_release(self, id: int) -> dict[str, Any]:  # noqa: A002
        """Release a quarantined message: it is answered, and its sender counts as verified for it."""
        await self.inbox_show(id)
        try:
            await self._store.inbox.admit(id)
        except IllegalMove:
            return {"id": id, "changed": False, "running": self._report is not None}
        return {"id": id, "changed": True, "running": self._report is not None}


OPERATIONS = frozenset(
    {
        "status",
        "turns_list",
        "console_link",
        "inbox_list",
        "inbox_show",
        "inbox_retry",
        "inbox_drop",
        "inbox_release",
        "drafts_list",
        "drafts_show",
        "drafts_approve",
        "drafts_reject",
        "send",
        "sessions_list",
        "sessions_show",
        "sessions_page",
        "sessions_search",
        "sessions_reindex",
        "sessions_reset",
        "memory_diff",
        "memory_list",
        "memory_show",
        "memory_history",
        "memory_undo",
        "memory_write",
        "usage",
        "receipts",
        *CALL_OPERATIONS,
        *CONFIGURATION_OPERATIONS,
        *GRANT_OPERATIONS,
        *MATRIX_OPERATIONS,
        *MAIL_OPERATIONS,
        RETRY,
        *PLAN_OPERATIONS,
        *BACKUP_OPERATIONS,
        *FILE_OPERATIONS,
        *JOB_OPERATIONS,
        *MCP_OPERATIONS,
        *PEOPLE_OPERATIONS,
    }
)
