"""
What must be true after any number of deaths, worked out from logs that the gateway does not control.

`problems` compares what people said, what they see, what the tool has really done, the history files, the
memory documents and what the store shows as parked. It knows nothing of how the gateway works.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.kill.scripted import numbers_in


@dataclass(frozen=True, slots=True)
class Saying:
    """One message of a person: its number, where it was said, and the words after it."""

    number: int
    conversation: str
    words: str
    scope: str
    """Whose memory document a fact of it belongs into."""


@dataclass(slots=True)
class Evidence:
    """
    What the outside world has seen.

    Args:
        said: In order.
        seen: Conversation and text of what people see of the bot, in order.
        effects: The numbers for which the tool has really run, in order.
        histories: The raw lines of each history file, by conversation.
        memory: The memory document of each scope.
        parked: The texts of answers that wait for a person to decide.
        deaths: How often the process was killed.
        queue: ``merge`` or ``each``.
        torn: Whether broken lines may stand in the histories.
        unfiled: How many history lines still wait for their file.
    """

    said: Sequence[Saying]
    seen: Sequence[tuple[str, str]]
    effects: Sequence[int] = ()
    histories: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    memory: Mapping[str, str] = field(default_factory=dict)
    parked: Sequence[str] = ()
    deaths: int = 0
    queue: str = "each"
    torn: bool = False
    unfiled: int = 0


def problems(evidence: Evidence) -> list[str]:
    """Everything that is wrong; empty if every promise was kept."""
    return [
        *_answers(evidence),
        *_effects(evidence),
        *_histories(evidence),
        *_memory(evidence),
    ]


def _said_in(evidence: Evidence) -> dict[str, list[int]]:
    by_conversation: dict[str, list[int]] = defaultdict(list)
    for saying in evidence.said:
        by_conversation[saying.conversation].append(saying.number)
    return by_conversation


def _answers(evidence: Evidence) -> list[str]:
    """Each message is named by exactly one answer, in its conversation, in order."""
    found: list[str] = []
    parked = {number for text in evidence.parked for number in numbers_in(text)}
    answered: dict[str, list[int]] = defaultdict(list)
    for conversation, text in evidence.seen:
        numbers = numbers_in(text)
        if not numbers or not text.startswith("re:"):
            found.append(f"{conversation}: no answer to anything: {text[:100]!r}")
        if evidence.queue == "each" and len(numbers) > 1:
            found.append(f"{conversation}: one answer for {numbers}")
        answered[conversation] += numbers
    said = _said_in(evidence)
    for conversation in said.keys() | answered.keys():
        wanted, got = said.get(conversation, []), answered.get(conversation, [])
        for number, times in Counter(got).items():
            if times > 1:
                found.append(f"{conversation}: #{number} answered {times} times")
            if number not in wanted:
                found.append(f"{conversation}: #{number} was never said here")
        lost = [number for number in wanted if number not in got and number not in parked]
        if lost:
            found.append(f"{conversation}: no answer to {lost}")
        if [number for number in wanted if number in got] != list(dict.fromkeys(got)):
            found.append(f"{conversation}: answered out of order: {got}")
    return found


def _effects(evidence: Evidence) -> list[str]:
    """No tool run twice, none invented, and only a death may have kept one from running."""
    found = [f"the tool ran {n} times for #{each}" for each, n in Counter(evidence.effects).items() if n > 1]
    wanted = {saying.number for saying in evidence.said if "effect" in saying.words.split()}
    if strange := set(evidence.effects) - wanted:
        found.append(f"the tool ran unasked for {sorted(strange)}")
    if len(missing := wanted - set(evidence.effects)) > evidence.deaths * 4:
        found.append(f"the tool did not run for {sorted(missing)} in {evidence.deaths} deaths")
    return found


def _histories(evidence: Evidence) -> list[str]:
    """Each question stands in its history once, in order, and behind the last one of a turn its answer."""
    found: list[str] = []
    if evidence.unfiled:
        found.append(f"{evidence.unfiled} history lines never reached their file")
    for conversation, said in _said_in(evidence).items():
        lines: list[dict[str, str]] = []
        for raw in evidence.histories.get(conversation, ()):
            try:
                lines.append(json.loads(raw))
            except ValueError:
                if not evidence.torn:
                    found.append(f"{conversation}: a broken line in the history: {raw[:80]!r}")
        ids = [line["id"] for line in lines]
        if len(ids) != len(set(ids)):
            found.append(f"{conversation}: history lines doubled")
        asked = [n for line in lines if line["role"] == "user" for n in numbers_in(line["content"])]
        if asked != said:
            found.append(f"{conversation}: the history asks {asked} instead of {said}")
        waiting: list[int] = []
        for line in lines:
            numbers = numbers_in(line["content"])
            if line["role"] == "user":
                waiting += numbers
            elif numbers != waiting:
                found.append(f"{conversation}: the history answers {numbers} to {waiting}")
            if line["role"] == "assistant":
                waiting = []
        if waiting:
            found.append(f"{conversation}: the history has no answer to {waiting}")
    return found


def _memory(evidence: Evidence) -> list[str]:
    """Every fact stands in its document exactly once, and nowhere else."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for saying in evidence.said:
        if "fact" in saying.words.split():
            wanted[saying.scope].append(f"- fact {saying.number}")
    return [
        f"the memory of {scope} has {kept} instead of {facts}"
        for scope, facts in sorted(wanted.items())
        if sorted(kept := evidence.memory.get(scope, "").splitlines()) != sorted(facts)
    ]
