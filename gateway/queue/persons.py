"""A person's rows, found and erased wherever the queue is: in a file, or in a database of PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from gateway.queue.memory_beside import Trouble
from gateway.queue.opening import of_home, of_server
from gateway.queue.place import QueuePlace, ServerDatabase
from gateway.queue.sql.erasure import PersonRows


@contextmanager
def _engine(place: QueuePlace) -> Iterator[tuple[ModuleType, Any]]:
    if isinstance(place, Path):
        from gateway.queue.sqlite import erasure as embedded  # noqa: PLC0415 - one of the two is loaded

        with of_home():
            yield embedded, place
        return
    with of_server():
        from gateway.queue.postgres import erasure as server  # noqa: PLC0415 - as above

        yield server, place


def person_rows(
    place: QueuePlace, addresses: Collection[str], sessions: Collection[str], turns: Collection[str]
) -> PersonRows:
    """Find a person's rows; nothing is changed. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with _engine(place) as (engine, where):
        found: PersonRows = engine.person_rows(where, addresses, sessions, turns)
    return found


def erase_rows(
    place: QueuePlace,
    addresses: Collection[str],
    sessions: Collection[str],
    turns: Collection[str],
    *,
    now: float,
) -> PersonRows:
    """Remove a person's rows for good. Raises `StoreUnavailable`, `ConfigInvalid`: once more does it."""
    with _engine(place) as (engine, where):
        found: PersonRows = engine.erase_rows(where, addresses, sessions, turns, now=now)
    return found


def named_in_rows(place: QueuePlace, names: Collection[str]) -> frozenset[str]:
    """Which of these texts stand in a message. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with _engine(place) as (engine, where):
        found: frozenset[str] = engine.named_in_rows(where, names)
    return found


def repeated_in_rows(
    place: QueuePlace, blanked: Callable[[Any], Any], theirs: PersonRows, *, change: bool
) -> dict[str, int]:
    """How many texts ``blanked`` changes, without ``theirs``. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with _engine(place) as (engine, where):
        found: dict[str, int] = engine.repeated_in_rows(where, blanked, theirs, change=change)
    return found


def table_troubles(place: ServerDatabase) -> list[Trouble]:
    """What is wrong with histories and memory in tables. Raises `StoreUnavailable`, `ConfigInvalid`."""
    with of_server():
        from gateway.queue.postgres.histories.integrity import troubles  # noqa: PLC0415 - the default has no driver
        from gateway.queue.postgres.histories.personal import KeptTables  # noqa: PLC0415 - as above
        from gateway.queue.postgres.store import HOME  # noqa: PLC0415 - as above

        with KeptTables(place, HOME) as kept:
            return list(troubles(kept))
