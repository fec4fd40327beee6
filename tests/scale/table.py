"""What `tests.scale` has measured, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ROWS: Sequence[tuple[str, Callable[[Mapping[str, Any]], Any]]] = (
    ("answers/s, more people than turn slots", lambda p: p["answers_s"]),
    ("  message to answer, p50/p99 ms", lambda p: _pair(p["at_once"])),
    ("people at random moments, messages/s", lambda p: p["paced_per_s"]),
    ("  message to answer, p50/p99 ms", lambda p: _pair(p["paced"])),
    ("processor time per message, daemons, ms", lambda p: round(p["client_ms"], 1)),
    ("  PostgreSQL, ms", lambda p: round(p["server_ms"], 1)),
    ("  the virtual people, ms", lambda p: round(p["people_ms"], 1)),
    ("cores busy in total", lambda p: p["cores"]),
    ("load at the database, cores", lambda p: p["server_cores"]),
    ("WAL per message, kB, at once/paced", lambda p: f"{p['wal_kb']}/{p['wal_kb_paced']}"),
    ("statements per turn", lambda p: "-" if p["statements"] is None else p["statements"]),
    ("round trips per turn, at once/paced", lambda p: f"{p['round_trips']}/{p['round_trips_paced']}"),
    ("repeated transactions", lambda p: p["retried"]),
    ("deadlocks", lambda p: p["deadlocks"]),
    ("at rest: PostgreSQL, % of a core", lambda p: p["idle_server_percent"]),
    ("at rest: all daemons, % of a core", lambda p: p["idle_client_percent"]),
    ("share of a core that a busy loop got", lambda p: p["core_got"]),
    ("messages", lambda p: p["messages"]),
    ("lost, doubled, out of order or stuck", lambda p: len(p["problems"])),
)


def table(points: Sequence[Mapping[str, Any]]) -> str:
    """A column for each point, and what a turn's calls of the database are."""
    return "\n".join([*_aligned(_rows(points)), "", *_calls(points)])


def _rows(points: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        ["conversations", *(f"{point['sessions']:,}" for point in points)],
        ["daemons", *(str(point["processes"]) for point in points)],
        *([name, *(str(value(point)) for point in points)] for name, value in _ROWS),
    ]


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
