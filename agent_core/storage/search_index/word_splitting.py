"""
Normalises texts for searching: splits and folds words, so that the index and a plain scan agree. Pure. Case,
accents and widths do not count. Scripts without spaces are indexed by character and searched by pairs, in
Japanese without hiragana pairs, which mostly are endings. A query has words (any may match) and quoted
phrases (all must). A long word is also found by the words that it begins or ends with, as in compounds.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import filterfalse, pairwise

from agent_core.storage.search_index.stems import STOP_WORDS, stems
from agent_core.text import UNSPACED

_BETWEEN = re.compile(r"[\W_]+")
_UNSPACED = re.compile(f"([{UNSPACED}])")
_RUNS = re.compile(f"[{UNSPACED}]+|[^{UNSPACED}\\W_]+")
_ENDING = re.compile("[\u3041-\u309f ]+")
# What stands before the words of a transcript is no part of their first sentence.
# It begins with a set of characters: such a pattern is looked for much more quickly.
_SENTENCE_END = re.compile(r"[.!?…\]。！？\n](?:(?<=[.!?…])\s+|(?<=:\])\s+|(?<=[。！？\n]))")
_PARTS = re.compile(r"\"([^\"]*)\"|([^\"]+)")
_MAX_TERMS = 16
_MAX_CHARACTERS = 10_000  # that are remembered
_SHORTEST_BEGINNING = 3
_SHORTEST_PART = 4  # letters of a word within a compound
_COMPOUND = range(2 * _SHORTEST_PART, 41)  # letters
_ALIKE = 6  # letters at least of a word that may be mistyped
_ALIKE_PART = 3
_FIRST_SENTENCES, _MAX_SENTENCE = 16, 400
TAIL = "~"
"""A word that ends with another is found by its letters backwards, after this character."""


def _fold(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(filterfalse(unicodedata.combining, text))
    return text.casefold()


class _Folded(dict[int, str]):
    """The folded form of each character that occurred, by its code, with blanks where words are split."""

    def __missing__(self, code: int) -> str:
        if len(self) >= _MAX_CHARACTERS:
            self.clear()
        self[code] = folded = _UNSPACED.sub(r" \1 ", _BETWEEN.sub(" ", _fold(chr(code))))
        return folded


_FOLDED = _Folded()


def fold(text: str) -> str:
    """The folded words of a text, with one space between them; only the beginning of a very long text."""
    return " ".join(folded_words(text))


def folded_words(text: str) -> list[str]:
    """The words of a folded text."""
    return text[:20_000].translate(_FOLDED).split()


_STOP = tuple(frozenset(fold(word) for word in words) for words in STOP_WORDS)


def index_words(text: str) -> Iterator[str]:
    """
    Yield the words of a folded text, and then the mark of the end of each that may be a compound.

    Between the words the marks would keep a phrase from being found.
    """
    words = text.split()
    yield from words
    yield from (TAIL + word[::-1] for word in words if len(word) in _COMPOUND)


def sentences(text: str) -> list[str]:
    """Return a text as sentences, long ones in several parts."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    told = (text[start:end].strip() for start, end in pairwise((0, *ends, len(text))))
    longest = _MAX_SENTENCE
    return [part[at : at + longest] for part in told for at in range(0, len(part), longest)]


def first_sentences(text: str) -> list[str]:
    """Return the sentences of a text that have vectors."""
    return sentences(text[: _FIRST_SENTENCES * _MAX_SENTENCE])[:_FIRST_SENTENCES]


