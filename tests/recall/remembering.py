"""
The prompts of questions after a conversation was consolidated: days of temporal facts, and changed facts.

The prompts are those of `MemoryManager`, with a summary, the newest messages and a lookup. The summaries are
written by a script. It behaves as a model does that follows its request fairly well: it knows facts from small
talk, keeps to the number of sentences, loses a fifth of the facts, writes the day of nine out of ten, adds
what it is asked for again, and sees no other part of the conversation than the one in its request.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from agent_core.memory.manager import MemoryManager
from agent_core.models import Message
from tests.doubles.consolidation import ScriptedLLM, material_in
from tests.recall.engines import HouseWithVectors
from tests.recall.histories import History, Told
from tests.search_house import A, B, Harness

_WORDS_IN_A_SENTENCE = 30
_DAY_LINE = re.compile(r"\((?:\w+ )?(\d{4}-\d\d-\d\d)\)")
_DAY = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"|\b(\d{1,2}) (January|February|March|April|May|June|July|August|September|October|November|December)"
    r" (\d{4})"
)
_MONTHS = "January February March April May June July August September October November December".split()
_MARK = re.compile(r"\[\w+ ([\d-]+)(?:; above: \w+ ([\d-]+))?\]")
PLACES = {"the same conversation": A, "another conversation": B}


def _chance(text: str) -> float:
    """A number from 0 to 1 that depends on a text alone."""
    return int.from_bytes(sha256(text.encode()).digest()[:4], "big") / 2**32


def _dated(text: str, day: str) -> str:
    return f"On {day}: {text}" if day and _chance(f"dated {text}") < 0.9 else text


class Summariser(ScriptedLLM):
    """Writes the summaries of a history: see above."""

    def __init__(self, history: History) -> None:
        super().__init__(self._answer)
        self._history = history

    def _answer(self, messages: Sequence[Message]) -> str:
        kind, text = material_in(messages)
        request = messages[-1].content
        if kind == "summary":
            return self._shorter(text, request)
        if "<missing>" in request:
            return self._addition(text, request)
        return self._summary(text, request)

    def _addition(self, text: str, request: str) -> str:
        days: dict[str, str] = {}
        day = ""
        for line in text.splitlines():
            day = found[1] if (found := _DAY_LINE.fullmatch(line)) else day
            days[line] = day
        snippets = [line[2:] for line in request.partition("<missing>")[2].splitlines() if line[:2] == "- "]
        said = ((each, next((day for line, day in days.items() if each in line), "")) for each in snippets)
        return " ".join(f"{_dated(each, day)}." for each, day in said)

    def _summary(self, text: str, request: str) -> str:
        said: list[str] = []
        talk: list[str] = []
        day = ""
        recorded = request.partition("</recorded>")[0] if "<recorded>" in request else ""
        for line in text.splitlines():
            if (found := _DAY_LINE.fullmatch(line)) is not None:
                day = found[1]
                continue
            facts = [fact for fact in self._history.told if fact.text in line]
            talk += [] if facts else [line.partition(": ")[2]]
            for fact in facts:
                before = [
                    each
                    for each in self._history.told
                    if each.topic == fact.topic and each.number < fact.number
                ]
                changed = [each.text for each in before if fact.kind == "update" and each.text in recorded]
                if _chance(f"kept {fact.text}") < (0.95 if changed else 0.8):
                    told = _dated(fact.text, day)
                    said.append(f"{told} Before: {changed[-1]}" if changed else told)
        most = int(re.search(r"about (\d+) sentences", request)[1])  # type: ignore[index]
        return "\n".join([*said, *talk][:most])

    def _shorter(self, text: str, request: str) -> str:
        """What is there of each topic stays or goes together, and facts go last."""
        lines: dict[int, list[str]] = {}
        for number, line in enumerate(text.splitlines()):
            topic = next((fact.topic for fact in self._history.told if fact.text in line), -1 - number)
            lines.setdefault(topic, []).append(line)
        most = int(re.search(r"about (\d+) sentences", request)[1]) * _WORDS_IN_A_SENTENCE * 6  # type: ignore[index]
        kept: list[str] = []
        for topic in sorted(lines, key=lambda each: (each < 0, _chance(f"{each} {text}"))):
            most -= sum(map(len, lines[topic]))
            if most < 0:
                break
            kept += lines[topic]
        return "\n".join(kept)


async def remember(history: History, home: Path, *, vectors: bool = False) -> Counter[tuple[str, str]]:
    """
    Say a history, consolidate it on the way, ask its questions, and count by place what the prompts had.

    Counted are ``time asked``, ``time value`` (the fact is there), ``time day`` (and the day on which it was
    said stands before it), ``update asked``, ``only old``, ``both``, ``only new``.
    """
    house = HouseWithVectors(home) if vectors else Harness(home)
    manager = MemoryManager(house.memory, search=house.index, llm=Summariser(history))
    starts = set(history.starts)
    days: list[str] = []
    for number, (_, text) in enumerate(history.messages):
        if number in starts:
            await manager.consolidate_if_due(A)
        await house.say(A, text, days=2 if number in starts else 0.0005)
        days.append(f"{house.clock.now().astimezone():%Y-%m-%d}")
    await manager.consolidate_if_due(A)
    await house.index.update_all()
    await house.found("tea")  # the process of the vectors runs, as in a conversation
    counted: Counter[tuple[str, str]] = Counter()
    for asked in history.asked:
        told = [fact for fact in history.told if fact.topic == asked.topic]
        if not asked.form.startswith("as asked") or asked.kind not in ("time", "update"):
            continue
        for place, session in PLACES.items():
            built = await manager.build_messages(session, "sys", asked.query)
            counted.update((place, each) for each in _had(asked.kind, told, days, built[:-1]))
    await house.index.aclose()
    return counted


def _had(kind: str, told: Sequence[Told], days: Sequence[str], prompt: Sequence[Message]) -> list[str]:
    text = "\n".join(each.content for each in prompt)
    if kind == "time":
        (fact,) = told
        has_day = days[fact.number] in _days_of(fact.value, prompt)
        return ["time asked", *["time value"] * (fact.value in text), *["time day"] * has_day]
    old, new = told[0].value in text, told[-1].value in text
    seen = {(True, False): ["only old"], (True, True): ["both"], (False, True): ["only new"]}
    return ["update asked", *seen.get((old, new), [])]


def _days_of(value: str, prompt: Sequence[Message]) -> set[str]:
    """The days that a prompt gives for a value: of its line, its passage, or its place in the history."""
    days: set[str] = set()
    history = [each.content for each in prompt if each.role != "system"]
    for number, text in enumerate(history):
        if value in text:
            marks = [mark for each in history[: number + 1] if (mark := _MARK.match(each))]
            after = [mark for each in history[number + 1 :] if (mark := _MARK.match(each))]
            days.add(marks[-1][1] if marks else after[0][2] if after else "")
    for text in (each.content for each in prompt if each.role == "system"):
        head = ""
        for line in text.splitlines():
            head = _day_in(line) if line.startswith("On ") else head if line.startswith("  ") else ""
            for entry in line.split("; ") if value in line else ():
                days.add((_day_in(entry) or head) if value in entry else "")
    return days - {""}


def _day_in(text: str) -> str:
    """The first day that is named in a text, as a date."""
    found = _DAY.search(text)
    if found is None:
        return ""
    year, month, day, number, name, of_year = found.groups()
    return f"{year}-{month}-{day}" if year else f"{of_year}-{_MONTHS.index(name) + 1:02}-{int(number):02}"
