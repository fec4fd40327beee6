"""
The moves of the state machines as SQL: the condition under which a row may go to a state.

The condition is made from the tables in ``gateway/queue/states.py``, so a statement finds no row for a move
that its table does not have. Each is made once: a message needs ten of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from gateway.queue.states import INBOX_MOVES, OFFLINE_INBOX_MOVES, OUTBOX_MOVES, InboxState, OutboxState

UNINDEXED_STATE = "(state || '')"
"""The state as an expression, for which no index is taken: for states that most rows have."""


@cache
def inbox_sources(target: InboxState, *only: InboxState) -> str:
    """From where an inbox row may go to ``target``; with ``only`` from no other states than these."""
    sources = (state for state, targets in INBOX_MOVES.items() if target in targets)
    return _condition(state for state in sources if not only or state in only)


@cache
def offline_sources(target: InboxState) -> str:
    """From where an inbox row may go to ``target`` in a database that no gateway has open."""
    return _condition(state for state, targets in OFFLINE_INBOX_MOVES.items() if target in targets)


@cache
def outbox_sources(target: OutboxState, *only: OutboxState, also: tuple[OutboxState, ...] = ()) -> str:
    """
    From where a send may go to ``target``; with ``only`` from no other states than these.

    In ``also`` it is no move: the row is there already, or has come there without being seen.
    """
    sources = {state for state, targets in OUTBOX_MOVES.items() if target in targets}
    return _condition((sources & set(only) if only else sources) | set(also))


def _condition(states: Iterable[InboxState | OutboxState]) -> str:
    return "state IN (" + ", ".join(f"'{state}'" for state in sorted(states)) + ")"
