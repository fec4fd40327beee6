"""
``make recall ARGS=--speed``: indexing and searching of many messages, beside plain FTS5 in the same run, in processor time.

The messages are those of the histories; a search is a question, key words or five to eight words of them.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from unittest.mock import patch

import anyio

from agent_core.memory_ports import SearchRequest
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage.history_lines import to_line
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from agent_core.storage.search_index.index_rows import Rows, SearchLine
from agent_core.storage.search_index.indexed_files import candidate_of
from agent_core.storage.search_index.ranking import BestSentences, Rater, rank
from agent_core.storage.search_index.word_splitting import Filters, fold, parse_query
from gateway.app import Overrides, build
from gateway.observability.logs import configure_logs
from gateway.settings import Settings
from gateway.system.home import open_home
from tests.clock import EPOCH
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.recall.histories import LANGUAGES, History, history
from tests.search_house import OWNER

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
            rank(Rater(asked, statistics), {row: candidate_of(each) for row, each in found.items()})

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
    """Return the time of a whole turn with and without a lookup, in a home of so many messages, as text."""
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(_turns, Path(folder), count)


async def _turns(folder: Path, count: int) -> str:
    """
    Two gateways over the same history take turns, with a model that takes no time.

    The one that looks up takes a third turn in which no sentences are chosen.
    """
    configure_logs("error")
    made = [history(language, seed) for language in LANGUAGES for seed in range(4)]
    took: dict[str, list[float]] = {"without": [], "floor": [], "with": []}
    asked = [each.query for each in made[0].asked] * 4
    async with anyio.create_task_group() as tasks:
        gateways = {}
        for lookup in (False, True):
            home = open_home(folder / str(lookup))
            settings = Settings.model_validate(
                {
                    "owner": {"aliases": [{"channel": "loopback", "address": "alice"}]},
                    "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}},
                    "memory": {"lookup": lookup},
                }
            )
            layout = Layout(home.root, home.path(settings.agents.workspace))
            _write(layout.history(SessionKey.parse("loopback/old")), made, count)
            index = SearchIndex(home.root / "search.db", layout)
            await index.update_all()
            await index.aclose()
            server = LoopbackServer()
            overrides = Overrides(
                channels={"loopback": (LoopbackChannel(server), "merge")},
                allow_from={"loopback": ("alice",)},
            )
            built = await build(settings, home, overrides)
            tasks.start_soon(built.run)
            while not built.supervisor.all_up:
                await anyio.sleep(0.01)
            gateways[lookup] = built, server
        await anyio.sleep(2)  # until what a start does beside the turns is done
        for question in asked:
            for kind, times in took.items():
                _, server = gateways[kind != "without"]
                chooses = BestSentences.best if kind != "floor" else lambda *_: ""
                with patch.object(BestSentences, "best", chooses):
                    answers = len(server.delivered) + 1
                    start = time.process_time()
                    server.say("alice", question, conversation="new")
                    await server.answers(answers)
                    times.append(1000 * (time.process_time() - start))
        for built, _ in gateways.values():
            built.stop()
    without, floor, with_it = (sorted(times)[len(asked) // 2] for times in took.values())
    return (
        f"from a message to its answer the processor works {without:.1f} ms without a lookup,"
        f" {with_it:.1f} ms with one, of which choosing sentences takes {with_it - floor:.1f} ms"
    )


def measure_vectors(count: int) -> str:
    """Return the rates and the memory of the encoder's process over so many messages, as text."""
    with tempfile.TemporaryDirectory() as folder:
        return anyio.run(_vectors, Path(folder), count)


async def _vectors(folder: Path, count: int) -> str:
    configure_logs("error")
    made = [history(language, seed) for language in LANGUAGES for seed in range(4)]
    layout = Layout(folder, folder)
    _write(layout.history(SessionKey.parse("loopback/old")), made, count)
    index = SearchIndex(folder / "search.db", layout, vectors=True)
    assert index.vectors is not None
    await index._follow_all()
    start = time.monotonic()
    await index.update_all()
    seconds = time.monotonic() - start
    await index.vectors.process.aclose()
    start = time.monotonic()
    request = partial(SearchRequest, OWNER, max_results=5)
    await index.search(request("a bicycle", waits=True))
    ready = time.monotonic() - start
    await index.update_all()
    loaded = time.monotonic() - start
    took, worked = [], []
    for query in dict.fromkeys(asked.query for each in made for asked in each.asked):
        start, at_work = time.monotonic(), _processor_s(index.vectors.process.pid)
        await index.search(request(query, waits=False))
        took.append(1000 * (time.monotonic() - start))
        worked.append(1000 * (_processor_s(index.vectors.process.pid) - at_work))
    status = Path(f"/proc/{index.vectors.process.pid}/status").read_text()
    peak, now = (int(status.partition(f"{name}:")[2].split()[0]) >> 10 for name in ("VmHWM", "VmRSS"))
    await index.aclose()
    size = (folder / "search.db").stat().st_size >> 20
    took.sort()
    worked.sort()
    return (
        f"{count:,} messages with vectors: {count / seconds:,.0f} a second are encoded, the file takes {size} MB;"
        f" a process that starts is ready after {ready:.1f} s, has all after {loaded:.1f} s"
        f" and takes {now} MB (most {peak});"
        f" a search takes {took[len(took) // 2]:.0f} ms, p95 {took[len(took) * 95 // 100]:.0f} ms,"
        f" of a processor {worked[len(worked) // 2]:.0f} ms, p95 {worked[len(worked) * 95 // 100]:.0f} ms"
    )


def _processor_s(pid: int | None) -> float:
    """The processor time of this process and of another one."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write(path: Path, made: list[History], count: int) -> None:
    said = cycle(text for each in made for _, text in each.messages)
    path.parent.mkdir(parents=True, exist_ok=True)
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


def _times(made: list[History], search: Callable[[str], None]) -> str:
    took = []
    for query in dict.fromkeys(asked.query for each in made for asked in each.asked):
        start = time.process_time()
        search(query)
        took.append(1000 * (time.process_time() - start))
    took.sort()
    return f"a search takes {took[len(took) // 2]:.0f} ms, p95 {took[len(took) * 95 // 100]:.0f} ms"
