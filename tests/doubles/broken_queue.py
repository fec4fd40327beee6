"""Opens the embedded queue with one of its stores replaced by a defective one, for negative controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_core.ports import Clock
from gateway.queue.sql.base import Part
from gateway.queue.sqlite.store import SqliteQueue

__all__ = ["opened_with"]


async def opened_with(defect: type[Part] | None, path: Path, clock: Clock, **more: Any) -> SqliteQueue:
    """The queue, with ``defect`` in the place of the store that it is derived from."""
    queue = await SqliteQueue.open(path, clock=clock, **more)
    if defect is not None:
        [name] = [
            name
            for name, part in vars(queue).items()
            if isinstance(part, Part) and issubclass(defect, type(part))
        ]
        setattr(queue, name, defect(queue.database))
    return queue
