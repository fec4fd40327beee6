"""
Normalises texts for searching: splits and folds words, so that the index and a plain scan agree. Pure.

Case, accents and widths do not count. Scripts that put no spaces between words are taken character by
character, and what is looked for in them is a row of characters. A query consists of words and of phrases
between double quotes; no other character means anything. Where whole words find nothing, their beginnings do.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace

_WORDS = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])"
)
_PARTS = re.compile(r"\"([^\"]*)\"|(\S+)")
_MOST_TERMS = 16
_LONGEST_QUERY = 500
_LONGEST_TEXT = 20_000
_SHORTEST_BEGINNING = 3


def folded(text: str) -> str:
    """The folded words of a text, with one space between them; only the beginning of a very long text."""
    text = text[:_LONGEST_TEXT]
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in text if not unicodedata.combining(char))
        text = _UNSPACED.sub(r" \1 ", text)
    return " ".join(_WORDS.findall(text.casefold()))


@dataclass(frozen=True, slots=True)
class Query:
    """
    A query: all of the ``terms``, each a folded word, or several that follow each other.

    With ``beginnings`` the last word of each term may go on.
    """

    terms: tuple[str, ...]
    beginnings: bool = False

    def widened(self) -> Query | None:
        """The query to try when whole words find nothing; None: a term is too short for that."""
        is_short = min(map(len, self.terms)) < _SHORTEST_BEGINNING
        return None if is_short else replace(self, beginnings=True)

    def matches(self, text: str) -> bool:
        """Whether a folded text contains all terms."""
        text = f" {text} "
        end = "" if self.beginnings else " "
        return all(f" {term}{end}" in text for term in self.terms)

    def expression(self, scope: str) -> str:
        """The query for FTS5, within the rows marked with ``scope``."""
        star = "*" if self.beginnings else ""
        texts = " AND ".join(f'"{term}"{star}' for term in self.terms)
        return f'scope : "{scope}" AND text : ({texts})'


def parse_query(text: str) -> Query:
    """Parse the query of a model or a person; without any word it has no terms."""
    terms: list[str] = []
    for quoted, bare in _PARTS.findall(text[:_LONGEST_QUERY]):
        term = folded(quoted or bare)
        if term and term not in terms:
            terms.append(term)
    return Query(tuple(terms[:_MOST_TERMS]))
