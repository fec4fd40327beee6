"""
Ranks what a search found, for every store alike: the store only says which lines have a word and how many
there are. Pure.

The measure is Okapi BM25 (Robertson and Zaragoza 2009): a rare word counts more than a common one, a further
occurrence less than the first, and a long text less than a short one. Another form of a word counts a little
less than the word itself. Lines with all words of a query stand before the others, and of two that are as
good the newer one stands first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TypeVar

from agent_core.storage.search_index.stems import stems
from agent_core.storage.search_index.text import Query, Term

MOST_POSTINGS = 4_000
"""The number of newest lines with a word that are counted; a word of more lines is a common one."""
MOST_CANDIDATES = 200
"""The number of lines that are read and ranked."""

_SATURATION = 1.2
_LENGTH_SHARE = 0.4
_USUAL_WORDS = 20
_FORM_WEIGHT = 0.8
_BEGINNING_WEIGHT = 0.4
_IN_A_ROW = 0.3
_RECENCY = 0.1
_RECENT_MS = 90 * 86_400_000

_Id = TypeVar("_Id", int, tuple[int, str, int])


@dataclass(slots=True)
class Statistics:
    """The number of lines of a scope, and of those that have each term; larger counts are cut off."""

    total: int = 0
    counts: Counter[Term] = field(default_factory=Counter)

    @classmethod
    def of(cls, found: Mapping[Term, Sequence[object]], total: int) -> Statistics:
        """Count what was found; a term of as many lines as are looked at may stand in all of them."""
        counts = {term: len(ids) if len(ids) < MOST_POSTINGS else total for term, ids in found.items()}
        return cls(total, Counter(counts))

    def rarity(self, term: Term) -> float:
        """Return the weight of a term."""
        count = min(self.counts[term], self.total)
        return math.log(1 + (self.total - count + 0.5) / (count + 0.5))


def choose_candidates(postings: Sequence[tuple[float, Iterable[_Id]]]) -> list[_Id]:
    """Return the lines whose terms weigh most, from each term's weight and lines (the newest first)."""
    weights: dict[_Id, float] = {}
    for weight, ids in postings:
        for each in ids:
            weights[each] = weights.get(each, 0.0) + weight
    return nlargest(MOST_CANDIDATES, weights, key=lambda each: (weights[each], each))


def rank(query: Query, statistics: Statistics, texts: Mapping[_Id, tuple[int, str]]) -> list[_Id]:
    """Return the hits among candidates (time in ms and folded text), the best first."""
    newest = max((ms for ms, _ in texts.values()), default=0)
    rated: dict[_Id, tuple[bool, float, int]] = {}
    for each, (ms, text) in texts.items():
        rating: tuple[bool, float] | None = score(query, statistics, text, age_ms=newest - ms)
        if rating is not None:
            has_all, points = rating
            rated[each] = (has_all, points, ms)
    return sorted(rated, key=lambda each: (rated[each], each), reverse=True)


def score(query: Query, statistics: Statistics, text: str, *, age_ms: int) -> tuple[bool, float] | None:
    """
    Rate a folded text; higher is better, and None is no hit.

    Args:
        query: Its terms.
        statistics: Of the scope.
        text: The folded text.
        age_ms: How much older it is than the newest candidate.
    """
    words = text.split()
    places: dict[str, list[int]] = {}
    for number, word in enumerate(words):
        places.setdefault(word, []).append(number)
    length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * len(words) / _USUAL_WORDS
    total, missing, before = 0.0, False, frozenset[int]()
    for term in query.terms:
        frequency, ends, starts = _occurrences(term, places, words)
        if not frequency:
            if term.quoted:
                return None
            missing, before = True, frozenset()
            continue
        weight = statistics.rarity(term)
        total += weight * frequency * (_SATURATION + 1) / (frequency + _SATURATION * length)
        if before & starts:
            total += _IN_A_ROW * weight
        before = ends
    if not total:
        return None
    return not missing, total * (1 + _RECENCY / (1 + age_ms / _RECENT_MS))


def _occurrences(
    term: Term, places: dict[str, list[int]], words: Sequence[str]
) -> tuple[float, frozenset[int], frozenset[int]]:
    """Return how often a term occurs, the places after its occurrences, and their first places."""
    parts = term.words.split()
    if len(parts) > 1:
        starts = [at for at in places.get(parts[0], ()) if list(words[at : at + len(parts)]) == parts]
        return float(len(starts)), frozenset(at + len(parts) for at in starts), frozenset(starts)
    exact = places.get(term.words, [])
    frequency, starts = float(len(exact)), list(exact)
    if term.beginning is not None:
        wanted = stems(term.words)
        for word, found in places.items():
            if word != term.words and word.startswith(term.beginning):
                likeness = _FORM_WEIGHT if wanted & stems(word) else _BEGINNING_WEIGHT
                frequency += likeness * len(found)
                starts += found
    return frequency, frozenset(at + 1 for at in starts), frozenset(starts)
