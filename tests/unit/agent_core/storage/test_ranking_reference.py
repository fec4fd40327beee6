"""The search finds what a ranking finds that reads every line, in the same order: several scopes, lines taken back, days."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent_core.memory_ports import SearchRequest
from agent_core.models import MemoryScope, Message
from agent_core.storage.search_index import ranking
from agent_core.storage.search_index.stems import stems
from agent_core.storage.search_index.word_splitting import Query, Term, fold, is_mistyped, parse_query
from tests.recall.histories import LANGUAGES, history
from tests.search_house import BOB, OWNER, A, B, Harness

BOTH = "matrix/!both"


class Line(NamedTuple):
    """A line of a history, with its folded words."""

    at: datetime
    session: str
    scope: MemoryScope
    role: str
    text: str
    words: tuple[str, ...]


def has(term: Term, words: Sequence[str]) -> bool:
    """Return True if a line has the term, or a longer form of it, a part, or a compound that ends with it."""
    return (
        f" {term.words} " in f" {' '.join(words)} "
        or not term.parts.isdisjoint(words)
        or any(term.beginning is not None and word.startswith(term.beginning) for word in words)
        or any(ends(word, term.ending) for word in words)
    )


def ends(word: str, ending: str | None) -> bool:
    return ending is not None and 8 <= len(word) <= 40 and word.endswith(ending)


def likeness(term: Term, word: str) -> float:
    if word == term.words:
        return 1.0
    found = 0.0
    if term.beginning is not None and word.startswith(term.beginning):
        found = 0.8 if stems(term.words) & stems(word) else 0.4
    elif term.ending is not None and word.endswith(term.ending):
        found = 0.6
    elif word in term.parts:
        found = 0.6 * len(word) / len(term.words)
    mistyped = term.alike is not None and word[0] == term.words[0] and is_mistyped(term.words, word)
    return max(found, 0.6) if mistyped else found


def places(term: Term, words: Sequence[str]) -> list[tuple[int, float]]:
    """Return where the term stands, and how like it that is."""
    parts = tuple(term.words.split())
    if len(parts) > 1:
        return [(at, 1.0) for at in range(len(words)) if words[at : at + len(parts)] == parts]
    return [(at, like) for at, word in enumerate(words) if (like := likeness(term, word))]


class Reference:
    """A search that reads all lines; one history, so nothing is cut off but those beyond the ones that weigh most."""

    def __init__(self, lines: Sequence[Line], scope: MemoryScope) -> None:
        self.lines = [line for line in lines if line.scope == scope]

    def beside(self, line: Line, step: int) -> Line | None:
        same = [each for each in self.lines if each.session == line.session]
        at = same.index(line) + step
        return same[at] if 0 <= at < len(same) else None

    def rarity(self, lines: Sequence[Line]) -> float:
        count = min(len(lines), len(self.lines))
        return math.log(1 + (len(self.lines) - count + 0.5) / (count + 0.5))

    def candidates(
        self, query: Query, since: datetime | None, least: float
    ) -> tuple[list[Line], list[float]]:
        """Return the lines that are rated, and the weights of the terms."""
        searched = [line for line in self.lines if since is None or line.at >= since]
        must = [term for term in query.terms if term.quoted]
        searched = [line for line in searched if all(has(term, line.words) for term in must)]
        found = [[line for line in searched if has(term, line.words)] for term in query.terms]
        rarities = [self.rarity(lines) for lines in found]
        weights: dict[Line, float] = {}
        for term, lines, weight in zip(query.terms, found, rarities, strict=True):
            more = [line for line in lines if f" {term.words} " in f" {' '.join(line.words)} "]
            if not lines and term.alike is not None:
                begin, end = term.alike
                near = [any(w.startswith(begin) or ends(w, end) for w in line.words) for line in searched]
                more = [line for line, is_near in zip(searched, near, strict=True) if is_near]
            for line in (*lines, *more):
                weights[line] = weights.get(line, 0.0) + weight
        heavy = least / 2 * max(weights.values(), default=0.0)
        weights = {line: weight for line, weight in weights.items() if weight >= heavy - 1e-9}
        by_weight = sorted(weights, key=lambda line: (round(weights[line], 9), line.at), reverse=True)
        return by_weight[: ranking.MAX_OF_THE_BEST if least else ranking.MAX_CANDIDATES], rarities

    def rate(self, line: Line, query: Query, rarities: Sequence[float]) -> tuple[bool, float] | None:
        """Return (all words found, points) before the age counts."""
        other = self.beside(line, -1 if line.role == "assistant" else 1)
        words = other.words if other is not None and other.role != line.role else ()
        own = [places(term, line.words) for term in query.terms]
        there = [places(term, words) for term in query.terms]
        if not any(own) or any(term.quoted and not own[n] for n, term in enumerate(query.terms)):
            return None
        norm = 1.2 * (0.6 + 0.4 * len(line.words) / 20)
        points, near, has_all = 0.0, [], True
        for number, weight in enumerate(rarities):
            best = max((like for _, like in (*own[number], *there[number])), default=0.0)
            has_all = has_all and best >= 0.8
            frequency = sum(like for _, like in own[number]) or 0.4 * sum(like for _, like in there[number])
            points += weight * frequency * 2.2 / (frequency + norm)
            if number and {at for at, _ in own[number]} & {
                at + len(query.terms[number - 1].words.split()) for at, _ in own[number - 1]
            }:
                points += 0.3 * weight
            most = max((like for _, like in own[number]), default=0.0)
            near += [(at, number, weight * most) for at, _ in own[number]]
        return has_all, (points + 0.5 * self.close_together(near)) / (1.8 * sum(rarities))

    @staticmethod
    def close_together(near: list[tuple[int, int, float]]) -> float:
        best = 0.0
        for last, _, _ in near:
            inside = {number: weight for at, number, weight in near if last - 8 <= at <= last}
            best = max(best, sum(inside.values()))
        return best

    def hits(self, text: str, *, since: datetime | None, least: float, limit: int) -> list[tuple[Line, Any]]:
        """Return the best lines with what they were ordered by."""
        query = parse_query(text)
        lines, rarities = self.candidates(query, since, least)
        newest = max((line.at for line in lines), default=None)
        rated = []
        for line in lines:
            rating = self.rate(line, query, rarities)
            if rating is not None and newest is not None:
                age = (newest - line.at).total_seconds() / 86_400
                rated.append((rating[0], round(rating[1] * (1 + 0.1 / (1 + age / 90)), 9), line.at, line))
        rated.sort(key=lambda each: each[:3], reverse=True)
        most = max((points for _, points, _, _ in rated), default=0.0)
        shown: list[Line] = []
        hits: list[tuple[Line, Any]] = []
        for has_all, points, at, line in rated:
            if points >= least * most - 1e-9 and line not in shown and len(hits) < limit:
                shown += [each for step in (-1, 0, 1) if (each := self.beside(line, step)) is not None]
                hits.append((line, (has_all, points, at)))
        return hits


async def told(house: Harness, language: str, seed: int) -> list[Line]:
    """Tell a history in three conversations and two scopes, take some turns back, and return what is left."""
    source, lines = random.Random(f"{language} {seed}"), []
    said = history(language, seed, sittings=14).messages
    for number in range(0, len(said) - 1, 2):
        session, scope = source.choice([(A, OWNER), (A, OWNER), (B, BOB), (BOTH, OWNER), (BOTH, BOB)])
        undone = source.random() < 0.1
        for _, text in said[number : number + 2]:
            await house.say(session, text, scope=scope, **({"turn": f"t{number}"} if undone else {}))
            role = "user" if house.said % 2 else "assistant"
            if not undone:
                lines.append(Line(house.clock.now(), session, scope, role, text, tuple(fold(text).split())))
        if undone:
            mark = Message(role="system", content="gone", id=f"u{number}", scope="owner", undoes=f"t{number}")
            await house.memory.append_message(session, mark)
    await house.index.update_all()
    return lines


async def differences(house: Harness, lines: Sequence[Line], queries: Sequence[str]) -> int:
    """Return how many searches found other lines than the reference, or in another order."""
    count = found = 0
    for number, query in enumerate(queries):
        scope = BOB if number % 3 == 2 else OWNER
        since = None if number % 4 else lines[len(lines) // 3].at
        least, limit = (0.5, 30) if number % 2 else (0.0, 5)
        request = SearchRequest(scope, query, since=since, least=least, max_results=limit)
        answer = await house.index.search(request)
        wanted = Reference(lines, scope).hits(query, since=since, least=least, limit=limit)
        ours = [(hit.messages[hit.at].content, hit.session_id) for hit in answer.hits]
        count += ours != [(line.text, line.session) for line, _ in wanted]
        found += len(wanted)
    assert found > len(queries)  # the control: most of them find something
    return count


def queries_of(language: str, seed: int) -> list[str]:
    made = history(language, seed, sittings=14)
    asked = [each.query for each in made.asked]
    phrase = " ".join(fold(made.messages[4][1]).split()[:2])
    swapped = [f"{word[:2]}{word[3]}{word[2]}{word[4:]}" for word in asked[0].split() if len(word) > 7]
    return [*asked, f'"{phrase}" {asked[1]}', *swapped]


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_search_ranks_as_one_that_reads_every_line(tmp_path: Path, language: str) -> None:
    house = Harness(tmp_path)
    lines = await told(house, language, 3)
    assert await differences(house, lines, queries_of(language, 3)) == 0
    await house.index.aclose()


async def test_another_ranking_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: words close together count nothing, and the last lines are not there."""
    house = Harness(tmp_path)
    lines = await told(house, "en", 3)
    queries = queries_of("en", 3)
    assert await differences(house, lines[:-8], queries) > 0
    monkeypatch.setattr(ranking, "_NEAR_WEIGHT", 0.0)
    assert await differences(house, lines, queries) > 0
    await house.index.aclose()
