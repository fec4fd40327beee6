"""
Generates the SQL of the state machines: the condition under which a row may move to a state.

The condition comes from the tables in ``gateway/store/states.py``, so a statement finds no row for a move
that its table lacks. Each condition is generated once, because a message needs ten of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from gateway.store.states import INBOX_MOVES, OFFLINE_INBOX_MOVES, OUTBOX_MOVES, InboxState, OutboxState

LONGEST_S = 2 * 3600.0
"""No row waits longer: a wrong clock wrote any instant that is later from now, and the row is due at once."""

UNINDEXED_STATE = "(state || '')"
"""The state as an expression that no index matches: for states that most rows share."""


@cache
def inbox_sources(target: InboxState, *only: InboxState) -> str:
    """Return the condition on inbox rows that may move to ``target``; ``only`` restricts the sources."""
    sources = (state for state, targets in INBOX_MOVES.items() if target in targets)
    return _condition(state for state in sources if not only or state in only)


@cache
def offline_sources(target: InboxState) -> str:
    """Return the condition on inbox rows that may move to ``target`` while no gateway is open."""
    return _condition(state for state, targets in OFFLINE_INBOX_MOVES.items() if target in targets)


@cache
def outbox_sources(target: OutboxState, *only: OutboxState, also: tuple[OutboxState, ...] = ()) -> str:
    """
    Return the condition on sends that may move to ``target``; ``only`` restricts the source states.

    States in ``also`` are accepted without a move: the row is there already, or came there unobserved.
    """
    sources = {state for state, targets in OUTBOX_MOVES.items() if target in targets}
    return _condition((sources & set(only) if only else sources) | set(also))


def _condition(states: Iterable[InboxState | OutboxState]) -> str:
    return "state IN (" + ", ".join(f"'{state}'" for state in sorted(states)) + ")"


def due_at(now: float, delay_s: float) -> float:
    """Return the instant to store for a wait that begins now."""
    return now + min(delay_s, LONGEST_S)


def wait_s(next_at: float | None, now: float) -> float:
    """Return the seconds that a row with this instant still waits; 0.0 if it is due."""
    left_s = 0.0 if next_at is None else next_at - now
    return left_s if 0.0 < left_s <= LONGEST_S else 0.0
