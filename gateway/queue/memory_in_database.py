"""Histories and memory that are in the database of the queue, where an engine keeps them there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from agent_core.memory_ports import MemoryPort, SearchIndexPort


class Trouble(NamedTuple):
    """Something that is wrong with what is kept: in which part, and what to do."""

    part: str
    text: str
    remedy: str
    serious: bool = True


@dataclass(frozen=True, slots=True)
class MemoryInDatabase:
    """
    Histories and memory in tables beside the queue.

    The history of an answer is there when its turn is completed, and the journal of the queue stays empty.

    Args:
        memory: Histories, records, documents. It raises `StorageUnavailable`, as files do.
        named_files: The path of each file that a history names. Raises `StorageUnavailable`.
    """

    memory: MemoryPort
    search: SearchIndexPort
    named_files: Callable[[], Awaitable[set[str]]]
