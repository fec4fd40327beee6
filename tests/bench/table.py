"""Figures and how they are shown: each with its goal and with a floor that was measured in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should be."""

    sense: Literal["<", ">=", "="]
    limit: float

    def met(self, value: float) -> bool:
        """Whether ``value`` is good enough."""
        match self.sense:
            case "<":
                return value < self.limit
            case ">=":
                return value >= self.limit
            case "=":
                return value == self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One number.

    Args:
        what: What was measured.
        value: The number; None if it could not be measured, and then ``note`` says why.
        unit: Of the number, its goal and its floor.
        goal: What it should be; None for what is only worth knowing.
        floor: The least that anything could need here, measured beside it.
        floor_is: What the floor is.
        note: How it was measured, or anything else in a few words.
        group: What it is about, if that is not the measurement that it is of.
    """

    what: str
    value: float | None
    unit: str
    goal: Goal | None = None
    floor: float | None = None
    floor_is: str = ""
    note: str = ""
    group: str = ""

    @property
    def missed(self) -> bool:
        """Whether there is a goal, and it was not reached."""
        return self.goal is not None and (self.value is None or not self.goal.met(self.value))


def as_table(groups: Iterable[tuple[str, Sequence[Figure]]]) -> str:
    """The figures in columns, one block per measurement."""
    rows: list[tuple[str, ...]] = [("", "measured", "goal", "", "floor", "ratio", "")]
    for name, figures in groups:
        rows.append((name.upper(), "", "", "", "", "", ""))
        rows.extend(_cells(figure) for figure in figures)
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        what, *numbers, note = row
        cells = [what.ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([*cells, note]).rstrip())
    return "\n".join(lines)


def _cells(figure: Figure) -> tuple[str, ...]:
    value = "-" if figure.value is None else f"{as_number(figure.value)} {figure.unit}".strip()
    goal, verdict = "", ""
    if figure.goal is not None:
        goal = f"{figure.goal.sense} {as_number(figure.goal.limit)}"
        verdict = "MISSED" if figure.missed else "ok"
    floor = ratio = ""
    if figure.floor is not None:
        floor = f"{as_number(figure.floor)} {figure.unit}".strip()
        if figure.floor > 0 and figure.value is not None:
            ratio = f"{figure.value / figure.floor:.1f}x"
    note = "; ".join(
        text for text in (f"floor: {figure.floor_is}" * bool(figure.floor_is), figure.note) if text
    )
    return f"  {figure.what}", value, goal, verdict, floor, ratio, note


def as_number(value: float) -> str:
    """Three significant digits, and thousands apart."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def as_json(groups: Iterable[tuple[str, Sequence[Figure]]]) -> dict[str, list[dict[str, Any]]]:
    """The same for machines."""
    return {
        name: [
            asdict(figure) | {"missed": figure.missed, "group": figure.group or name} for figure in figures
        ]
        for name, figures in groups
    }


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def share(values: Sequence[float], part: float) -> float:
    """The value below which ``part`` of all lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]
