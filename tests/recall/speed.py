"""
``make recall ARGS=--speed``: indexing and searching of many messages, beside plain FTS5 in the same run, in processor time.

The messages are those of the histories; a search is a question, key words or five to eight words of them.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path

import anyio

from agent_core.memory.manager import MemoryManager
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from agent_core.storage.lines import to_line
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.search_index.files import candidate_of
from agent_core.storage.search_index.ranking import rank
from agent_core.storage.search_index.rows import Rows, SearchLine
from agent_core.storage.search_index.text import Filters, fold, parse_query
from tests.clock import EPOCH, ManualClock
from tests.recall.histories import LANGUAGES, History, history

_BATCH = 400


def measure_speed(count: int) -> str:
    """Return the figures of an index of so many messages as text for people."""
    made = [history(language, seed) for language in LANGUAGES for seed in range(4)]
    said = list(islice(cycle(text for each in made for _, text in each.messages), count))
    lines = [
        SearchLine(number, number * 60_000, "user", None, text, "owner", "[]", f"{number // 2}-0123abcd")
        for number, text in enumerate(said)
    ]
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "ours.db"
        rows = Rows(ours, writable=True)
        mark = rows.begin("matrix/!a", 1)
        start = time.process_time()
        for first in range(0, count, _BATCH):
            rows.add(mark, lines[first : first + _BATCH], position=first, byte=first)
        rows.merge()
        rows.close()  # what is written ahead belongs to the file from then on
        size = ours.stat().st_size
        rows = Rows(ours, writable=True)
        seconds = time.process_time() - start
        text_bytes = sum(len(text.encode()) for text in said)
        told = [
            (
                f"{count:,} messages: indexed {count / seconds:,.0f} a second,"
                f" the index takes {size / text_bytes:.1f} times the text"
            )
        ]

        plain = sqlite3.connect(Path(folder) / "plain.db")
        plain.execute("CREATE VIRTUAL TABLE said USING fts5(text)")
        plain.executemany("INSERT INTO said (text) VALUES (?)", ((text,) for text in said))
        plain.commit()

        def search(query: str) -> None:
            asked = parse_query(query)
            found, statistics = rows.candidates(asked, "owner", Filters())
            ranked = rank(asked, statistics, {at: candidate_of(*each) for at, each in found.items()})
            for number in ranked[:5]:
                rows.around(number)

        def search_plain(query: str) -> None:
            words = " OR ".join(f'"{word}"' for word in fold(query).split())
            plain.execute(
                "SELECT text FROM said WHERE said MATCH ? ORDER BY bm25(said) LIMIT 5", (words,)
            ).fetchall()

        told += [
            f"{name}: {_times(made, each)}"
            for name, each in (("squidbot", search), ("FTS5, OR", search_plain))
        ]
        rows.close()
        plain.close()
    return "\n".join(told)


def measure_lookup(count: int) -> str:
    """Return the time of making a prompt with and without a lookup, in a home of so many messages, as text."""
    return anyio.run(_lookup, count)


async def _lookup(count: int) -> str:
    made = [history(language, seed) for language in LANGUAGES for seed in range(4)]
    said = cycle(text for each in made for _, text in each.messages)
    with tempfile.TemporaryDirectory() as folder:
        memory = JsonlMemory(Path(folder), clock=ManualClock())
        path = memory.layout.history(SessionKey.parse("matrix/!a"))
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            for number, text in enumerate(islice(said, count)):
                message = Message(
                    role="assistant" if number % 2 else "user",
                    content=text,
                    id=f"{number // 2}.{number % 2}",
                    turn=str(number // 2),
                    timestamp=EPOCH + timedelta(minutes=number),
                    scope="owner",
                )
                file.write(to_line(message, number))
        index = SearchIndex(Path(folder) / "search.db", memory.layout)
        await index.update_all()
        took: dict[str, list[float]] = {"without": [], "with": []}
        managers = {"without": MemoryManager(memory), "with": MemoryManager(memory, search=index)}
        for asked in made[0].asked:
            for name, manager in managers.items():
                start = time.perf_counter()
                await manager.build_messages("matrix/!b", "sys", asked.query)
                took[name].append(1000 * (time.perf_counter() - start))
        await index.aclose()
    p50 = {name: sorted(each)[len(each) // 2] for name, each in took.items()}
    return f"a prompt is made in {p50['without']:.1f} ms without a lookup, in {p50['with']:.1f} ms with one"


def _times(made: list[History], search: Callable[[str], None]) -> str:
    took = []
    for query in dict.fromkeys(asked.query for each in made for asked in each.asked):
        start = time.process_time()
        search(query)
        took.append(1000 * (time.process_time() - start))
    took.sort()
    return f"a search takes {took[len(took) // 2]:.0f} ms, p95 {took[len(took) * 95 // 100]:.0f} ms"
