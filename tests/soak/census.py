"""What a gateway in this process consists of at one moment, in counts that do not depend on the machine."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
import weakref
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from agent_core.models import Message, ToolCall
from agent_core.provenance import Origin
from agent_core.storage.history_paging import Entry

TAIL_LINES = 1000
"""So many lines of a conversation a history keeps decoded at most."""
A_FEW = 4
"""Tasks or descriptors that are just there at one moment; one for each message would be hundreds."""
THREADS = 14
"""Those for files and for what blocks come and go; one for each message would be hundreds."""


@dataclass(frozen=True, slots=True)
class Census:
    """
    ``objects`` by type, of those that the garbage collector watches, without the tails of histories, which
    ``tails`` counts in lines; ``rows`` by table, ``payloads`` those that still have their text; ``files`` by folder and ending.
    """

    objects: Counter[str]
    tails: int
    tasks: int
    threads: int
    descriptors: int
    rows: dict[str, int]
    payloads: dict[str, int]
    files: Counter[str]


def census(home: Path) -> Census:
    """Count. To be taken when nothing is being worked on."""
    for _ in range(3):
        gc.collect()
    with closing(sqlite3.connect(home / "gateway.db")) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
        payloads = {
            name: db.execute(f"SELECT count(*) FROM {name} WHERE payload IS NOT NULL").fetchone()[0]
            for name in ("inbox", "outbox")
        }
    files = [path for path in home.rglob("*") if path.is_file() and ".db" not in path.name]
    everything = gc.get_objects()
    entries = [one for one in everything if type(one) is Entry]
    held = _held_by(entries)
    return Census(
        objects=Counter(
            f"{type(one).__module__}.{type(one).__qualname__}"
            for one in everything
            if id(one) not in held and not _is_dead(one)
        ),
        tails=len(entries),
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        descriptors=len(os.listdir("/proc/self/fd")),
        rows=rows,
        payloads=payloads,
        files=Counter(f"{path.parent.relative_to(home)}/*{path.suffix}" for path in files),
    )


def _is_dead(one: object) -> bool:
    """A reference to a cursor that is gone. A connection of sqlite3 drops these at every two hundredth cursor."""
    return type(one) is weakref.ReferenceType and one() is None


def _held_by(entries: list[Entry]) -> set[int]:
    """The lines that a history keeps decoded, with all that belongs to them alone."""
    held = {id(one) for one in entries}
    level: list[object] = list(entries)
    while level:
        level = [
            one
            for one in gc.get_referents(*level)
            if isinstance(one, Message | Origin | ToolCall | set | dict | list | tuple)
            and id(one) not in held
        ]
        held |= {id(one) for one in level}
    return held


def grown(before: Census, after: Census, *, objects: int, rows: dict[str, int]) -> list[str]:
    """
    What has become more, as sentences.

    Args:
        before, after: Two moments at which the gateway should have been the same.
        objects: How many more objects in all are no growth: caches that were not full yet.
        rows: How many more rows of a table are as they should be; 0 for those that are not named.
    """
    wrong = []
    more = after.objects - before.objects
    total = sum(after.objects.values()) - sum(before.objects.values())
    if total > objects:
        wrong.append(f"{total} objects more, of them {more.most_common(8)}")
    if after.tails > TAIL_LINES * before.files["sessions/*.jsonl"]:
        wrong.append(f"{after.tails} lines of histories are held in memory")
    if after.tasks > before.tasks + A_FEW:
        wrong.append(f"tasks: {before.tasks} → {after.tasks}")
    if after.threads > before.threads + THREADS:
        wrong.append(f"threads: {before.threads} → {after.threads}")
    if after.descriptors > before.descriptors + A_FEW:
        wrong.append(f"descriptors: {before.descriptors} → {after.descriptors}")
    for table, count in after.rows.items():
        if count - before.rows.get(table, 0) > rows.get(table, 0):
            wrong.append(f"rows in {table}: {before.rows.get(table, 0)} → {count}")
    wrong += [f"{count} more files {name}" for name, count in (after.files - before.files).items()]
    return wrong
