"""
What follows when a turn fails. Pure.

Three outcomes are possible. A failure that is not the message's fault is retried within a time budget. A
turn that was in flight when the process died is a crash suspect and is dead-lettered after a few deaths.
Everything else is dead-lettered at once, with an apology. A failed turn never blocks the next one for longer
than the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_core.backoff import BackoffPolicy
from agent_core.errors import ModelRateLimited
from gateway.errors import describe
from gateway.queue.ports import Turn
from gateway.queue.states import Record
from gateway.routing.crash_isolation import MAX_DEATHS, SUDDEN_END, kills

__all__ = ["Failure", "TurnPolicy", "decide_failure", "poisonous"]

_MODEL_RETRY = BackoffPolicy(first_s=2.0, cap_s=300.0)


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """
    How much is done for one turn.

    Args:
        max_attempts: After so many deaths of the process one after the other at which nothing else was in
            flight, all at the same step of it, a turn is dead-lettered; and after two more in any case.
        outage_budget_s: So long a turn waits for a model that is away before it is dead-lettered.
        merge: How many waiting messages of a merging channel become one turn at the most.
    """

    max_attempts: int = MAX_DEATHS
    outage_budget_s: float = 3600.0
    merge: int = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """What to do about a failed turn: ``delay_s`` None means dead-letter it."""

    delay_s: float | None
    public: str
    error: str


def decide_failure(error: Exception, turn: Turn, policy: TurnPolicy, *, jitter: float) -> Failure:
    """
    What follows from an error.

    A temporary error of the model or the disk is waited for within the budget; everything else, known or
    not, is final, and its text for strangers goes into the apology.

    Args:
        error: What came out of the turn.
        turn: The failed turn.
        policy: How much patience there is.
        jitter: A number in [0, 1).
    """
    told = describe(error)
    text = str(error) or type(error).__name__
    if not told.temporary:
        return Failure(None, told.public, text)
    if turn.first_deferred_s >= policy.outage_budget_s:
        return Failure(None, _given_up(told.public, policy.outage_budget_s), text)
    delay_s = _MODEL_RETRY.delay(turn.deferrals + 1, random=jitter)
    if isinstance(error, ModelRateLimited) and error.retry_after_s is not None:
        delay_s = max(delay_s, min(error.retry_after_s, policy.outage_budget_s))
    return Failure(delay_s, told.public, text)


def poisonous(turn: Turn, policy: TurnPolicy, record: Record = Record()) -> Failure | None:  # noqa: B008 - a frozen value
    """
    The end of a turn that is not tried: the process dies of it, or its channel could not read the message and
    says in ``context["unreadable"]`` what its sender is told. None: try it.
    """
    unreadable = turn.head.message.context.get("unreadable")
    if isinstance(unreadable, str):
        return Failure(None, unreadable, "the message could not be read")
    if not kills(record, policy.max_attempts):
        return None
    return Failure(None, SUDDEN_END, f"the process ended {record.deaths} times on it")


def _given_up(public: str, budget_s: float) -> str:
    # What stands behind a semicolon in the texts of temporary errors promises another try.
    reason = public.partition(";")[0].rstrip(". ")
    minutes = round(budget_s / 60)
    span = "an hour" if minutes == 60 else f"{minutes} minutes" if minutes >= 2 else "a while"
    return f"{reason}. I kept trying for {span}; please ask me again later."
