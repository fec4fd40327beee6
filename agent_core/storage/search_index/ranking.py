"""
Ranks what a search found, for every store alike, by Okapi BM25 (Robertson and Zaragoza 2009). Pure. Other
forms of a word count a little less. A line is rated with its question or answer, since they may share the
query's words. Lines with all words stand first, close words count more, and the newer of equals wins. What
means the same in other words has a likeness, which counts as much as that share of all words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import compress
from types import MappingProxyType
from typing import TypeVar

from agent_core.storage.search_index.stems import stems
from agent_core.storage.search_index.word_splitting import Query, Term, folded_words, is_mistyped, sentences

MAX_POSTINGS = 1_000
"""The number of newest lines with a word that are counted; a word of more lines is a common one."""
MAX_CANDIDATES = 100
"""The number of lines that are read and ranked."""
MAX_OF_THE_BEST = 60
"""The same of a search for what is worth a part of the best one at least."""

_SATURATION = 1.2
_LENGTH_SHARE = 0.4
_USUAL_WORDS = 20
_FORM_WEIGHT = 0.8
_BEGINNING_WEIGHT = 0.4
_COMPOUND_WEIGHT = 0.6
_MISTYPED_WEIGHT = 0.6
_NEIGHBOUR_WEIGHT = 0.4
_IN_A_ROW = 0.3
_NEAR_WEIGHT = 0.5
_NEAR_WORDS = 8
_RECENCY = 0.1
_RECENT_MS = 90 * 86_400_000

_Id = TypeVar("_Id", int, tuple[int, str, int])


@dataclass(slots=True)
class Statistics:
    """The number of lines of a scope, and of those that have each term; larger counts are cut off."""

    total: int = 0
    counts: Counter[Term] = field(default_factory=Counter)

    @classmethod
    def from_matches(cls, found: Mapping[Term, Sequence[object]], total: int) -> Statistics:
        """Count matches; a term with `MAX_POSTINGS` lines or more is taken to be in a fourth of all."""
        many = max(MAX_POSTINGS, total // 4)
        counts = {term: len(ids) if len(ids) < MAX_POSTINGS else many for term, ids in found.items()}
        return cls(total, Counter(counts))

    def rarity(self, term: Term) -> float:
        """Return the weight of a term."""
        count = min(self.counts[term], self.total)
        return math.log(1 + (self.total - count + 0.5) / (count + 0.5))


def choose_candidates(postings: Sequence[tuple[float, Iterable[_Id]]], *, least: float = 0.0) -> list[_Id]:
    """
    Return the lines whose terms weigh most, from each term's weight and lines (the newest first).

    With ``least`` those are fewer, and none weighs less than half of that part of the heaviest: the other
    half may be beside it.
    """
    most, least = (MAX_OF_THE_BEST, least / 2) if least else (MAX_CANDIDATES, 0.0)
    weights: dict[_Id, float] = {}
    heaviest = sorted(postings, key=lambda each: each[0], reverse=True)
    enough = False
    for number, (weight, ids) in enumerate(heaviest):
        # Lines with nothing but words that are left cannot be among the best if enough others have more.
        left = float(sum(lighter for lighter, _ in heaviest[number:]))
        enough = enough or left < least * max(weights.values(), default=0.0)
        enough = enough or sum(map(left.__lt__, weights.values())) >= most
        for each in weights.keys() & ids if enough else ids:
            weights[each] = weights.get(each, 0.0) + weight
    if len(weights) > most or least:
        weigh = sorted(weights.values())[-most:] or [0.0]
        enough_weight = max(weigh[0], least * weigh[-1])
        weights = {each: weight for each, weight in weights.items() if weight >= enough_weight}
    return [each for _, each in nlargest(most, zip(weights.values(), weights, strict=True))]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The time of a line in milliseconds, its text, and that of its question or answer."""

    ms: int
    text: str
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Similarity:
    """The likeness of a line of a session to a query, from 0 to 1, and its most like sentence."""

    session: str
    position: int
    degree: float
    sentence: int


