"""
The marker in a ``gateway.db`` whose content is being moved or was moved into PostgreSQL: nobody works there
any more. It is a row of ``meta`` and is durable before the first row exists elsewhere. So two daemons with
the old and the new settings never answer the same message.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gateway.store.store_errors import StoreUnusable

NAME = "moved"
"""The row of ``meta``."""


class StoreMoved(StoreUnusable):
    """The content of the database was moved, or is being moved, to another place."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The destination, the start of the move (for people), and whether it is complete."""

    to: str
    at: str
    done: bool = False

    def text(self) -> str:
        """Return the marker as ``meta`` stores it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Marker:
        """Parse what `text` returned; an unreadable value counts as a marker, too."""
        try:
            value = json.loads(text)
            return cls(str(value["to"]), str(value["at"]), value["done"] is True)
        except (ValueError, KeyError, TypeError):
            return cls("another place", "a day that cannot be read")


def check_no_marker(text: str | None, where: str) -> None:
    """Check that a database has no marker. Raises `StoreMoved` if it has one; the error says what to do."""
    if text is None:
        return
    marker = Marker.read(text)
    if marker.done:
        told = (
            f"The queue of {where} was moved to {marker.to} on {marker.at}: gateway.store must name that."
            " To undo the move, restore the backup from before it"
        )
    else:
        told = (
            f"A move of the queue from {where} to {marker.to} started on {marker.at} and has not ended:"
            f" squidbot migrate --to {marker.to} continues it; to undo it, restore the backup from before it"
        )
    raise StoreMoved(told, path=where)
