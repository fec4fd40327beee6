"""
Steps of turns that wait for a person's yes, as the durable queue's database knows them.

`AskStore` is a port beside `WorkStore`, kept by the same adapter in the same database. A question is a step
of its turn, of the kind ``approval``, in the place of the tool's own: it is gone when the tool starts, and
with its turn. All methods may raise `StoreUnavailable`: then nothing of the call has happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agent_core.messages import SessionKey
from gateway.queue.model import NewOutbound, OutboxRow, Step, Turn

__all__ = ["APPROVAL", "AskStore", "Question"]

APPROVAL = "approval"
"""The kind of such a step."""


@dataclass(frozen=True, slots=True)
class Question:
    """
    A question whose turn has not ended.

    Args:
        name: By which people call it.
        session: Where it was asked.
        asked: The addresses of those whose messages the turn answers.
        tool: What wants to run.
        until: When it is too late for a yes.
        verdict: What was decided; None: it waits.
    """

    name: str
    session: SessionKey
    asked: tuple[str, ...]
    tool: str
    until: datetime
    verdict: Mapping[str, Any] | None


class AskStore(Protocol):
    """Asks people about steps."""

    async def ask(
        self, turn: Turn, step: Step, outbound: Sequence[NewOutbound], *, why: str, delay_s: float
    ) -> list[OutboxRow]:
        """
        Record a question and put what asks it into the outbox, unless that was done before; the turn is
        ``running → ready``, not before ``delay_s``, or at once if the question is decided. Neither the start
        nor the time counts.

        Raises:
            LostTurn: Not any more ours.
        """
        ...

    async def settle(self, turn: Turn, step: Step, outbound: Sequence[NewOutbound]) -> Mapping[str, Any]:
        """
        Decide a question as ``step.result`` says and put ``outbound`` into the outbox, unless it is decided.
        Returns what counts.

        Raises:
            LostTurn: Not any more ours.
        """
        ...

    async def questions(self) -> list[Question]:
        """The questions of all turns that have not ended, oldest first."""
        ...

    async def decide(self, name: str, verdict: Mapping[str, Any]) -> Question | None:
        """
        A person has decided: the turn is due at once. Nothing is changed if it is decided already, or too
        late. Returns the question as it is then; None if there is none of that name.
        """
        ...