def rank(
    rater: Rater,
    candidates: Mapping[_Id, Candidate],
    *,
    alike: Mapping[_Id, Similarity] = MappingProxyType({}),
    least: float = 0.0,
) -> list[_Id]:
    """
    Return the hits, the best first; those with ``least`` of the best one's points.

    Points are the share of the query's words, 1 if all stand in a row, plus what ``alike`` says of a line.
    """
    newest = max((each.ms for each in candidates.values()), default=0)
    rated: dict[_Id, tuple[bool, float, int]] = {each: (False, alike[each].degree, 0) for each in alike}
    for number, each in candidates.items():
        rating: tuple[bool, float] | None = rater.rate(each, age_ms=newest - each.ms)
        if rating is not None:
            likeness = alike[number].degree if number in alike else 0.0
            rated[number] = (rating[0], rating[1] + likeness, each.ms)
    most = max((points for _, points, _ in rated.values()), default=0.0)
    hits = [each for each, (_, points, _) in rated.items() if points >= least * most]
    return sorted(hits, key=lambda each: (rated[each], each), reverse=True)


class BestSentences:
    """Finds in lines the sentence that is worth most, rated as a line is."""

    def __init__(self, rater: Rater, alike: Iterable[Similarity]) -> None:
        self._rater = rater
        self._alike = {(each.session, each.position): each for each in alike}

    def best(self, session: str, position: int, text: str) -> str:
        """Return the first of the best sentences of a line, or "" if none has anything of the query."""
        alike = self._alike.get((session, position))
        best, most = "", 0.0
        for place, sentence in enumerate(sentences(text)):
            rating = self._rater.rate(Candidate(0, sentence), age_ms=0)
            points = rating[1] if rating is not None else 0.0
            points += alike.degree if alike is not None and place == alike.sentence else 0.0
            if points > most:
                best, most = sentence, points
        return best


@dataclass(slots=True)
class _Occurrences:
    """The occurrences of a term in a text: their number, the best likeness, and where they begin."""

    frequency: float
    likeness: float
    starts: list[int]


_NONE = _Occurrences(0.0, 0.0, [])
_BEGIN, _END = 2, 3  # letters


class _Likenesses(dict[str, list[tuple[int, float]]]):
    """
    The terms of one query that a word of a text is like, or begins, by the word.

    Few words of a text are like one, and most texts have the same words, so each is compared once.
    """

    def __init__(self, query: Query) -> None:
        super().__init__()
        self._terms = [(term, term.words.split()) for term in query.terms]
        # A word is like a term only if it begins or ends as the term does, or is a part of it.
        self._whole = {words[0] for _, words in self._terms}.union(*(term.parts for term in query.terms))
        inflected = [(each.words, each.beginning) for each in query.terms if each.beginning is not None]
        self._begins = {part[:_BEGIN] for each in inflected for part in each}
        self._ends = {each.words[-_END:] for each in query.terms if each.ending is not None}

    def __missing__(self, word: str) -> list[tuple[int, float]]:
        found = self[word] = []
        if word in self._whole or word[:_BEGIN] in self._begins or word[-_END:] in self._ends:
            for number, (term, parts) in enumerate(self._terms):
                likeness = _likeness(term, word) if len(parts) == 1 else float(word == parts[0])
                if likeness:
                    found.append((number, likeness))
        return found


