"""
Seeded histories of everyday talk in sittings, and questions of which the answers are known. Pure.

Messages have several sentences; a fact stands somewhere in one, and sentences about the same subject without
the fact stand in others. A tenth of the facts and some questions have a typing error.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = Path(__file__).parent / "talk"
LANGUAGES = ("en", "de", "ja", "ru", "es")
FORMS = ("as asked, near", "as asked, paraphrased", "key words, near", "key words, paraphrased", "5-8 words")
_MISTYPED = re.compile(r"[^\W\d_\u3040-\u9fff]{6,}")


@dataclass(frozen=True, slots=True)
class Asked:
    """
    One question in one wording.

    ``evidence`` are the numbers of the messages that answer it, ``said`` the sentences in them that do;
    ``topic`` is that of its facts (`Told`).
    """

    kind: str
    form: str
    query: str
    evidence: frozenset[int]
    said: tuple[str, ...] = ()
    topic: int = -1


@dataclass(frozen=True, slots=True)
class Told:
    """One statement: the number of its message, its sentence, and the part that an answer needs."""

    topic: int
    kind: str
    number: int
    text: str
    value: str


@dataclass(slots=True)
class History:
    """
    Messages as role and text, and the questions.

    ``starts`` are the numbers at which a sitting begins, ``told`` the facts in order.
    """

    language: str
    told: list[Told] = field(default_factory=list)
    messages: list[tuple[str, str]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Topic:
    kind: str
    rows: list[str]
    beside: list[str]


@dataclass(slots=True)
class _Talk:
    """The texts of a language: see the files in ``talk``."""

    subjects: list[str]
    sentences: dict[str, list[str]]
    leads: list[str]
    topics: list[_Topic]


@dataclass(frozen=True, slots=True)
class _Fact:
    topic: int
    role: str
    question: str
    text: str
    value: str


def _read(language: str) -> _Talk:
    talk = _Talk([], {"user": [], "assistant": []}, [], [])
    for block in (_FOLDER / f"{language}.txt").read_text(encoding="utf-8").strip().split("\n\n"):
        head, *rows = block.split("\n")
        if head == "subjects":
            talk.subjects = rows
        elif head == "lead":
            talk.leads = rows
        elif head.startswith("fact "):
            beside = [row[2:] for row in rows if row.startswith("~ ")]
            talk.topics.append(
                _Topic(head.split()[1], [row for row in rows if not row.startswith("~ ")], beside)
            )
        else:
            talk.sentences[head.split()[-1]] += rows
    return talk


def history(language: str, seed: int, *, sittings: int = 45) -> History:
    """Return a history of so many sittings, of eight to fourteen messages each."""
    source = random.Random(f"{language} {seed}")
    made, talk = History(language), _read(language)
    planned = _planned(talk, sittings, source)
    told: dict[int, list[int]] = {}
    said: dict[int, list[str]] = {}
    for sitting in range(sittings):
        made.starts.append(len(made.messages))
        pairs = _pairs(talk, source)
        source.shuffle(places := list(range(len(pairs))))
        for fact, at in zip(planned.get(sitting, ()), places, strict=False):
            text = fact.text if language == "ja" else _mistype(fact.text, source, 0.1)
            own, other = pairs[at]
            sentences = own if fact.role == "user" else other
            lead = source.choice(talk.leads) + ("" if language == "ja" else " ")
            sentences.insert(source.randint(0, len(sentences)), lead + text if fact.role == "user" else text)
            if fact.question:
                own.append(fact.question)
            number = len(made.messages) + 2 * at + (fact.role == "assistant")
            start = fact.text.find(fact.value)
            value = text[start : start + len(fact.value)]
            made.told.append(Told(fact.topic, talk.topics[fact.topic].kind, number, text, value))
            told.setdefault(fact.topic, []).append(number)
            said.setdefault(fact.topic, []).append(text)
        joint = "" if language == "ja" else " "
        for own, other in pairs:
            made.messages += [("user", joint.join(own)), ("assistant", joint.join(other))]
    for number, topic in enumerate(talk.topics):
        last = -1 if topic.kind == "update" else None
        evidence = frozenset(told.get(number, [])[last:] if last else told.get(number, []))
        sentences = said.get(number, [])[last:] if last else said.get(number, [])
        for kind, form, query in _wordings(topic):
            asked = query if language == "ja" else _mistype(query, source, 0.05)
            made.asked.append(Asked(kind, form, asked, evidence, tuple(sentences), number))
    return made


def _planned(talk: _Talk, sittings: int, source: random.Random) -> dict[int, list[_Fact]]:
    """What is told in each sitting: at most three facts."""
    planned: dict[int, list[_Fact]] = {}
    for number, topic in enumerate(talk.topics):
        if topic.kind == "nothing":
            continue
        statements, values = topic.rows[0].split("/"), topic.rows[1].split("|")
        free = [sitting for sitting in range(sittings) if len(planned.get(sitting, ())) < 3]
        places = sorted(source.sample(free, len(statements)))
        for place, text, value in zip(
            places, statements, source.sample(values, len(statements)), strict=True
        ):
            question, _, answer = text.format(v=value).rpartition(" > ")
            role = "assistant" if topic.kind == "assistant" else "user"
            planned.setdefault(place, []).append(_Fact(number, role, question, answer, value))
    return planned


def _pairs(talk: _Talk, source: random.Random) -> list[tuple[list[str], list[str]]]:
    """Questions and answers of a sitting, as sentences."""
    besides = [text for topic in talk.topics for text in topic.beside]

    def sentences(role: str, most: int) -> list[str]:
        chosen = source.sample(talk.sentences[role], source.randint(1, most))
        if role == "user" and source.random() < 0.3:
            chosen.append(source.choice(besides))
        made = []
        for text in chosen:
            one, other = source.sample(talk.subjects, 2)
            made.append(text.format(a=one, b=other))
        return made

    return [(sentences("user", 4), sentences("assistant", 4)) for _ in range(source.randint(4, 7))]


def _mistype(text: str, source: random.Random, share: float) -> str:
    """Swap two letters within a word of a share of the texts."""
    words = list(_MISTYPED.finditer(text))
    if not words or source.random() >= share:
        return text
    word = source.choice(words)
    at = source.randrange(word.start() + 1, word.end() - 2)
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]


def _wordings(topic: _Topic) -> Iterator[tuple[str, str, str]]:
    rows = topic.rows if topic.kind == "nothing" else topic.rows[2:4]
    for row, how in zip(rows, ("near", "paraphrased"), strict=False):
        question, words = row.split("|")
        yield topic.kind, f"as asked, {how}", question
        yield topic.kind, f"key words, {how}", words
    if topic.kind != "nothing":
        yield topic.kind, "5-8 words", topic.rows[4]
