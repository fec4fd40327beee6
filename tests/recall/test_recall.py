"""A small run of the recall benchmark against floors well below what is measured, and the reader of LongMemEval."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from agent_core.memory.consolidation import consolidation_run, prompts
from agent_core.storage.search_index.index_rows import Rows, SearchLine
from agent_core.storage.search_index.vectors import missing_for_vectors
from tests.recall.__main__ import AFTER, CACHEABLE, PROMPT, VECTORS, measure, percent
from tests.recall.engines import squidbot
from tests.recall.histories import LANGUAGES, history
from tests.recall.longmemeval import read_longmemeval
from tests.recall.remembering import PLACES, remember

_SAME_TOPICS = 7
"""The first ones of each language are about the same."""
FLOORS = {"as asked, near": 88, "key words, near": 78, "key words, paraphrased": 22, "5-8 words": 85}


@pytest.mark.slow
async def test_what_was_said_is_among_the_five_best() -> None:
    """In five languages; a search that wants every word stays below each floor, and plain ranking too."""
    shares = await measure(history(language, 0, sittings=30) for language in LANGUAGES)
    for form, floor in FLOORS.items():
        assert percent(shares["squidbot", form]) >= floor, form
        assert percent(shares["FTS5, all words", form]) < floor, form
        assert percent(shares["FTS5, OR", form]) < percent(shares["squidbot", form]), form
        assert percent(shares["rank_bm25", form]) < percent(shares["squidbot", form]), form
    assert percent(shares[PROMPT, "as asked, near"]) >= 70
    assert percent(shares[CACHEABLE, "as asked, near"]) >= 88
    assert percent(shares[AFTER, "as asked, near"]) >= percent(shares[PROMPT, "as asked, near"])


@pytest.mark.slow
async def test_days_and_changes_are_in_the_prompt_after_summaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above what is measured; without what is recorded and without the check for lost facts old ones stand alone."""
    counted = Counter[tuple[str, str]]()
    for language in LANGUAGES:
        counted += await remember(history(language, 0), tmp_path / language)
    same, _ = PLACES
    assert counted[same, "time day"] >= 0.8 * counted[same, "time asked"] > 0
    changes = sum(counted[place, "update asked"] for place in PLACES)
    assert sum(counted[place, "only old"] for place in PLACES) <= 0.05 * changes

    asked = prompts.consolidation_messages
    monkeypatch.setattr(prompts, "consolidation_messages", lambda text, count, **_: asked(text, count))
    monkeypatch.setattr(consolidation_run, "essentials", lambda _: [])
    without = Counter[tuple[str, str]]()
    for language in LANGUAGES:
        without += await remember(history(language, 0), tmp_path / f"{language} without")
    assert without[same, "only old"] > counted[same, "only old"]


@pytest.mark.skipif(bool(missing_for_vectors()), reason="the extra recall is not installed")
async def test_vectors_find_what_words_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the encoder; the same without the likeness stays below."""
    monkeypatch.setattr("agent_core.storage.search_index.vectors._SEARCH_LIMIT_S", 300.0)
    floors = {"key words, near": 84, "key words, paraphrased": 45, "5-8 words": 85}
    shares = await measure([history("en", 0, sittings=30)], vectors=True)
    for form, floor in floors.items():
        assert percent(shares[VECTORS, form]) >= floor, form
    assert percent(shares[f"{PROMPT} {VECTORS}", "as asked, paraphrased"]) >= 70
    monkeypatch.setattr("agent_core.storage.search_index.search_index.similar_lines", lambda *_: {})
    words = await measure([history("en", 0, sittings=30)], vectors=True)
    assert percent(words[VECTORS, "key words, paraphrased"]) < floors["key words, paraphrased"]
    assert percent(words[f"{PROMPT} {VECTORS}", "as asked, paraphrased"]) < 70


@pytest.mark.skipif(bool(missing_for_vectors()), reason="the extra recall is not installed")
async def test_a_question_of_another_language_is_found_by_its_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In English talk, of the same questions in four languages: most with the encoder, by words hardly any."""
    monkeypatch.setattr("agent_core.storage.search_index.vectors._SEARCH_LIMIT_S", 300.0)
    told = history("en", 0, sittings=10)
    evidence = {each.topic: each.evidence for each in told.asked if each.topic < _SAME_TOPICS}
    asked = [
        each
        for language in LANGUAGES
        if language != "en"
        for each in history(language, 0, sittings=10).asked
        if each.topic in evidence and each.form == "as asked, near"
    ]
    assert len(asked) == 4 * _SAME_TOPICS
    found = {}
    for vectors in (True, False):
        search, house = await squidbot(told, tmp_path / str(vectors), vectors=vectors)
        hits = [set[int]().union(*await search(each.query)) for each in asked]
        found[vectors] = sum(
            len(evidence[each.topic] & seen) / len(evidence[each.topic])
            for each, seen in zip(asked, hits, strict=True)
        )
        await house.index.aclose()
    assert found[True] >= 0.6 * len(asked)
    assert found[False] <= 0.1 * len(asked)


def test_the_index_is_not_much_larger_than_the_text(tmp_path: Path) -> None:
    """Of everyday messages at most two and a half times, with all that stands beside a text in a history."""
    said = [text for language in LANGUAGES for _, text in history(language, 0).messages]
    path = tmp_path / "search.db"
    rows = Rows(path, writable=True)
    mark = rows.begin("matrix/!abcdefghijk:example.org", 1)
    for number, text in enumerate(said):
        line = SearchLine(
            number,
            1_700_000_000_000 + number * 60_000,
            "assistant" if number % 2 else "user",
            None if number % 2 else "@alice:example.org",
            text,
            "owner",
            "[]",
            f"{number // 2}-0123abcd",
            f"{number // 2}-0123abcd.{number % 2}",
        )
        rows.add(mark, [line], position=number, byte=number)
    rows.merge()
    rows.close()
    assert path.stat().st_size <= 2.5 * sum(len(text.encode()) for text in said)


def _turn(role: str, content: str, **more: bool) -> dict[str, object]:
    return {"role": role, "content": content, **more}


async def test_a_file_of_longmemeval_is_read(tmp_path: Path) -> None:
    """By its marks, by the conversations of the answer where it has none, and its questions without an answer."""
    sessions = [
        [_turn("user", "Hello"), _turn("assistant", "Hello, what is new?")],
        [_turn("user", "I adopted a cat named Minka.", has_answer=True), _turn("assistant", "Nice!")],
    ]
    question = {
        "question_id": "q1",
        "question_type": "single-session-user",
        "question": "What is the name of the cat I adopted?",
        "answer": "Minka",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 10:00"],
        "haystack_session_ids": ["s1", "answer_1"],
        "haystack_sessions": sessions,
        "answer_session_ids": ["answer_1"],
    }
    unmarked = [[{k: v for k, v in turn.items() if k != "has_answer"} for turn in each] for each in sessions]
    path = tmp_path / "longmemeval.json"
    path.write_text(
        json.dumps(
            [
                question,
                {**question, "haystack_sessions": unmarked},
                {**question, "question_id": "q1_abs", "haystack_sessions": unmarked},
            ]
        )
    )
    marked, counted, unanswered = read_longmemeval(path)
    assert marked.asked == counted.asked
    (asked,) = marked.asked
    assert (asked.evidence, marked.starts, asked.kind) == (frozenset({2}), [0, 2], "single-session-user")
    assert unanswered.asked[0].kind == "nothing"
    shares = await measure([marked])
    assert percent(shares["squidbot", asked.form]) == percent(shares[PROMPT, asked.form]) == 100
