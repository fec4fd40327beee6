"""Where a queue is: in the file of the home, or in a database of PostgreSQL. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerDatabase:
    """A database of PostgreSQL, by its URL, and the lease without which nothing is changed there."""

    url: str = field(repr=False)
    needs: tuple[str, str, int] | None = None
    name: str = "PostgreSQL"

    def exists(self) -> bool:
        """Whether there is something to look at; a server that is away is told when it is asked."""
        return True


QueuePlace = Path | ServerDatabase


def place_of_queue(file: Path, store: str | None) -> QueuePlace:
    """Where the queue is: the file, or what the settings name."""
    return file if store is None else ServerDatabase(store)
