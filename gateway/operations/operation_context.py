"""
The parts of a gateway that operations use, put together by the daemon or on a home folder at rest. Nothing
heavy is imported, because the command line reads signatures and asks the daemon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from agent_core.language import ENGLISH, speaking
from gateway.errors import GatewayError, NeedsDaemon, NotFound
from gateway.operations.operation_registry import find_operation

if TYPE_CHECKING:
    from agent_core.memory_ports import MemoryPort, SearchPort
    from agent_core.messages import SessionKey
    from agent_core.ports import Clock
    from agent_core.skills import SkillsLoader
    from agent_core.state_folder import StateFolder
    from agent_core.tools.files.journaled_files import JournaledFiles
    from agent_core.tools.mcp.servers import McpServers
    from channels.base import Channel
    from channels.heartbeat.channel import HeartbeatChannel
    from gateway.budget.budget_policy import BudgetLimits
    from gateway.proactive.background_jobs import BackgroundJobs
    from gateway.proactive.jobs.job_service import JobPlace, JobService
    from gateway.proactive.owner_contact import OwnerContact
    from gateway.routing.access import Access
    from gateway.routing.conversations import Conversations
    from gateway.settings import Settings
    from gateway.store.stores import InboxRow, JobStore, QuestionStore, Queue, UsageStore
    from gateway.system.console_logins import ConsoleLogins
    from gateway.system.home import Home


@dataclass(frozen=True, slots=True)
class Caller:
    """
    Somebody who calls an operation in a conversation.

    Args:
        place: Their place there, for jobs.
        session: The name of the conversation, in histories and costs.
        turn: The turn with the command, which may be done twice.
        is_owner: The owner, where nobody else reads along.
    """

    place: JobPlace
    session: str
    turn: str
    is_owner: bool


class AccountRefused(GatewayError):
    """The account cannot do this."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class UsageSources:
    """The sources of a usage report: the sums, the limits of a day, and the time."""

    store: UsageStore
    limits: BudgetLimits
    clock: Clock


class SessionMaintenance(Protocol):
    """Facts about sessions outside of their files; `gateway.turns.post_turn` implements both kinds."""

    async def about(self, session: SessionKey) -> Mapping[str, Any]:
        """The content of the next prompt (``prompt``), and what keeps the rest from being consolidated."""

    async def reindex(self) -> Mapping[str, Any]:
        """Rebuild the search index."""

    @property
    def search(self) -> SearchPort:
        """The search in the histories."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """
    The parts that these operations use.

    ``owner`` are all addresses; ``conversations`` finds a run's session; ``heartbeat`` is a running daemon's
    channel; ``running``: a daemon runs due jobs.
    """

    plans: JobStore
    service: JobService
    target: OwnerContact
    owner: Sequence[str]
    zone: tzinfo | None
    conversations: Conversations
    clock: Clock
    heartbeat: HeartbeatChannel | None = None
    running: bool = False


def _no_access() -> Access:
    from gateway.routing.access import Access

    return Access((), {})


@dataclass(frozen=True)
class OperationContext:
    """
    The parts that operations use; a part that is missing is not here.

    Args:
        status: The report of the running daemon; None: no daemon runs.
        others: The machines of a home on PostgreSQL.
        accounts: The bot's addresses by channel.
        questions: Tool calls that wait for an approval.
        waiting: Names of questions of MCP servers with a waiting call.
        console: Who is let into the console.
        settings, home: Those of the running daemon.
        folders: The documents of an account, on a home at rest.
        caller: Who calls in a conversation; None: an operator.
        now: The time by which grants count, which does not run backwards.
        retry: Connects a channel again that waits after a failure.
        skills: The skills of the workspace, and those that come with squidbot.
        under_way: What runs at most once at a time and is running.
    """

    store: Queue
    memory: MemoryPort
    status: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    others: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    upkeep: SessionMaintenance | None = None
    accounts: Mapping[str, str] = field(default_factory=dict)
    access: Access = field(default_factory=_no_access)
    channels: Mapping[str, Channel] = field(default_factory=dict)
    planned: PlannedJob | None = None
    costs: UsageSources | None = None
    questions: QuestionStore | None = None
    waiting: Container[str] = ()
    files: Callable[[], JournaledFiles] | None = None
    background: BackgroundJobs | None = None
    mcp: McpServers | None = None
    console: ConsoleLogins | None = None
    settings: Settings | None = None
    home: Home | None = None
    folders: Callable[[str], StateFolder] | None = None
    caller: Caller | None = None
    now: Callable[[], datetime] | None = None
    retry: Callable[[str], None] | None = None
    skills: SkillsLoader | None = None
    under_way: set[str] = field(default_factory=set)
    _checked: dict[str, Callable[..., Awaitable[Mapping[str, Any]]]] = field(default_factory=dict, init=False)

    @property
    def running(self) -> bool:
        """Return True in a daemon."""
        return self.status is not None

    @property
    def guest(self) -> Caller | None:
        """The caller, if they may see and change only what is theirs."""
        return None if self.caller is None or self.caller.is_owner else self.caller

    def channels_of(self, kind: str, name: str = "") -> Mapping[str, Channel]:
        """The running accounts of a kind, or the one of that name. Raises NotFound or NeedsDaemon."""
        found = {
            each: channel
            for each, channel in self.channels.items()
            if self.access.kind(each) == kind and name in ("", each)
        }
        if not found:
            raise self.missing(f"{kind} account {name!r}" if name else f"{kind} account")
        return found

    def missing(self, what: str) -> GatewayError:
        """The error for something that the daemon has not, or that needs a daemon."""
        if self.running:
            return NotFound(f"the daemon has no {what}; `squidbot status` shows its channels")
        return NeedsDaemon()

    async def call(self, key: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call an operation for an operator, in English. Raises RequestInvalid or what it raises."""
        from pydantic import ValidationError, validate_call

        from channels.base import ChannelError
        from gateway.operations.operation_arguments import RequestInvalid
        from gateway.operations.operation_views import copied_rows, name_people, name_rooms

        if (operation := self._checked.get(key)) is None:  # to make the check takes milliseconds
            operation = self._checked[key] = validate_call(partial(find_operation(key).run, self))
        try:
            with speaking(ENGLISH):
                answer, rows = copied_rows(await operation(**arguments))
            nameless = name_rooms(rows, self.channels)
            newest = await self.store.inbox.newest_messages(nameless) if nameless else {}
            name_people(rows, newest, may_show=self.may_show)
            return dict(answer)
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise RequestInvalid(f"{key}: {said}") from error
        except ChannelError as error:
            raise AccountRefused(str(error)) from error

    def may_show(self, row: InboxRow) -> bool:
        """Return True if an operator may see the words of a message."""
        message = row.message
        return self.access.may_show(message.session, message.sender.address, verified=message.sender.verified)
