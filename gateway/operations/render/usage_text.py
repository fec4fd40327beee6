"""`squidbot usage` as text (a bar for every row, the rest of the budget), and receipts of tools."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from textwrap import wrap
from typing import Any

from agent_core.text import one_line
from gateway.system.terminal_text import local_time, place_of, plain_line

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_MAX_NAME = 32
_SHORTEST_BAR = 4


def usage(answer: Mapping[str, Any], width: int | None = None) -> str:
    """Render ``usage``, in lines of at most ``width`` characters; by default those of the terminal."""
    if width is None:
        width = shutil.get_terminal_size((80, 24)).columns
    rows: Sequence[Mapping[str, Any]] = answer["rows"]
    lines: list[str] = []
    if answer["total"]["calls"] or answer["total"]["prompt_tokens"]:
        begun = rows if answer["by"] != "day" else list(dropwhile(_is_empty, rows))
        lines += _chart(begun, answer["by"], width)
        lines += ["", *(part for line in _total(answer) for part in wrap(line, width))]
        lines += _dearest(answer.get("dearest") or (), width)
    else:
        days = answer["days"]
        lines.append("nothing was spent today" if days == 1 else f"nothing was spent in the last {days} days")
    lines += [part for line in budget_line(answer["budget"]) for part in wrap(line, width)]
    return "\n".join(lines)


def _dearest(turns: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """The turns that cost the most; `squidbot inbox show ID` shows each."""
    lines = ["", "the dearest turns:"] if turns else []
    for turn in turns:
        at = local_time(turn["at"])[:16]
        told = f"{_numbers(turn)}, {calls(turn['calls'])}"
        room = width - len(told) - len(at) - len(str(turn["id"])) - 8
        where = shorten(place_of(turn) if turn["session"] else "not kept any more", max(8, room))
        lines.append(f"  {turn['id']}  {at}  {where}  {told}")
    return lines


def calls(count: int) -> str:
    """A number of calls of a model."""
    return f"{count:,} {'call' if count == 1 else 'calls'}"


def bar(part: float, width: int) -> str:
    """A bar of ``part`` (0 to 1) of ``width`` characters, in eighths; anything above 0 is visible."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    if part > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def shorten(name: str, longest: int) -> str:
    """A name with its middle left out, because both ends of a session's name tell it from others."""
    flat = plain_line(name)
    if len(flat) <= longest:
        return flat
    end = (longest - 1) // 2
    return f"{flat[: longest - 1 - end]}…{flat[-end:]}" if end else flat[:longest]


def budget_line(budget: Mapping[str, Any]) -> list[str]:
    """Render the day's cost against its limits; empty without a limit."""
    parts = []
    tokens, usd = budget["tokens"], budget["usd"]
    if tokens["limit"] is not None:
        part = tokens["spent"] / tokens["limit"]
        parts.append(f"{tokens['spent']:,} of {tokens['limit']:,} tokens ({part:.0%})")
    if usd["limit"] is not None:
        parts.append(f"{usd['spent']:.2f} of {usd['limit']:.2f} USD ({usd['spent'] / usd['limit']:.0%})")
    if not parts:
        return []
    line = f"budget of today: {', '.join(parts)}"
    if budget["refused"]:
        line += f"; waiting until it opens again {budget['opens']}: {', '.join(budget['refused'])}"
    return [line]


def _chart(rows: Sequence[Mapping[str, Any]], by: str, width: int) -> list[str]:
    most = max((_tokens(row) for row in rows if not row.get("gathered")), default=0)
    numbers = [_numbers(row) for row in rows]
    right = max((len(text) for text in numbers), default=0)
    room = max(width - right - 4, _SHORTEST_BAR + 6)
    names = [_name(row, by) for row in rows]
    longest = min(max((len(name) for name in names), default=0), _MAX_NAME, room - _SHORTEST_BAR)
    bars = min(40, room - longest)
    lines = []
    for name, row, text in zip(names, rows, numbers, strict=True):
        drawn = bar(_tokens(row) / most if most else 0, bars)
        lines.append(f"{shorten(name, longest):<{longest}}  {drawn}  {text:>{right}}")
    return lines


def _name(row: Mapping[str, Any], by: str) -> str:
    if row.get("room") or row.get("called"):
        return place_of(row)
    return str(row["name"]) or ("(unknown)" if by == "model" else "-")


def _is_empty(row: Mapping[str, Any]) -> bool:
    """Return True for a day before the first on which anything was spent: it says nothing."""
    return not (_tokens(row) or row.get("calls") or row["cost_usd"])


def _tokens(row: Mapping[str, Any]) -> int:
    return int(row["prompt_tokens"]) + int(row["completion_tokens"])


def _numbers(row: Mapping[str, Any]) -> str:
    cost = row["cost_usd"]
    return f"{_tokens(row):,}" if cost is None else f"{_tokens(row):,}  {cost:.2f} $"


def _of(total: Mapping[str, Any], kind: str) -> str:
    """The part of the tokens that the provider's cache had, or that was thinking; empty without any."""
    count = total.get(f"{kind}_tokens") or 0
    told = {"cached": "from the provider's cache", "thinking": "thinking"}[kind]
    return f" ({count:,} {told})" if count else ""


def _total(answer: Mapping[str, Any]) -> list[str]:
    total = answer["total"]
    days = "today" if answer["days"] == 1 else f"in {answer['days']} days"
    line = (
        f"{_tokens(total):,} tokens {days}: {total['prompt_tokens']:,} read{_of(total, 'cached')}, "
        f"{total['completion_tokens']:,} written{_of(total, 'thinking')}, in {calls(total['calls'])}"
    )
    if total["cost_usd"] is not None:
        line += f", {total['cost_usd']:.2f} USD"
    lines = [line]
    if answer["by"] != "purpose" and answer["purposes"]:
        lines.append("for " + ", ".join(f"{_name(row, '')} {_numbers(row)}" for row in answer["purposes"]))
    if not total["priced"]:
        lines.append("some prices are unknown, so the costs are incomplete; set llm.models.NAME.price")
    return lines


def receipts(answer: Mapping[str, Any]) -> str:
    """``squidbot did``: each effect with what led to it and what became of it."""
    nothing = f"no tool has done anything since {local_time(answer['since'])[:16]}"
    return "\n".join(_receipt_lines(row) for row in answer["rows"]) or nothing


def _receipt_lines(row: Mapping[str, Any]) -> str:
    from agent_core.prompt import without_tags
    from agent_core.tools.execution import call_in_words, effect_in_words

    call = one_line(plain_line(call_in_words(row["tool"], row["arguments"])), 200)
    lines = [f"{local_time(row['at'])}  {row['outcome']:<8} {call}"]
    whose = f"for {plain_line(row['asked_by'])} in {place_of(row)}"
    lines.append(f"  {plain_line(effect_in_words(row['effect']))}, {whose}")
    if row["origins"]:
        lines.append(f"  after reading {plain_line(row['origins'])}")
    if row["approved_by"]:
        lines.append(f"  approved by {plain_line(row['approved_by'])}")
    if row["result"]:
        lines.append(f"  {plain_line(without_tags(row['result']))}")
    if row["undo"]:
        lines.append(f"  undo: {plain_line(row['undo'])}")
    return "\n".join(lines)
