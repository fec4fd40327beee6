"""Seeded histories of everyday talk in sittings, and questions of which the answers are known. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.recall.topics import SMALL_TALK, TOPICS

LANGUAGES = tuple(SMALL_TALK)


@dataclass(frozen=True, slots=True)
class Asked:
    """One question in one wording. ``evidence`` are the numbers of the messages that answer it."""

    kind: str
    form: str
    query: str
    evidence: frozenset[int]


@dataclass(slots=True)
class History:
    """Messages as role and text, ``starts`` the numbers at which a sitting begins, and the questions."""

    language: str
    messages: list[tuple[str, str]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


def history(language: str, seed: int, *, sittings: int = 45) -> History:
    """Return a history of so many sittings, of eight to fourteen messages each."""
    source = random.Random(f"{language} {seed}")
    made = History(language)
    blocks = [block.split("\n") for block in TOPICS.strip().split("\n\n")]
    topics = [(block[0].split()[1], block[1:]) for block in blocks if block[0].startswith(language)]
    planned: dict[int, list[tuple[int, str, str]]] = {}
    for number, (kind, rest) in enumerate(topics):
        if kind == "nothing":
            continue
        statements, values = rest[0].split("/"), rest[1].split("|")
        places = sorted(source.sample(range(sittings), len(statements)))
        for place, text, value in zip(
            places, statements, source.sample(values, len(statements)), strict=True
        ):
            planned.setdefault(place, []).append((number, kind, text.format(v=value)))

    told: dict[int, list[int]] = {}
    for sitting in range(sittings):
        made.starts.append(len(made.messages))
        talk = _talk(language, source, source.randint(4, 7))
        for number, kind, text in planned.get(sitting, ()):
            at = 2 * source.randrange(len(talk) // 2) + (kind == "assistant")
            while at in told.get(-1, ()):  # another fact of this sitting stands there
                at = (at + 2) % len(talk)
            told.setdefault(-1, []).append(at)
            talk[at] = (talk[at][0], text)
            told.setdefault(number, []).append(len(made.messages) + at)
        told.pop(-1, None)
        made.messages += talk
    for number, (kind, rest) in enumerate(topics):
        here = told.get(number, [])
        made.asked += _wordings(kind, rest, frozenset(here[-1:] if kind == "update" else here))
    return made


def _talk(language: str, source: random.Random, pairs: int) -> list[tuple[str, str]]:
    subjects, person, assistant = (text.split("|") for text in SMALL_TALK[language])
    talk = []
    for role, texts in [("user", person), ("assistant", assistant)] * pairs:
        one, other = source.sample(subjects, 2)
        talk.append((role, source.choice(texts).format(a=one, b=other)))
    return talk


def _wordings(kind: str, rest: list[str], evidence: frozenset[int]) -> Iterator[Asked]:
    rows = rest if kind == "nothing" else rest[2:4]
    for row, how in zip(rows, ("near", "paraphrased"), strict=False):
        question, words = row.split("|")
        yield Asked(kind, f"as asked, {how}", question, evidence)
        yield Asked(kind, f"key words, {how}", words, evidence)
    if kind != "nothing":
        yield Asked(kind, "5-8 words", rest[4], evidence)
