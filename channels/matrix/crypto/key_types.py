"""What the parts of encryption share: their types, and which entries of strangers are dropped first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar


class Device(NamedTuple):
    """A person's device. Another ``curve25519`` key makes it another device, whatever its id."""

    user_id: str
    device_id: str
    curve25519: str


class StoreBroken(Exception):
    """The crypto store exists but cannot be read: its keys are lost."""


class NoKey(Exception):
    """The key of an encrypted message is not here, or not yet."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(session_id)


class NotReadable(Exception):
    """Something encrypted will never be readable; the text says why, in one word."""


class UnsignedDevice(NoKey):
    """Its sender's device is not signed by its owner, who can still do so; until then it counts as no key."""


class ForeignKey(NoKey, NotReadable):
    """Somebody else has sent a key of that name. It reads nothing; the sender's own may still come."""

    def __str__(self) -> str:
        return "sender_mismatched"


class MustBeUnencrypted(NotReadable):
    """Something has no meaning when it is encrypted, such as a redaction; the text is its type."""


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
