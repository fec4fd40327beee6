"""Names where a queue is: in the file of the home, or in a PostgreSQL database. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServerDatabase:
    """A PostgreSQL database: its URL, and the lease without which nothing is changed there."""

    url: str = field(repr=False)
    needs: tuple[str, str, int] | None = None
    name: str = "PostgreSQL"

    def exists(self) -> bool:
        """Return True: the database may exist; an unreachable server is reported by the first query."""
        return True


QueuePlace = Path | ServerDatabase


def place_of_queue(file: Path, store: str | None) -> QueuePlace:
    """Return where the queue is: the file, or the database that the settings name."""
    return file if store is None else ServerDatabase(store)
