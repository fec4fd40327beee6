"""``make recall``: how often what was said is among the five best hits (R@5), beside baselines in the same run."""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import anyio

from tests.recall.engines import fts5, in_the_prompt, plain_bm25, squidbot
from tests.recall.histories import LANGUAGES, Asked, history
from tests.recall.speed import measure_speed

FORMS = (
    "as asked, near",
    "as asked, paraphrased",
    "key words, near",
    "key words, paraphrased",
    "5-8 words",
)
ENGINES = ("squidbot", "FTS5, OR", "BM25", "FTS5, all words")
PROMPT = "in the prompt"
"""Of a question in another conversation, before any tool call."""
Shares = dict[tuple[str, str], list[tuple[Asked, str, float]]]


async def measure(seeds: Iterable[int], *, sittings: int = 45) -> Shares:
    """Return for each engine and form every question with its language and the share of its evidence found."""
    shares: Shares = defaultdict(list)
    for seed in seeds:
        for language in LANGUAGES:
            made = history(language, seed, sittings=sittings)
            with tempfile.TemporaryDirectory() as home:
                ours, house = await squidbot(made, Path(home))
                others = (fts5(made, " OR "), plain_bm25(made), fts5(made, " AND "))
                for name, search in zip(ENGINES, (ours, *others), strict=True):
                    for each in made.asked:
                        found = set[int]().union(*await search(each.query))
                        known = len(each.evidence & found) / max(1, len(each.evidence))
                        shares[name, each.form].append((each, language, known))
                for each in made.asked:
                    if each.form.startswith("as asked"):
                        known = await in_the_prompt(made, house, each.query, each.evidence)
                        shares[PROMPT, each.form].append((each, language, known))
                await house.index.aclose()
    return shares


def percent(rows: Iterable[tuple[Asked, str, float]]) -> float:
    """The mean share in percent, of the questions that have an answer."""
    known = [share for asked, _, share in rows if asked.kind != "nothing"]
    return 100 * sum(known) / max(1, len(known))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--missed", action="store_true", help="print what squidbot did not find")
    parser.add_argument("--speed", action="store_true", help="measure 200,000 messages instead")
    options = parser.parse_args()
    if options.speed:
        print(measure_speed(200_000))
        return
    shares = anyio.run(measure, range(options.seeds))
    print(f"R@5 in percent, {5 * options.seeds} made-up histories of 45 sittings\n")
    print(f"{'':24}" + "".join(f"{name:>17}" for name in ENGINES))
    for form in FORMS:
        print(f"{form:24}" + "".join(f"{percent(shares[name, form]):17.0f}" for name in ENGINES))
    print("\nIn the prompt of a question in another conversation, before any tool call:")
    for form in FORMS[:2]:
        print(f"{form:24}{percent(shares[PROMPT, form]):17.0f}")
    print()
    for language in LANGUAGES:
        own = [[row for row in shares["squidbot", form] if row[1] == language] for form in FORMS]
        print(f"squidbot, {language:14}" + "".join(f"{percent(rows):8.0f}" for rows in own))
    for kind in ("person", "assistant", "several", "time", "update"):
        own = [[row for row in shares["squidbot", form] if row[0].kind == kind] for form in FORMS]
        print(f"squidbot, {kind:14}" + "".join(f"{percent(rows):8.0f}" for rows in own))
    if options.missed:
        for form in FORMS:
            for asked, language, share in shares["squidbot", form]:
                if share < 1 and asked.kind != "nothing":
                    print(form, language, asked.kind, asked.query, sep=" | ")


if __name__ == "__main__":
    main()
