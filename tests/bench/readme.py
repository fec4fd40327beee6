"""
The figures of docs/benchmarks.md, made from what the commands wrote and never typed.

``make bench``, ``make kill`` and ``make soak`` each keep the figures of their last whole run as JSON beside this
file. `section` turns them into the Markdown between that page's two markers; a test holds the README to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.table import as_number

__all__ = ["BENCH", "KILL", "PAGE", "SOAK", "FigureMissing", "put_into", "section"]

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "benchmarks.md"
BENCH, KILL, SOAK = (HERE / f"figures-{name}.json" for name in ("bench", "kill", "soak"))
BEGIN, END = "<!-- figures: written by python -m tests.bench --readme -->", "<!-- end of figures -->"

_HEADLINES: Mapping[str, Sequence[str]] = {
    "ready": ("from start to ready, Matrix and mail connected",),
    "size": (
        "resident memory, idle",
        "processor time while idle",
        "resident memory of the daemon after",
        "resident memory of litellm",
    ),
    "overhead": ("history of 10 messages: ", "long histories"),
    "throughput": ("throughput", "order violations"),
    "request": ("",),
    "models": ("",),
    "matrix": ("question to answer",),
    "flood": ("answer time while",),
    "mail": ("mail to answer", "20 threads at once"),
    "mailbox": ("first start with", "longest block of the event loop"),
    "attacked": ("a turn's p95 beside", "longest delay of the event loop"),
    "commands": ("squidbot",),
    "recall": ("facts still known",),
    "heartbeat": ("model calls in a week", "tokens of a heartbeat run with an alert"),
    "speech": ("speaking an answer",),
    "voice": ("transcribing a minute",),
}
"""By measurement, how the names of the figures that the page shows begin."""

_MAX_KINDS = 8
"""So many kinds of kills are named; the rest is one number."""


class FigureMissing(Exception):
    """A measurement of the page is not in the file; the whole benchmark must run."""


def section(bench: Mapping[str, Any], kill: Mapping[str, Any] | None, soak: Mapping[str, Any] | None) -> str:
    """
    The part on figures.

    Raises:
        FigureMissing: ``bench`` is of a run with ``--only``.
    """
    lines = [
        f"`make bench`, {bench['machine']}.",
        "Times vary on a shared machine. The ratio compares each figure with a floor measured in the same run.",
        "",
        "| what | measured | goal | floor in the same run |",
        "|---|---|---|---|",
    ]
    for group, names in _HEADLINES.items():
        rows = [
            figure
            for figures in bench["figures"].values()
            for figure in figures
            if figure["group"] == group and figure["what"].startswith(tuple(names))
        ]
        if not rows:
            raise FigureMissing(group)
        lines += map(_row, rows)
    if kill is not None:
        hits = [f"{count:,} {what}" for what, count in kill["hits"].items()]
        if len(hits) > _MAX_KINDS:
            others = sum(list(kill["hits"].values())[_MAX_KINDS:])
            hits[_MAX_KINDS:] = [f"and {others:,} of {len(hits) - _MAX_KINDS} other kinds"]
        lines += [
            "",
            (
                f"`make kill`, {kill['machine']}, seed {kill['seed']}: {sum(kill['hits'].values()):,} SIGKILLs that hit "
                f"in {kill['tests']} tests. Nothing was lost, doubled or out of order."
            ),
            f"By what was killed: {', '.join(hits)}.",
        ]
    if soak is not None:
        lines += ["", f"`make soak`, {soak['machine']}: {soak['text']}"]
    return "\n".join(lines)


def put_into(page: str, text: str) -> str:
    """
    ``page`` with ``text`` between its markers.

    Raises:
        ValueError: A marker is missing.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def read(path: Path) -> Any:
    """What a command has kept; None if it never ran whole."""
    return json.loads(path.read_text()) if path.exists() else None


def _row(figure: Mapping[str, Any]) -> str:
    value = (
        "not measured"
        if figure["value"] is None
        else f"{as_number(figure['value'])} {figure['unit']}".strip()
    )
    if figure["missed"]:
        value += ", **missed**"
    goal = ""
    if figure["goal"] is not None:
        goal = f"{figure['goal']['sense']} {as_number(figure['goal']['limit'])} {figure['unit']}".strip()
    floor = ""
    if figure["floor"] is not None:
        floor = f"{as_number(figure['floor'])} {figure['unit']}: {figure['floor_is']}".strip(": ")
        if figure["floor"] > 0 and figure["value"] is not None:
            value += f" ({figure['value'] / figure['floor']:.1f}×)"
    what = figure["what"] if figure["group"] not in ("overhead", "request") else _named(figure)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (what, value, goal, floor)) + " |"


def _named(figure: Mapping[str, Any]) -> str:
    """Some names are clear only below the heading of their measurement."""
    return (
        f"a turn without the model's time, {figure['what']}"
        if figure["group"] == "overhead"
        else figure["what"]
    )
