"""``make recall``: how often what was said is among the five best hits (R@5), beside baselines in the same run."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import anyio
import structlog

from agent_core.storage.search_index.vectors import missing_for_vectors
from tests.recall.engines import (
    Search,
    after_a_search,
    cacheable_share,
    fts5,
    in_the_prompt,
    rank_bm25,
    share_said,
    squidbot,
)
from tests.recall.histories import FORMS, LANGUAGES, Asked, History, history
from tests.recall.longmemeval import read_longmemeval
from tests.recall.remembering import PLACES, remember
from tests.recall.speed import measure_lookup, measure_speed, measure_vectors

VECTORS = "with vectors"
ENGINES = ("squidbot", "FTS5, OR", "rank_bm25", "FTS5, all words")
PROMPT, AFTER = "in the prompt", "after one search"
"""Of a question in another conversation: before any tool call, and after one search with key words."""
CACHEABLE = "cacheable"
"""The part of the prompts of a conversation that a provider can have cached."""
Shares = dict[tuple[str, str], list[tuple[Asked, str, float]]]


def remembered(histories: Iterable[History], *, vectors: bool = False) -> Counter[tuple[str, str]]:
    """Return the counts of `remember` for all histories together."""
    counted: Counter[tuple[str, str]] = Counter()
    for made in histories:
        with tempfile.TemporaryDirectory() as home:
            counted += anyio.run(partial(remember, made, Path(home), vectors=vectors))
    return counted


def _print_remembered(counted: Counter[tuple[str, str]]) -> None:
    print("\nIn the prompt after summaries by a script that loses a fifth, of 100 questions")
    heads = ("temporal fact", "with its day", "changed: old only", "both", "new only")
    print(f"{'asked in':24}" + "".join(f"{head:>19}" for head in heads))
    for place in PLACES:
        times, changes = (max(1, counted[place, f"{kind} asked"]) for kind in ("time", "update"))
        shares = [100 * counted[place, f"time {each}"] / times for each in ("value", "day")]
        shares += [100 * counted[place, each] / changes for each in ("only old", "both", "only new")]
        print(f"{place:24}" + "".join(f"{share:19.1f}" for share in shares))


async def measure(histories: Iterable[History], *, vectors: bool = False) -> Shares:
    """Return for each engine and form every question with its language and the share of its evidence found."""
    shares: Shares = defaultdict(list)
    for made in histories:
        others = (fts5(made, " OR "), rank_bm25(made), fts5(made, " AND "))
        for name, search in zip(ENGINES[1:], others, strict=True):
            await _ask(made, search, shares, name)
        await _measure_squidbot(made, shares, ENGINES[0], vectors=False)
        if vectors:
            await _measure_squidbot(made, shares, VECTORS, vectors=True)
    return shares


async def _ask(made: History, search: Search, shares: Shares, name: str) -> None:
    for each in made.asked:
        found = set[int]().union(*await search(each.query))
        known = len(each.evidence & found) / max(1, len(each.evidence))
        shares[name, each.form].append((each, made.language, known))


async def _measure_squidbot(made: History, shares: Shares, name: str, *, vectors: bool) -> None:
    with tempfile.TemporaryDirectory() as home:
        search, house = await squidbot(made, Path(home), vectors=vectors)
        await _ask(made, search, shares, name)
        marked = f" {VECTORS}" if vectors else ""
        for number, each in enumerate(made.asked):
            if each.form.startswith("as asked"):
                words = made.asked[min(number + 1, len(made.asked) - 1)].query
                prompt = await in_the_prompt(house, each)
                shares[PROMPT + marked, each.form].append((each, made.language, share_said(each, prompt)))
                prompt += await after_a_search(house, words)
                shares[AFTER + marked, each.form].append((each, made.language, share_said(each, prompt)))
        cacheable = await cacheable_share(made, house)
        shares[CACHEABLE + marked, FORMS[0]].append((made.asked[0], made.language, cacheable))
        await house.index.aclose()


def percent(rows: Iterable[tuple[Asked, str, float]]) -> float:
    """The mean share in percent, of the questions that have an answer."""
    known = [share for asked, _, share in rows if asked.kind != "nothing"]
    return 100 * sum(known) / max(1, len(known))


def _print(shares: Shares) -> None:
    forms = [form for form in FORMS if shares.get(("squidbot", form))]
    engines = [name for name in (ENGINES[0], VECTORS, *ENGINES[1:]) if forms and (name, forms[0]) in shares]
    print(f"{'':24}" + "".join(f"{name:>17}" for name in engines))
    for form in forms:
        print(f"{form:24}" + "".join(f"{percent(shares[name, form]):17.1f}" for name in engines))
    words = [form for form in forms if form.startswith("key words")]
    if words:
        both = [percent(row for form in words for row in shares[name, form]) for name in engines]
        print(f"{'key words':24}" + "".join(f"{each:17.1f}" for each in both))
    print("\nIn the prompt of a question in another conversation: before any tool call, after one search")
    for marked in ["", f" {VECTORS}"] if VECTORS in engines else [""]:
        for form in forms[:2]:
            both = [percent(shares[name + marked, form]) for name in (PROMPT, AFTER)]
            print(f"{form + marked:36}" + "".join(f"{each:8.1f}" for each in both))
        same = percent(shares[CACHEABLE + marked, FORMS[0]])
        print(f"Of the prompts the same as in the one before{marked}: {same:.1f}")
    print("\nsquidbot" + " " * 16 + "".join(f"{form:>23}" for form in forms))
    rows = [row for form in forms for row in shares["squidbot", form]]
    for at, group in ((1, {language for _, language, _ in rows}), (0, {asked.kind for asked, _, _ in rows})):
        for name in sorted(group - {"nothing"}):
            own = [
                [row for row in shares["squidbot", form] if name == (row[1] if at else row[0].kind)]
                for form in forms
            ]
            print(f"{name:24}" + "".join(f"{percent(each):23.0f}" for each in own))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="the first seed: other histories")
    parser.add_argument("--missed", action="store_true", help="print what squidbot did not find")
    parser.add_argument("--speed", action="store_true", help="measure 200,000 messages instead")
    parser.add_argument("--longmemeval", type=Path, metavar="FILE", help="the public file instead")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.speed:
        print(measure_speed(200_000))
        print(measure_lookup(200_000))
        if not missing_for_vectors():
            print(measure_vectors(200_000))
        return
    if options.longmemeval:
        histories: Iterable[History] = read_longmemeval(options.longmemeval)
        print(f"R@5 in percent, {options.longmemeval.name}\n")
    else:
        seeds = range(options.first, options.first + options.seeds)
        histories = [history(each, seed) for seed in seeds for each in LANGUAGES]
        print(f"R@5 in percent, {len(LANGUAGES) * options.seeds} made-up histories of 45 sittings\n")
    shares = anyio.run(partial(measure, histories, vectors=not missing_for_vectors()))
    _print(shares)
    if isinstance(histories, list):
        for vectors in (False, True)[: 1 + (not missing_for_vectors())]:
            print(f"\n{VECTORS if vectors else 'by words'}", end="")
            _print_remembered(remembered(histories, vectors=vectors))
    if options.missed:
        for form in FORMS:
            for asked, language, share in shares["squidbot", form]:
                if share < 1 and asked.kind != "nothing":
                    print(form, language, asked.kind, asked.query, *asked.said, sep=" | ")
        for form in FORMS[:2]:
            for asked, language, share in shares[PROMPT, form]:
                if share < 1 and asked.kind != "nothing":
                    print(PROMPT, form, language, asked.kind, asked.query, *asked.said, sep=" | ")


if __name__ == "__main__":
    main()
