"""
The note in a database that its content is moved, or was: nobody works there any more.

It stands in ``meta`` and is durable before the first row exists elsewhere. So two daemons with the settings
of before and after never answer the same message.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gateway.queue.errors import StoreUnusable

NAME = "moved"
"""The row of ``meta``."""


class StoreMoved(StoreUnusable):
    """What was in the database is, or is to be, somewhere else."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Where to, when it was begun (for people), and whether all of it is there."""

    to: str
    at: str
    done: bool = False

    def text(self) -> str:
        """As ``meta`` has it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Marker:
        """Read what `text` wrote; what cannot be read is a marker all the same."""
        try:
            value = json.loads(text)
            return cls(str(value["to"]), str(value["at"]), value["done"] is True)
        except (ValueError, KeyError, TypeError):
            return cls("another place", "a day that cannot be read")


def refuse_moved(text: str | None, where: str) -> None:
    """See that a database has no such note. Raises `StoreMoved`: it has one; the text says what to do."""
    if text is None:
        return
    marker = Marker.read(text)
    is_home = not marker.to.startswith("postgresql:")
    if marker.done:
        change = "take gateway.store out of the configuration" if is_home else "gateway.store must name that"
        told = (
            f"The queue of {where} was moved to {marker.to} on {marker.at}: {change}. To continue here with"
            " the content of that day, without what was added there since: squidbot migrate --take-back"
        )
    else:
        to = "embedded" if is_home else marker.to
        told = (
            f"A move of the queue from {where} to {marker.to} started on {marker.at} and has not ended:"
            f" squidbot migrate --to {to} continues it, squidbot migrate --take-back cancels it"
        )
    raise StoreMoved(told, path=where)
