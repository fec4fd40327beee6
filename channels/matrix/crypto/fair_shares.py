"""
Decides which entries are dropped first where strangers can create any number of them. Pure. Whoever runs a
homeserver has as many accounts as they like, so room is shared among servers first, and then among the people
of each: who has less than an equal share keeps everything, of the others the oldest goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def server_of(user_id: str) -> str:
    """The server of an account."""
    return user_id.partition(":")[2]


def excess_items(
    items: Sequence[tuple[_Item, str]],
    at_most: int,
    groups: Sequence[Callable[[str], str]] = (server_of, str),
) -> list[tuple[_Item, str]]:
    """Return the items, given oldest first, that must go so that ``at_most`` remain in fair shares."""
    if len(items) <= at_most:
        return []
    parts: dict[str, list[tuple[_Item, str]]] = {}
    for item in items if groups else ():
        parts.setdefault(groups[0](item[1]), []).append(item)
    share = _share(map(len, parts.values()), at_most)
    if share == 0:  # more of them than there is room for
        return list(items[: len(items) - at_most])
    return [item for part in parts.values() for item in excess_items(part, share, groups[1:])]


def _share(counts: Iterable[int], room: int) -> int:
    """Return the most that each may have so that all together fit."""
    left = sorted(counts)
    for place, count in enumerate(left):
        if count * (len(left) - place) > room:
            return room // (len(left) - place)
        room -= count
    return max(left, default=0)
