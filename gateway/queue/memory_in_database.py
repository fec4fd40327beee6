"""Histories and memory in the queue's database, for an engine that stores them there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from agent_core.memory_ports import MemoryPort, SearchIndexPort


class Trouble(NamedTuple):
    """A problem with the stored data: the affected part, and what to do about it."""

    part: str
    text: str
    remedy: str
    serious: bool = True


@dataclass(frozen=True, slots=True)
class MemoryInDatabase:
    """
    Histories and memory in tables beside the queue.

    The history contains an answer as soon as its turn is completed, and the journal of the queue stays empty.

    Args:
        memory: Histories, records, documents. It raises `StorageUnavailable`, as files do.
        named_files: Returns the path of each file that a history names. Raises `StorageUnavailable`.
    """

    memory: MemoryPort
    search: SearchIndexPort
    named_files: Callable[[], Awaitable[set[str]]]
