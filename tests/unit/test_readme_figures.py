"""The figures of docs/benchmarks.md are those that the commands have kept, and none is typed."""

from __future__ import annotations

import json

import pytest

from tests.bench import readme
from tests.bench.table import Figure, Goal, as_json

MACHINE = "2026-01-01, 2 cores"
GROUPS = [
    (
        name,
        [
            Figure(
                f"{names[0]} something",
                2.0,
                "ms",
                Goal("<", 1.0),
                floor=1.0,
                floor_is="less | more",
                group=name,
            )
        ],
    )
    for name, names in readme._HEADLINES.items()
]
BENCH = json.loads(json.dumps({"machine": MACHINE, "figures": as_json(GROUPS)}))


def test_a_missed_goal_is_said_and_a_floor_gives_a_ratio():
    section = readme.section(BENCH, None, None)
    assert MACHINE in section
    assert (
        "| from start to ready, Matrix and mail connected something | 2 ms, **missed** (2.0×) | < 1 ms | 1 ms: less \\| more |"
        in section
    )


def test_kills_and_the_soak_stand_below_the_table():
    kill = {"machine": MACHINE, "seed": 7, "tests": 3, "hits": {"of the queue alone": 1200, "of mails": 34}}
    section = readme.section(BENCH, kill, {"machine": MACHINE, "text": "30 minutes."})
    assert "seed 7: 1,234 SIGKILLs that hit in 3 tests" in section
    assert "1,200 of the queue alone, 34 of mails" in section
    assert section.endswith("30 minutes.")


def test_a_run_of_some_measurements_is_refused():
    part = {"machine": MACHINE, "figures": as_json(GROUPS[:1])}
    with pytest.raises(readme.FigureMissing):
        readme.section(part, None, None)


def test_what_stands_around_the_figures_stays():
    before = f"# Title\n{readme.BEGIN}\nold\n{readme.END}\nrest\n"
    assert readme.put_into(before, "new") == f"# Title\n{readme.BEGIN}\nnew\n{readme.END}\nrest\n"
    with pytest.raises(ValueError, match="lacks"):
        readme.put_into("# Title\n", "new")


@pytest.mark.skipif(not readme.BENCH.exists(), reason="the whole benchmark has kept no figures yet")
def test_the_readme_shows_the_figures_that_were_kept():
    text = readme.PAGE.read_text()
    section = readme.section(*map(readme.read, (readme.BENCH, readme.KILL, readme.SOAK)))
    assert readme.put_into(text, section) == text, "run python -m tests.bench --readme-again"
