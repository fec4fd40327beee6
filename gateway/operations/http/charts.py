"""
Line charts as inline SVG. Pure. A chart has a fixed span of time on its x axis, a y axis from 0 to a round
number, and lines that are broken where there is no value. Colours are classes, which the page's style defines
for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape

from gateway.operations.http.samples import DAY_S, Sample

_WIDTH, _HEIGHT = 560, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 22


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line: its name, and a value or None for each instant."""

    name: str
    points: Sequence[tuple[datetime, float | None]]


def ceiling(value: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 … (times a power of ten) that is not below ``value``; at least 1."""
    if not math.isfinite(value) or value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= value * (1 - 1e-9))


def chart(title: str, lines: Sequence[ChartLine], *, until: datetime, span: timedelta, unit: str = "") -> str:
    """One chart with its title and legend, as a ``figure``."""
    highest = max((value for line in lines for _, value in line.points if value is not None), default=0.0)
    top = ceiling(highest)
    parts = [_grid(top, unit, until, span)]
    for number, line in enumerate(lines):
        parts += [
            f'<polyline class="l{number}" points="{points}"/>' for points in _pieces(line, top, until, span)
        ]
    legend = " ".join(
        f'<span class="k{number}">{escape(line.name)}</span>' for number, line in enumerate(lines)
    )
    empty = "" if any(line.points for line in lines) else '<p class="none">nothing yet</p>'
    said = escape(
        f"{title}: at most {_short(highest)}{unit} in the last {int(span.total_seconds() // 3600)} hours"
    )
    return (
        f"<figure><figcaption>{escape(title)} <small>{legend}</small></figcaption>{empty}"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{said}">{"".join(parts)}</svg>'
        "</figure>"
    )


def _grid(top: float, unit: str, until: datetime, span: timedelta) -> str:
    parts = []
    for part in (0.0, 0.5, 1.0):
        y = _y(part * top, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(part * top)}{unit}</text>'
        )
    hours = int(span.total_seconds() // 3600)
    for back in range(0, hours + 1, 6):
        x = _x(until - timedelta(hours=back), until, span)
        anchor = "end" if back == 0 else "start" if back == hours else "middle"
        label = "now" if back == 0 else f"-{back} h"
        parts.append(f'<text x="{x}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{label}</text>')
    return "".join(parts)


def _pieces(line: ChartLine, top: float, until: datetime, span: timedelta) -> list[str]:
    """The points of each unbroken piece; a single one becomes a short dash."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in line.points:
        if value is None or not math.isfinite(value) or not until - span <= at <= until:
            pieces.append([])
        else:
            pieces[-1].append((_x(at, until, span), _y(value, top)))
    return [
        " ".join(
            f"{x},{y}" for x, y in (piece if len(piece) > 1 else [*piece, (piece[0][0] + 2, piece[0][1])])
        )
        for piece in pieces
        if piece
    ]


def _x(at: datetime, until: datetime, span: timedelta) -> float:
    part = 1 - (until - at) / span
    return round(_LEFT + part * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(value: float, top: float) -> float:
    return round(_HEIGHT - _BOTTOM - max(0.0, value) / top * (_HEIGHT - _TOP - _BOTTOM), 1)


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}" if value % size == 0 else f"{value / size:.1f}{letter}"
    return f"{value:g}" if value == round(value, 1) else f"{value:.1f}"


def day_charts(samples: Sequence[Sample], now: datetime) -> str:
    """The charts of the last day, as SVG."""

    def line(name: str, value: Callable[[Sample], float | None]) -> ChartLine:
        return ChartLine(name, [(one.at, value(one)) for one in samples])

    return "".join(
        chart(title, lines, until=now, span=timedelta(seconds=DAY_S), unit=unit)
        for title, unit, lines in (
            ("Queue", "", [line("unanswered", lambda s: s.waiting), line("unsent", lambda s: s.unsent)]),
            ("Answers in five minutes", "", [line("answers", lambda s: s.turns)]),
            ("Time to an answer", " s", [line("average", lambda s: s.latency_s)]),
            (
                "Tokens in five minutes",
                "",
                [line("read", lambda s: s.prompt_tokens), line("written", lambda s: s.completion_tokens)],
            ),
        )
    )
