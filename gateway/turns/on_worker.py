"""
What differs in a turn on a worker: it is given back before anything that needs the account's daemon.

Theory of operation. A worker has the database, and neither the client of the account nor the workspace of its
home. Where a turn comes to something that needs one of them, `NeedsAccount` is raised before that has begun,
and `TurnHandler` puts the turn back for the account's daemon. Every finished step is in the journal, also the
model's answer that wants the tool, so no model call is made twice.

Which tools a worker runs is a list of those that need neither (`RUN_BY_WORKERS`). A tool that is new is given
back until somebody has thought about it.
"""

from __future__ import annotations

from agent_core.errors import AwaitsApproval
from agent_core.tools.policy import ConsentPort, Permission, Proposal
from gateway.errors import NeedsAccount
from gateway.queue.shared import SHARED
from gateway.queue.stores import Turn
from gateway.turns.chat import ChatTurns
from gateway.turns.kinds import Plan

RUN_BY_WORKERS = frozenset({"memory_write", "read_attachment", "search_history", "web_fetch", "web_search"})
"""
The tools that need neither the account nor the home: memory and histories are in the database, pages on the
web, files of messages in their store (one that is only in a home raises `NeedsAccount` itself).
"""


class WorkerTurns(ChatTurns):
    """Implements `TurnKind` for what people write, where a worker answers."""

    async def plan(self, turn: Turn) -> Plan | None:
        """As `ChatTurns.plan`. Raises `NeedsAccount`: it is not for a worker. Nothing was done."""
        if self.commands.is_quick(turn) or turn.session == SHARED:
            raise NeedsAccount("a command, a reaction or the shared conversation")
        if self.approvals.holds(turn):
            raise NeedsAccount("an answer that its owner approves")
        if await self.conversations.waits(turn.session):
            raise NeedsAccount("a conversation that is reset")
        self.target.look_again()
        return await super().plan(turn)


class ConsentOnWorker:
    """Implements `ConsentPort`: a call runs here, or the turn is given back. Nobody is asked."""

    def __init__(self, consent: ConsentPort) -> None:
        self._consent = consent

    async def permission(self, number: int, digest: str, proposal: Proposal) -> Permission:
        """
        As by the account's daemon, for a tool that a worker runs.

        Raises:
            NeedsAccount: Another tool, or a question to a person. Neither was begun.
        """
        if proposal.call.name not in RUN_BY_WORKERS:
            raise NeedsAccount(f"the tool {proposal.call.name}")
        try:
            return await self._consent.permission(number, digest, proposal)
        except AwaitsApproval as waiting:
            raise NeedsAccount("a question to a person") from waiting