class Rater:
    """Rates candidates and sentences of them for one query."""

    def __init__(self, query: Query, statistics: Statistics) -> None:
        self._terms = [(term.words.split(), statistics.rarity(term)) for term in query.terms]
        self._quoted = {number for number, term in enumerate(query.terms) if term.quoted}
        self._most = (1 + _IN_A_ROW + _NEAR_WEIGHT) * sum(weight for _, weight in self._terms)
        self._like = _Likenesses(query)
        self._texts: dict[str, tuple[int, dict[int, _Occurrences]]] = {}

    def rate(self, candidate: Candidate, *, age_ms: int) -> tuple[bool, float] | None:
        """Return (all words found, points) of a hit ``age_ms`` older than the newest; None for no hit."""
        length, own = self._occurrences(candidate.text)
        if not own or not self._quoted <= own.keys():
            return None
        _, beside = self._occurrences(candidate.beside)
        norm = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length / _USUAL_WORDS)
        found = sorted(own.keys() | beside.keys())
        total, has_all = 0.0, len(found) == len(self._terms)
        places: list[tuple[int, int, float]] = []
        before = set[int]()
        for number in found:
            parts, weight = self._terms[number]
            here, there = own.get(number, _NONE), beside.get(number, _NONE)
            has_all = has_all and max(here.likeness, there.likeness) >= _FORM_WEIGHT
            frequency = here.frequency or _NEIGHBOUR_WEIGHT * there.frequency
            total += weight * frequency * (_SATURATION + 1) / (frequency + norm)
            if number - 1 in own and not before.isdisjoint(here.starts):
                total += _IN_A_ROW * weight
            before = {at + len(parts) for at in here.starts}
            places += [(at, number, weight * here.likeness) for at in here.starts]
        total += _NEAR_WEIGHT * _best_window(places)
        return has_all, total / self._most * (1 + _RECENCY / (1 + age_ms / _RECENT_MS))

    def _occurrences(self, text: str) -> tuple[int, dict[int, _Occurrences]]:
        """Return the number of words of a text and what it has of the terms; the answer to one is another."""
        if text in self._texts:
            return self._texts[text]
        words = folded_words(text)
        found: dict[int, _Occurrences] = {}
        self._texts[text] = len(words), found
        like = self._like
        for at in compress(range(len(words)), map(like.__getitem__, words)):
            for number, likeness in like[words[at]]:
                parts = self._terms[number][0]
                if len(parts) > 1 and words[at : at + len(parts)] != parts:
                    continue
                there = found.get(number)
                if there is None:
                    found[number] = _Occurrences(likeness, likeness, [at])
                else:
                    there.frequency += likeness
                    there.likeness = max(there.likeness, likeness)
                    there.starts.append(at)
        return len(words), found


def _best_window(places: list[tuple[int, int, float]]) -> float:
    """Return the largest sum of the weights of different terms that stand close together."""
    if len(places) == 1:
        return places[0][2]
    best, first, weight = 0.0, 0, 0.0
    inside = dict.fromkeys((number for _, number, _ in places), 0)
    places.sort()
    for at, number, points in places:
        inside[number] += 1
        weight += points if inside[number] == 1 else 0.0
        while places[first][0] < at - _NEAR_WORDS:
            _, gone, lost = places[first]
            inside[gone] -= 1
            weight -= 0.0 if inside[gone] else lost
            first += 1
        best = max(best, weight)
    return best


def _likeness(term: Term, word: str) -> float:
    """Return how much a word of a text counts for a term: 1 if it is the same, 0 if it has nothing of it."""
    if word == term.words:
        return 1.0
    likeness = 0.0
    if term.beginning is not None and word.startswith(term.beginning):
        likeness = _FORM_WEIGHT if stems(term.words) & stems(word) else _BEGINNING_WEIGHT
    elif term.ending is not None and word.endswith(term.ending):
        likeness = _COMPOUND_WEIGHT
    elif word in term.parts:
        likeness = _COMPOUND_WEIGHT * len(word) / len(term.words)
    is_near = word[0] == term.words[0] and -2 < len(word) - len(term.words) < 2
    if is_near and likeness < _MISTYPED_WEIGHT and term.alike and is_mistyped(term.words, word):
        likeness = _MISTYPED_WEIGHT
    return likeness
