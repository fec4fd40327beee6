"""
What is answered without a model: commands, reactions, and the questions that the owner is asked.

`CommandService.serves` is asked first for every turn, so that what needs no model is answered while there is
none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from agent_core.memory_ports import MemoryPort
from agent_core.messages import InboundMessage, SessionKey
from agent_core.models import Message, Purpose
from channels.base import Channel
from gateway.observability import metrics
from gateway.proactive.owner_contact import OwnerContact
from gateway.queue.ports import AskStore, Completion, Turn, WorkStore
from gateway.routing.access import Access, Role
from gateway.turns.approvals.review import ASK_AGAIN_S, ASKING, Approval, Approvals, Decision
from gateway.turns.approvals.tool_calls import ToolApprovals
from gateway.turns.commands.handlers import CommandHandlers
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commands.parsing import Command, Misread, parse_command
from gateway.turns.commands.read_only import IngestOnly, is_only_read
from gateway.turns.commit import TurnCommit
from gateway.turns.user_input import session_of

__all__ = ["CommandService", "build_desk"]

_EDITED = "(What was edited into a command was not done: please send it as a message of its own.)"
_log = structlog.get_logger(__name__)


class CommandService:
    """
    Serves turns without a model. One instance for all sessions.

    Args:
        ends: Commits them.
        answers: Does what commands say.
        anew: Knows conversations that begin anew at their next message.
        approvals: Asks the owner, and takes decisions.
        filing: Finds the place of what is only read.
        access: Who is who.
        channels: All channels by name.
        approval: By the name of a channel, whose answers are held until the owner approves them.
    """

    def __init__(
        self,
        *,
        ends: TurnCommit,
        answers: CommandHandlers,
        anew: NewConversation,
        approvals: Approvals,
        filing: IngestOnly,
        access: Access,
        channels: Mapping[str, Channel],
        approval: Callable[[str], Approval] = lambda _: "none",
    ) -> None:
        self._filing = filing
        self._ends = ends
        self._answers = answers
        self.anew = anew
        self._approvals = approvals
        self._access = access
        self._channels = channels
        self._approval = approval

    def owns(self, session: SessionKey) -> bool:
        """Whether a session is nobody's conversation, but our own list of questions."""
        return session == ASKING

    def holds(self, turn: Turn) -> bool:
        """Whether the owner wants to see the answer before it leaves."""
        approval = self._approval(turn.session.channel)
        if approval == "strangers":
            return any(self._access.decide(row.message).role is not Role.OWNER for row in turn.rows)
        return approval == "all"

    def is_command(self, message: InboundMessage) -> bool:
        """Whether a message is answered without a model: it gets a turn of its own then."""
        return self._command(message) is not None or "unreadable" in message.context

    def is_stop(self, message: InboundMessage) -> bool:
        """Whether a message stops what was said before it."""
        command = self._command(message)
        return isinstance(command, Command) and command.name == "stop"

    def is_quick(self, turn: Turn) -> bool:
        """Whether a turn is answered here without any model, beside one that runs."""
        head = turn.head.message
        return head.kind == "reaction" or (len(turn.rows) == 1 and self.is_command(head))

    async def run(self) -> None:
        """Look for what the owner is to be asked, until cancelled."""
        await self._approvals.run()

    def look(self) -> None:
        """Something is held. Returns at once."""
        self._approvals.look()

    async def serves(self, turn: Turn) -> bool:
        """
        Answer a turn, if it is for no model; False if it is for one.

        Raises:
            LostTurn, StoreUnavailable, StorageUnavailable: It could not be answered now.
        """
        head = turn.head.message
        if self.owns(turn.session) or is_only_read(head):
            await (self._ask(turn) if self.owns(turn.session) else self._file(turn))
            return True
        if head.kind == "reaction":
            await self._commit(turn, await self._approvals.react(head))
            return True
        if len(turn.rows) > 1:
            if all(self._command(row.message) is not None for row in turn.rows):
                await self._commit(turn, Decision(_EDITED))
                return True
            return False
        command = self._command(head)
        # Below a notice `!approve` means what the notice is about, and needs no name.
        written = await self._approvals.written(head) if self._is_letter(head) else None
        if command is None or written is not None:
            if written is not None:
                await self._commit(turn, written)
            return written is not None
        session = session_of(turn, self._access, Purpose.CHAT)
        told = (
            Decision(command.text)
            if isinstance(command, Misread)
            else await self._answers.to(turn, command, session)
        )
        await self._commit(turn, told)
        return True

    def without_commands(self, turn: Turn) -> tuple[Turn, str]:
        """
        A turn as the model sees it, and what its answer says besides.

        A command is never put into a turn with others; only the edit of a message that waited can be. It is
        left out then, and whoever wrote it is told.
        """
        rows = tuple(row for row in turn.rows if self._command(row.message) is None)
        if not rows or len(rows) == len(turn.rows):
            return turn, ""
        return replace(turn, rows=rows), _EDITED

    async def _file(self, turn: Turn) -> None:
        """Let it stand in a history, and answer nobody."""
        await self._ends.complete(turn, await self._filing.completion(turn))
        metrics.TURNS.labels(turn.session.channel, "filed").inc()
        _log.info("turn.filed", channel=turn.session.channel)

    async def _ask(self, turn: Turn) -> None:
        """Ask the owner, as soon as there is a place to ask in."""
        outbound = await self._approvals.questions(turn)
        if outbound is None:
            await self._ends.defer(turn, "the owner has no direct conversation yet", ASK_AGAIN_S)
        else:
            await self._ends.complete(turn, Completion(outbound=outbound))

    async def _commit(self, turn: Turn, told: Decision) -> None:
        outbound = self._ends.replies(turn, told.text) if told.text else ()
        others = () if told.refused is None else ((told.refused, (_not_sent(turn),)),)
        await self._ends.complete(turn, Completion(outbound=outbound, others=others))
        metrics.TURNS.labels(turn.session.channel, "command").inc()
        _log.info("turn.commanded", channel=turn.session.channel, kind=turn.head.message.kind)

    def _command(self, message: InboundMessage) -> Command | Misread | None:
        if is_only_read(message):
            return None
        return parse_command(message, letter=self._is_letter(message))

    def _is_letter(self, message: InboundMessage) -> bool:
        channel = self._channels.get(message.channel)
        return channel is not None and channel.capabilities.letters


