"""Which messages of a history are handed out: the rule that every storage shares. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent_core.models import HistoryTail, Message

__all__ = ["Entry", "Place", "newest", "oldest"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the file a position begins: ``message_id`` is that of the line there, if it has one."""

    position: int = 0
    offset: int = 0
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: its message, or None where there is none that can be read."""

    position: int
    offset: int
    message: Message | None
    chars: int = 0
    broken: bool = False


def newest(
    entries: Iterable[Entry], *, cursor: int, total: int, max_messages: int | None, max_chars: int | None
) -> HistoryTail:
    """Choose from ``entries``, given newest first, what `MemoryPort.load_history` promises."""
    chosen: dict[int, Entry] = {}  # by order of arrival, newest first
    by_id: dict[str, int] = {}
    chars = skipped = 0
    complete = True
    for number, entry in enumerate(entries):
        if entry.position < cursor:
            break
        if entry.message is None:
            skipped += entry.broken
            continue
        if chosen and (
            (max_messages is not None and len(chosen) >= max_messages)
            or (max_chars is not None and chars + entry.chars > max_chars)
        ):
            complete = False
            break
        if entry.message.id is not None:
            if (again := by_id.get(entry.message.id)) is not None:
                chars -= chosen.pop(again).chars
            by_id[entry.message.id] = number
        chosen[number] = entry
        chars += entry.chars
    ordered = list(reversed(chosen.values()))
    return HistoryTail(
        messages=tuple(entry.message for entry in ordered if entry.message is not None),
        total=total,
        unconsolidated=total - cursor,
        skipped_lines=skipped,
        complete=complete,
        cursor=cursor,
        positions=tuple(entry.position for entry in ordered),
    )


def oldest(
    entries: Iterable[Entry], *, cursor: int, total: int, max_messages: int, max_chars: int | None
) -> HistoryTail:
    """Choose from ``entries``, given oldest first, what `MemoryPort.load_segment` promises."""
    chosen: list[Entry] = []
    seen: set[str] = set()
    chars = skipped = 0
    complete = True
    for entry in entries:
        if entry.message is None:
            skipped += entry.broken
            continue
        if len(chosen) >= max_messages or (
            chosen and max_chars is not None and chars + entry.chars > max_chars
        ):
            complete = False
            break
        if entry.message.id is None or entry.message.id not in seen:
            chosen.append(entry)
            chars += entry.chars
        if entry.message.id is not None:
            seen.add(entry.message.id)
    return HistoryTail(
        messages=tuple(entry.message for entry in chosen if entry.message is not None),
        total=total,
        unconsolidated=total - cursor,
        skipped_lines=skipped,
        complete=complete,
        cursor=cursor,
        positions=tuple(entry.position for entry in chosen),
    )
