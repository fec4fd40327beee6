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
    Histories and memory in tables of the queue's database.

    A completed turn's answer is in the history at once, and the journal stays empty. Both parts raise
    `StorageUnavailable`.
    """

    memory: MemoryPort
    search: SearchIndexPort
    named_files: Callable[[], Awaitable[set[str]]]
