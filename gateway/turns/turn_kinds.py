"""
What differs between turns: a conversation, a command, a check-in of the heartbeat, a scheduled or background
job. `TurnHandler` claims, runs and ends all turns in the same way. A `TurnKind` says whether and how one of
its turns is run and commits what came of it. The kind follows from the first message of the turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from agent_core.agent import TurnLimits
from agent_core.errors import BudgetSpent
from agent_core.models import Purpose, TurnResult
from gateway.budget.metering import UsageMeter
from gateway.routing.crash_isolation import MAX_DEATHS
from gateway.store.stores import Turn


@dataclass(frozen=True, slots=True)
class Plan:
    """
    The plan of a model's answer.

    Args:
        turn: The turn as the model sees it.
        purpose: The kind of work for the budget; it selects the model.
        question: The question for the model; None: the written messages.
        hold: The reply waits for the owner's approval and has no preview.
        limits: The limits of the run; None: the usual ones.
        quiet: No typing or progress is shown.
    """

    turn: Turn
    purpose: Purpose
    question: str | None = None
    hold: bool = False
    note: str = ""
    limits: TurnLimits | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """
    The limits of one turn.

    Args:
        max_attempts: Deaths with nothing else in flight, at the same step, before it is dead-lettered.
        outage_budget_s: The longest wait for an unavailable model.
        merge: The most messages of one turn.
    """

    max_attempts: int = MAX_DEATHS
    outage_budget_s: float = 3600.0
    merge: int = 20


@dataclass(frozen=True, slots=True)
class TurnFailureText:
    """
    The handling of a failed turn: ``delay_s`` until the next try; None moves it to the dead letters.

    ``is_explained``: the apology says all, and no operator can mend it, such as a message without content.
    """

    delay_s: float | None
    public: str
    error: str
    is_explained: bool = False


PlanT = TypeVar("PlanT", bound=Plan)


class TurnKind(Protocol[PlanT]):
    """One kind of turn, for all sessions. Methods that end a turn raise `LostTurn`."""

    async def plan(self, turn: Turn) -> PlanT | None:
        """Plan the model's answer at each start; None: committed without a model."""

    async def commit(self, turn: Turn, plan: PlanT, result: TurnResult, meter: UsageMeter) -> None:
        """Commit the answer of the model."""

    async def defer_to_budget(self, turn: Turn, error: BudgetSpent) -> None:
        """End or defer a turn that the daily budget refuses."""

    async def report_failure(self, turn: Turn, failure: TurnFailureText) -> None:
        """End a turn that failed for good."""

    def policy(self, policy: TurnPolicy) -> TurnPolicy:
        """The limits of one turn of this kind, where ``policy`` is the default."""
