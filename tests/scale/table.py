"""What `tests.scale` has measured, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["table"]

_ROWS: Sequence[tuple[str, Callable[[Mapping[str, Any]], Any]]] = (
    ("answers/s, more people than turns", lambda p: p["answers_s"]),
    ("  message sent to answer arrived, p50/p99 ms", lambda p: _pair(p["at_once"])),
    ("people at random moments, messages/s", lambda p: p["paced_per_s"]),
    ("  message sent to answer arrived, p50/p99 ms", lambda p: _pair(p["paced"])),
    ("processor time of a message: daemons, ms", lambda p: p["client_ms"]),
    ("processor time of a message: PostgreSQL, ms", lambda p: p["server_ms"]),
    ("  of the people's side, which runs here too, ms", lambda p: p["people_ms"]),
    ("load at the database, cores", lambda p: p["server_cores"]),
    ("WAL of a message, kB, at once/paced", lambda p: f"{p['wal_kb']}/{p['wal_kb_paced']}"),
    ("statements of a turn", lambda p: "-" if p["statements"] is None else p["statements"]),
    ("round trips of a turn, at once/paced", lambda p: f"{p['round_trips']}/{p['round_trips_paced']}"),
    ("transactions made again", lambda p: p["retried"]),
    ("deadlocks", lambda p: p["deadlocks"]),
    ("at rest: PostgreSQL, % of a core", lambda p: p["idle_server_percent"]),
    ("at rest: all daemons, % of a core", lambda p: p["idle_client_percent"]),
    ("a busy loop got, of a core", lambda p: p["core_got"]),
    ("messages", lambda p: p["messages"]),
    ("lost, doubled, out of order or stuck", lambda p: len(p["problems"])),
)


def table(points: Sequence[Mapping[str, Any]]) -> str:
    """A column for each point, and what a turn's calls of the database are."""
    rows = [
        ["conversations", *(f"{point['sessions']:,}" for point in points)],
        ["daemons", *(str(point["processes"]) for point in points)],
        *([name, *(str(value(point)) for point in points)] for name, value in _ROWS),
    ]
    return "\n".join([*_aligned(rows), "", *_calls(points)])


def _calls(points: Sequence[Mapping[str, Any]]) -> list[str]:
    if not points:
        return []
    one = points[0]
    rows = [["calls of a turn (first column above)", "calls", "round trips"]]
    rows += [[f"  {name}", *map(str, counts)] for name, counts in one["calls"].items() if counts[0] >= 0.01]
    rows += [["calls at rest, in a second", "", ""]]
    rows += [[f"  {name}", str(per_s), ""] for name, per_s in one["idle_calls_s"].items()]
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]


def _pair(latencies: Sequence[float]) -> str:
    return "/".join(map(str, latencies)) or "-"
