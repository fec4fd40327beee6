"""One ranking of what has the words of a query and what means the same."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agent_core.storage.search_index.ranking import (
    BestSentences,
    Candidate,
    Rater,
    Similarity,
    Statistics,
    choose_candidates,
    rank,
)
from agent_core.storage.search_index.word_splitting import Query, fold, parse_query, sentences

SAID = {
    1: "The language course takes place in the town hall.",
    2: "I am now learning Turkish.",
    3: "I gave that up, now it is Polish.",
    4: "The train was late.",
}
ALIKE = {2: 0.5, 3: 0.45, 4: 0.1}


def ranked(question: str, *, alike: dict[int, float], least: float = 0.0) -> list[int]:
    query: Query = parse_query(question)
    found = {
        number: Candidate(number, fold(text)) for number, text in SAID.items() if query.matches(fold(text))
    }
    statistics = Statistics.from_matches(
        {
            term: [number for number in found if term in query.terms_in(fold(SAID[number]))]
            for term in query.terms
        },
        len(SAID),
    )
    likeness = {number: Similarity("", number, degree, 0) for number, degree in alike.items()}
    return rank(Rater(query, statistics), found, alike=likeness, least=least)


def test_what_has_the_words_and_means_the_same_stands_first() -> None:
    assert ranked("learning Turkish", alike=ALIKE)[0] == 2
    assert ranked("Turkish train", alike={3: 0.1, 2: 0.3})[0] == 2


def test_what_is_alike_counts_by_its_likeness_and_not_by_its_place() -> None:
    """A changed fact is nearly as like the question as the old one: both stay, and what is like nothing goes."""
    assert ranked("foreign tongue", alike=ALIKE, least=0.6) == [2, 3]
    assert ranked("foreign tongue", alike=ALIKE) == [2, 3, 4]


def test_few_of_the_words_are_worth_little_beside_a_likeness() -> None:
    """One word of many is a small share; the same line is the best one of a query that has no more words."""
    question = "Which foreign language do I study at the moment?"
    assert ranked(question, alike=ALIKE, least=0.6)[:2] == [2, 3]
    assert ranked("language course", alike=ALIKE)[0] == 1


def test_of_equals_the_newer_one_stands_first() -> None:
    assert ranked("tongue", alike={2: 0.5, 3: 0.5}) == [3, 2]


def test_without_likeness_words_alone_are_ranked() -> None:
    assert ranked("language course", alike={}) == [1]
    assert ranked("tongue", alike={}) == []


def best_of(text: str, question: str, alike: Similarity | None = None) -> str:
    """The sentence that is shown of a line."""
    query = parse_query(question)
    statistics = Statistics(1, Counter(query.terms))
    return BestSentences(Rater(query, statistics), [alike] if alike else []).best("s", 7, text)


LINE = "I bought bread. We drove into the mountains. The bus was late."


def test_the_sentence_that_is_shown_has_the_words_or_means_the_same() -> None:
    """By its words, by its likeness, and by both together; the controls change one of them."""
    assert best_of(LINE, "bread") == "I bought bread."
    assert best_of(LINE, "holiday trip", Similarity("s", 7, 0.5, 1)) == "We drove into the mountains."
    assert best_of(LINE, "holiday trip", Similarity("s", 7, 0.5, 2)) == "The bus was late."
    assert best_of(LINE, "bread", Similarity("s", 7, 0.1, 1)) == "I bought bread."


def test_no_sentence_is_shown_if_none_has_anything_of_the_question() -> None:
    """Nor by the likeness of another line."""
    assert best_of(LINE, "holiday trip") == ""
    assert best_of(LINE, "holiday trip", Similarity("s", 8, 0.5, 1)) == ""
    assert best_of(LINE, "holiday trip", Similarity("other", 7, 0.5, 1)) == ""


def test_lines_with_common_words_alone_are_left_out_only_if_others_weigh_more() -> None:
    """A common word still adds to what rare ones found; the control has too few of those."""
    rare, common = range(0, 300, 2), range(100, 1_100)
    best = choose_candidates([(0.5, common), (2.0, rare)])
    assert set(best) == set(range(100, 300, 2))
    few = choose_candidates([(0.5, common), (2.0, rare[:10])])
    assert few[:10] == [*reversed(rare[:10])]
    assert few[10:] == [*range(1_099, 1_009, -1)]


@given(st.text(alphabet="ab.!?…]:。！？\n \u3000\t["))
def test_sentences_end_as_a_slower_pattern_says(text: str) -> None:
    """The one that reads best, and looks behind itself at each character."""
    ends = re.compile(r"(?<=[.!?…])\s+|(?<=:\])\s+|(?<=[。！？])|\n+")
    assert sentences(text) == [part.strip() for part in ends.split(text) if part.strip()]
