"""
Withdrawn messages (``!undo``, ``!retry``): the history keeps them, followed by a line that says so
(`Message.undoes`), and no prompt and no summary contains them any more. Pure.

The withdrawing line is always newer than what it withdraws, so the newest lines contain both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agent_core.models import Message


def undone_in(messages: Iterable[Message]) -> frozenset[str]:
    """The turns that lines among these withdraw."""
    return frozenset(message.undoes for message in messages if message.undoes)


def in_force(messages: Sequence[Message], undone: Collection[str] | None = None) -> Sequence[Message]:
    """The messages without the withdrawn ones, and without the lines that withdraw them."""
    gone = undone_in(messages) if undone is None else undone
    if not gone:
        return messages
    return [each for each in messages if not each.undoes and (each.turn is None or each.turn not in gone)]
