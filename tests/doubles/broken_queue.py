"""Opens a queue with one of its stores replaced by a defective one, for negative controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from agent_core.ports import Clock
from gateway.store.sql.engine import Store
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Queue

_Queue = TypeVar("_Queue", bound=Queue)


async def opened_with(defect: type[Store] | None, path: Path, clock: Clock, **more: Any) -> SqliteQueue:
    """The embedded queue, with ``defect`` in the place of the store that it is derived from."""
    return with_defect(await SqliteQueue.open(path, clock=clock, **more), defect)


def with_defect(queue: _Queue, defect: type[Store] | None) -> _Queue:
    """The same of a queue that is open."""
    if defect is not None:
        [name] = [
            name
            for name, part in vars(queue).items()
            if isinstance(part, Store) and issubclass(defect, type(part))
        ]
        setattr(queue, name, defect(queue.database))
    return queue
