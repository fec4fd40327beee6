"""The search of squidbot and three baselines, which give the numbers of the five best messages of a history."""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent_core.memory.manager import MemoryManager
from agent_core.memory_ports import SearchRequest
from agent_core.storage.search_index import SearchIndex
from agent_core.tools.search_history import SearchHistoryTool
from tests.recall.histories import Asked, History
from tests.search_house import OWNER, A, B, Harness

BEST = 5
C = "matrix/!c"
Search = Callable[[str], Awaitable[list[set[int]]]]
"""Gives for each hit the numbers of its messages: a hit is shown with its neighbours."""


def _with_neighbours(number: int) -> set[int]:
    return {number - 1, number, number + 1}


class HouseWithVectors(Harness):
    def opened(self) -> SearchIndex:
        return SearchIndex(self.home / "search.db", self.memory.layout, vectors=True)


async def squidbot(history: History, home: Path, *, vectors: bool = False) -> tuple[Search, Harness]:
    """The index of squidbot over the history in ``home``, and its parts."""
    house = HouseWithVectors(home) if vectors else Harness(home)
    starts = set(history.starts)
    for number, (_, text) in enumerate(history.messages):
        await house.say(A, text, days=2 if number in starts else 0.0005)
    await house.index.update_all()
    await house.found("tea")  # the process of the vectors runs, as in a conversation
    tail = await house.memory.load_segment(A, start=0, max_messages=len(history.messages))
    by_time = {message.timestamp: number for number, message in enumerate(tail.messages)}

    async def search(query: str) -> list[set[int]]:
        found = await house.index.search(SearchRequest(OWNER, query, max_results=BEST))
        return [{by_time[each.timestamp] for each in hit.messages} for hit in found.hits]

    return search, house


async def in_the_prompt(house: Harness, asked: Asked) -> str:
    """The text of the prompt of a question in another conversation, before any tool call."""
    manager = MemoryManager(house.memory, search=house.index)
    return "".join(each.content for each in await manager.build_messages(B, "sys", asked.query))


async def cacheable_share(history: History, house: Harness) -> float:
    """
    The share of all prompts of a conversation that stands at the beginning of the one before.

    The questions of a history are asked one after the other in another conversation, with answers of a usual
    length, below a system text as long as ours with the tools.
    """
    manager = MemoryManager(house.memory, search=house.index)
    system, answer = "s" * 4_400, "They leave at the full hour, said the clerk. " * 9
    same = total = 0
    before = ""
    for asked in history.asked:
        if not asked.form.startswith("as asked"):
            continue
        prompt = "".join(each.content for each in await manager.build_messages(C, system, asked.query))
        if before:
            same += len(os.path.commonprefix([before, prompt]))  # noqa: RUF071 - characters are what is meant
            total += len(prompt)
        before = prompt
        await house.say(C, asked.query, answer)
    return same / max(1, total)


async def after_a_search(house: Harness, words: str) -> str:
    """What a model reads that searches with these words."""
    tool = SearchHistoryTool(house.index, B, scope=OWNER, clock=house.clock)
    return (await tool.execute(query=words)).content


def share_said(asked: Asked, text: str) -> float:
    """The share of the sentences with the answer that stand in a text."""
    return sum(each in text for each in asked.said) / max(1, len(asked.said))


def fts5(history: History, joining: str) -> Search:
    """FTS5 as it comes with ``bm25()``; its words joined with OR, or with AND: all must occur."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE said USING fts5(text)")
    db.executemany("INSERT INTO said (rowid, text) VALUES (?, ?)", enumerate(t for _, t in history.messages))

    async def search(query: str) -> list[set[int]]:
        words = joining.join(f'"{word}"' for word in re.findall(r"\w+", query))
        rows = db.execute(
            "SELECT rowid FROM said WHERE said MATCH ? ORDER BY bm25(said) LIMIT ?", (words, BEST)
        )
        return [_with_neighbours(number) for (number,) in rows]

    return search


def rank_bm25(history: History) -> Search:
    """``BM25Okapi`` of the package rank_bm25 with its own numbers, over the words as they stand."""
    texts = [Counter(re.findall(r"\w+", text.lower())) for _, text in history.messages]
    usual = sum(map(Counter.total, texts)) / len(texts)
    having = Counter(word for text in texts for word in text)
    rarity = {word: math.log((len(texts) - count + 0.5) / (count + 0.5)) for word, count in having.items()}
    least = 0.25 * sum(rarity.values()) / len(rarity)
    rarity = {word: value if value >= 0 else least for word, value in rarity.items()}

    def rated(words: list[str], text: Counter[str]) -> float:
        return sum(
            rarity.get(word, 0)
            * (text[word] * 2.5 / (text[word] + 1.5 * (0.25 + 0.75 * text.total() / usual)))
            for word in words
        )

    async def search(query: str) -> list[set[int]]:
        words = re.findall(r"\w+", query.lower())
        points = {number: rated(words, text) for number, text in enumerate(texts)}
        best = sorted((each for each in points if points[each]), key=lambda each: -points[each])
        return [_with_neighbours(number) for number in best[:BEST]]

    return search