def _not_sent(turn: Turn) -> Message:
    """A line of a history after an answer that its person never gets: the next answer must not rely on it."""
    return Message(
        role="assistant",
        content="[My last answer was not sent: my owner has not approved it.]",
        id=f"{turn.id}.not_sent",
        turn=turn.id,
        timestamp=turn.head.message.received_at,
    )


def build_desk(
    *,
    ends: TurnCommit,
    store: WorkStore,
    memory: MemoryPort,
    access: Access,
    channels: Mapping[str, Channel],
    target: OwnerContact,
    status: Callable[[], Awaitable[Mapping[str, Any]]],
    wake: Callable[[SessionKey], None],
    approval: Mapping[str, Approval],
    flush: Callable[[SessionKey], Awaitable[None]],
    questions: AskStore,
) -> CommandService:
    """The service with all it needs; for arguments see `CommandHandlers`, `NewConversation`, `Approvals`."""
    approvals = Approvals(
        store=store,
        target=target,
        channels=channels,
        access=access,
        wake=wake,
        calls=ToolApprovals(questions, access, wake),
    )
    anew = NewConversation(store, memory, flush=flush)
    answers = CommandHandlers(
        store=store, memory=memory, anew=anew, access=access, approvals=approvals, status=status
    )
    return CommandService(
        ends=ends,
        answers=answers,
        anew=anew,
        approvals=approvals,
        filing=IngestOnly(memory, access),
        access=access,
        channels=channels,
        approval=lambda name: approval.get(name, "none"),
    )
