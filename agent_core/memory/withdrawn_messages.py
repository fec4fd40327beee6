"""
Withdrawn messages (``!undo``, ``!retry``, a deletion by their sender): the history keeps them, followed by a
line that says so (`Message.undoes`), and no prompt, no summary and no search contains them any more. Pure.

The withdrawing line is always newer than what it withdraws, so the newest lines contain both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from agent_core.models import Message


def withdrawn_ids(messages: Iterable[Message]) -> frozenset[str]:
    """The turns, and the ids of single lines, that lines among these withdraw."""
    return frozenset(message.undoes for message in messages if message.undoes)


def in_force(messages: Sequence[Message], undone: Collection[str] | None = None) -> Sequence[Message]:
    """The messages without the withdrawn ones, and without the lines that withdraw them."""
    gone = withdrawn_ids(messages) if undone is None else undone
    if not gone:
        return messages
    return [each for each in messages if not each.undoes and not is_undone(each, gone)]


def is_undone(message: Message, undone: Collection[str]) -> bool:
    """Return True if a message is among those that were withdrawn."""
    return message.turn in undone or message.id in undone