@dataclass(frozen=True, slots=True)
class Term:
    """
    A part of a query: a folded word, or several in sequence.

    ``beginning`` is a word's shortest stem; a ``quoted`` term must occur in each hit; ``ending`` and
    ``parts`` match compounds.
    """

    words: str
    beginning: str | None = None
    quoted: bool = False
    ending: str | None = None
    parts: frozenset[str] = frozenset()

    @property
    def alike(self) -> tuple[str, str] | None:
        """
        The beginning and the end that words have of which this one may be a mistyped form.

        One mistake leaves half of a word as it was.
        """
        half = max(_ALIKE_PART, (len(self.words) - 1) // 2)
        long = self.beginning is not None and len(self.words) >= _ALIKE
        return (self.words[:half], self.words[-half:]) if long else None

    def occurs_in(self, text: str, words: Collection[str]) -> bool:
        """Return True if a text, blanks around it, or its words have the term or a word like it."""
        return (
            f" {self.words} " in text
            or (self.beginning is not None and f" {self.beginning}" in text)
            or (self.ending is not None and f"{self.ending} " in text)
            or not self.parts.isdisjoint(words)
            or self._is_mistyped_in(text, words)
        )

    def _is_mistyped_in(self, text: str, words: Collection[str]) -> bool:
        if self.alike is None:
            return False
        begin, end = self.alike
        near = f" {begin}" in text or f"{end} " in text
        return near and any(is_mistyped(self.words, word) for word in words)


def is_mistyped(one: str, other: str) -> bool:
    """Return True if two words differ by one letter, or by two letters in the other order."""
    if len(one) > len(other):
        one, other = other, one
    if len(one) < _ALIKE - 1 or len(other) - len(one) > 1 or one == other:
        return False
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    if len(one) < len(other):
        return one[at:] == other[at + 1 :]
    swapped = one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
    return swapped or one[at + 1 :] == other[at + 1 :]


@dataclass(frozen=True, slots=True)
class Query:
    """A query: of its ``terms`` any may match, and all that are quoted must."""

    terms: tuple[Term, ...]

    @property
    def has_quoted(self) -> bool:
        """Return True if a hit must have certain words."""
        return any(term.quoted for term in self.terms)

    def terms_in(self, text: str) -> list[Term]:
        """Return the terms that a folded text has, or words like them."""
        words, padded = frozenset(text.split()), f" {text} "
        return [term for term in self.terms if term.occurs_in(padded, words)]

    def matches(self, text: str) -> bool:
        """Return True if a folded text may be a hit."""
        return self.is_hit(self.terms_in(text))

    def is_hit(self, found: Collection[Term]) -> bool:
        """Return True if a text with these terms may be a hit."""
        return bool(found) and all(term in found for term in self.terms if term.quoted)


@dataclass(frozen=True, slots=True)
class Filters:
    """The lines that are searched: since a time, in some sessions (None: in all), said by a person."""

    since_ms: int = 0
    sessions: frozenset[str] | None = None
    person: tuple[str, ...] = ()

    def accepts(self, session: str) -> bool:
        """Return True if a session is searched."""
        return self.sessions is None or session in self.sessions

    def is_said(self, ms: int, sender: str | None) -> bool:
        """Return True if the time and the sender of a line are searched."""
        words = f" {fold(sender or '')}"
        return ms >= self.since_ms and all(f" {each}" in words for each in self.person)


def parse_query(text: str) -> Query:
    """
    Parse the query of a model or a person; without any word it has no terms.

    A text with several of the words that only hold a sentence together in its language is searched without
    them, unless there is nothing else. Of many words the longest are searched.
    """
    found: dict[str, Term] = {}
    for quoted, bare in _PARTS.findall(text[:4_000]):
        if quoted and (phrase := fold(quoted)):
            found[phrase] = Term(phrase, quoted=True)
        for words in _bare_terms(bare):
            found.setdefault(words, _term(words))
    stop = max((found.keys() & words for words in _STOP), key=len)
    if 1 < len(stop) < len(found):
        found = {words: term for words, term in found.items() if words not in stop or term.quoted}
    longest = nlargest(_MAX_TERMS, found, key=lambda words: (found[words].quoted, len(words)))
    return Query(tuple(term for words, term in found.items() if words in longest))


def _bare_terms(text: str) -> Iterator[str]:
    """Yield each word, and of a row of characters without spaces each pair."""
    for run in _RUNS.findall(_fold(text)):
        if not _UNSPACED.match(run):
            yield run
            continue
        pairs = [f"{one} {two}" for one, two in pairwise(run)]
        yield from [pair for pair in pairs if not _ENDING.fullmatch(pair)] or pairs or [run]
        yield from (part for part in _ENDING.split(run) if len(part) == 1)


def _term(words: str) -> Term:
    if " " in words or words.isdigit() or _UNSPACED.match(words):
        return Term(words)
    shortest = min(stems(words), key=lambda stem: (len(stem), stem))
    beginning = shortest if len(shortest) >= _SHORTEST_BEGINNING else None
    ending = words if len(words) >= _SHORTEST_PART else None
    cuts = range(_SHORTEST_PART, len(words) - _SHORTEST_PART + 1) if len(words) in _COMPOUND else ()
    return Term(
        words,
        beginning,
        ending=ending,
        parts=frozenset(part for at in cuts for part in (words[:at], words[at:])),
    )
