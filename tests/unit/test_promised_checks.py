"""`tests/data/promised_checks.txt`: each promise has its tests, and each test that is named exists."""

from __future__ import annotations

import ast
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "data" / "promised_checks.txt").read_text()
NUMBERS = {
    "matrix": {"M": range(34)},
    "email": {"E": range(1, 26)},
    "proactive": {
        "H": range(1, 17),
        "C": range(1, 10),
        "M": range(1, 2),
        "B": range(1, 4),
        "S": range(1, 2),
        "R": range(1, 2),
    },
}
"""Which promises there are; none may get lost."""


@cache
def known_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    found = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return frozenset(name for name in found if name.startswith("test_"))


def promises(table: str) -> dict[str, dict[str, list[list[str]]]]:
    """By section and number the files, each with the names of its tests."""
    number = ""
    sections: dict[str, dict[str, list[list[str]]]] = {}
    for line in table.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line.startswith("    "):
            section[number].append(line.split())
        elif line and not line.startswith("#"):
            number = line.split()[0]
            assert section.setdefault(number, []) == []
    return sections


def missing(named: list[list[str]]) -> list[str]:
    """The tests that do not exist; a file alone must have one, and a promise without a file misses all."""
    if not named:
        return ["no test"]
    return [
        f"{file} {name}"
        for file, *names in named
        for name in names or ["test_"]
        if name not in known_in(file) and (names or not known_in(file))
    ]


@pytest.mark.parametrize("section", NUMBERS)
def test_each_promise_has_its_tests(section: str) -> None:
    """Nothing stands in the table that is not there."""
    rows = promises(TABLE)[section]
    numbers = {letter: [int(row[1:]) for row in own] for letter, own in groupby(rows, lambda row: row[0])}
    assert numbers == {letter: list(all_) for letter, all_ in NUMBERS[section].items()}
    assert {number: names for number, named in rows.items() if (names := missing(named))} == {}


def test_what_is_missing_is_noticed() -> None:
    """The control: a test that is gone, and a promise without any."""
    found = promises("[x]\nA1  one\n    unit/test_promised_checks.py test_gone\nA2  two\n")["x"]
    assert missing(found["A1"]) == ["unit/test_promised_checks.py test_gone"]
    assert missing(found["A2"]) == ["no test"]
