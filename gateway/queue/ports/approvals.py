"""Questions to people about steps of turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agent_core.messages import SessionKey
from gateway.queue.model import Decided, NewOutbound, OutboxRow, Question, Step, Turn

if TYPE_CHECKING:
    from agent_core.tools.grants import Grant


class ApprovalStore(Protocol):
    """Asks people about steps."""

    async def ask(
        self, turn: Turn, step: Step, outbound: Sequence[NewOutbound], *, why: str, delay_s: float | None
    ) -> list[OutboxRow]:
        """
        Record a question and put what asks it into the outbox, unless that was done before; the turn is
        ``running → ready``, not before ``delay_s``, or at once if the question is decided. Neither the start
        nor the time counts. Without ``delay_s`` the turn goes on. Raises `LostTurn`.
        """
        ...

    async def settle(self, turn: Turn, step: Step, outbound: Sequence[NewOutbound]) -> Mapping[str, Any]:
        """
        Decide a question as ``step.result`` says and put ``outbound`` into the outbox, unless it is decided.
        Returns what counts. Raises `LostTurn`.
        """
        ...

    async def questions(self) -> list[Question]:
        """The questions of all turns that have not ended, oldest first."""
        ...

    async def decide(
        self, name: str, verdict: Mapping[str, Any], *, grant: Grant | None = None
    ) -> Question | None:
        """
        A person has decided: the turn is due at once. Nothing is changed if it is decided already, or too
        late. Returns the question as it is then; None if there is none of that name. ``grant`` is kept in
        the same transaction if the question is approved then.
        """
        ...

    async def decided(self, name: str) -> Decided | None:
        """What a person has decided of a question in the last month, also if its turn has ended."""
        ...

    async def newest_said(self, session: SessionKey) -> OutboxRow | None:
        """
        What was put into the outbox for a conversation last; what is held for a person is left out, and so
        are voice messages, which say again what was said.
        """
        ...
