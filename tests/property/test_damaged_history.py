"""
Histories that were damaged, edited by hand or written by two processes: what can be read is consolidated once or
shown, whatever numbers the lines have.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_core.models import Message
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock
from tests.doubles.consolidation import S, TokenKeeper, manager_of
from tests.property.examples import examples

Damage = tuple[str, int]
DAMAGE = st.tuples(
    st.sampled_from(["line too much", "two writers", "begun again", "no number", "far"]), st.integers(0, 60)
)
TORN = st.tuples(st.just("line too much"), st.integers(0, 60))
OPTIONS = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def damaged(raw: bytes, damage: Damage) -> bytes:
    """The same messages in the same order, with other numbers or with lines between them that say nothing."""
    kind, chance = damage
    lines = [json.loads(line) if line.startswith(b"{") else line for line in raw.splitlines()]
    at = chance % len(lines)
    if kind == "line too much":
        lines.insert(at, b"\xff\x00 half a line")
    for number, line in enumerate(lines[at:]):
        if isinstance(line, bytes):
            continue
        if kind == "two writers":
            line["n"] = max(0, line.get("n", at) - 1)
        elif kind == "begun again":
            line["n"] = number
        elif kind == "no number" and number % 2:
            line.pop("n", None)
        elif kind == "far" and number == 0:
            line["n"] = line.get("n", at) + chance
    return b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )


async def talked_and_consolidated(
    home: Path,
    rounds: Sequence[tuple[int, Damage | None]],
    *,
    forgets_bytes: bool = False,
    consolidated_too: bool = False,
) -> tuple[list[str], list[str]]:
    """
    What was said, and what is in summary and prompt together, after several lives of a process.

    With ``consolidated_too`` there is damage before the cursor, so that its line begins at another byte.
    """
    said: list[str] = []
    for count, damage in rounds:
        memory = JsonlMemory(home, clock=ManualClock())
        for _ in range(count):
            number = len(said)
            said.append(f"m{number}")
            role = "assistant" if number % 2 else "user"
            message = Message(role=role, content=said[-1], id=str(number), turn=str(number // 2))
            await memory.append_message(S, message)
        for path in (home / "sessions").glob("*.jsonl"):
            if damage and (consolidated_too or not await memory.load_consolidated_cursor(S)):
                path.write_bytes(damaged(path.read_bytes(), damage))
        memory = JsonlMemory(home, clock=ManualClock())
        await manager_of(memory, TokenKeeper(), threshold=3).consolidate_if_due(S)
        for path in (home / "sessions").glob("*.meta.json") if forgets_bytes else ():
            path.write_text(json.dumps({**json.loads(path.read_text()), "offset": -1}))
    tail = await JsonlMemory(home, clock=ManualClock()).load_history(S)
    shown = [message.content for message in tail.messages]
    return said, re.findall(r"\bm\d+\b", tail.summary or "") + shown


ROUNDS = st.lists(st.tuples(st.integers(1, 9), st.none() | DAMAGE), min_size=1, max_size=5)


@OPTIONS
@given(rounds=ROUNDS)
@example(rounds=[(1, ("line too much", 0)), (1, ("line too much", 0)), (2, ("line too much", 0))])
def test_every_message_is_consolidated_once_or_shown_whatever_the_lines_say(
    rounds: list[tuple[int, Damage | None]],
) -> None:
    """A line too much, numbers twice, from the beginning again, none, or far away: no message is lost or doubled."""
    with tempfile.TemporaryDirectory() as home:
        said, there = anyio.run(lambda: talked_and_consolidated(Path(home), rounds))
    assert there == said


@OPTIONS
@given(rounds=st.lists(st.tuples(st.integers(1, 9), st.none() | TORN), min_size=1, max_size=5))
@example(rounds=[(1, None), (3, None), (1, ("line too much", 13))])
@example(rounds=[(1, None), (3, None), (2, ("line too much", 29))])
def test_a_line_torn_in_two_hides_nothing_wherever_it_stands(
    rounds: list[tuple[int, Damage | None]],
) -> None:
    """Also before the cursor, where every byte behind it moves: then the numbers of the lines tell."""
    with tempfile.TemporaryDirectory() as home:
        said, there = anyio.run(lambda: talked_and_consolidated(Path(home), rounds, consolidated_too=True))
    assert there == said


def test_numbers_alone_would_lose_a_message(tmp_path: Path) -> None:
    """Negative control: where the record does not know the byte, one line too much hides a message."""
    rounds: list[tuple[int, Damage | None]] = [(8, ("two writers", 5)), (2, None)]
    said, there = anyio.run(lambda: talked_and_consolidated(tmp_path / "a", rounds))
    assert there == said
    said, there = anyio.run(lambda: talked_and_consolidated(tmp_path / "b", rounds, forgets_bytes=True))
    assert there != said


@pytest.mark.parametrize("edited", [3, 180])
def test_a_cursor_written_by_hand_counts_although_the_byte_is_another(tmp_path: Path, edited: int) -> None:
    """Whoever writes another ``last_consolidated`` means it: the byte beside it holds for the old one only."""

    async def main() -> tuple[int, list[str]]:
        rounds: list[tuple[int, Damage | None]] = [(8, None)]
        await talked_and_consolidated(tmp_path, rounds)
        (path,) = (tmp_path / "sessions").glob("*.meta.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), "last_consolidated": edited}))
        tail = await JsonlMemory(tmp_path, clock=ManualClock()).load_history(S)
        return tail.cursor, [message.content for message in tail.messages]

    cursor, shown = anyio.run(main)
    assert cursor == min(edited, 8)
    assert shown == [f"m{number}" for number in range(cursor, 8)]
