"""Each test runs in `make test` or in `make test-slow`: no file is left unread that has one for the run."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests import conftest

CONFIG = {name: SimpleNamespace(option=SimpleNamespace(markexpr=name)) for name in ("", "slow", "not slow")}
PLAIN, MARKED, SMOKE = "def test(): ...", "pytestmark = pytest.mark.{}", "@pytest.mark.smoke"


class Item:
    def __init__(self, path, *marks):
        self.path, self.marks = path, list(marks)

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, name):
        self.marks.append(name)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a file, in the folder of what is slow or in another one."""
    for name in ("SLOW", "WAITING"):
        monkeypatch.setattr(conftest, name, (tmp_path / "slow",))

    def write(text, *, slow=False):
        path = tmp_path / ("slow" if slow else "quick") / f"test_{abs(hash(text))}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def is_left(path, run):
    return conftest.pytest_ignore_collect(path, CONFIG[run])


@pytest.mark.parametrize("mark", ["slow", "integration", "kill"])
def test_a_file_is_read_where_it_has_something(file, mark):
    """By its folder, or by the marks that it names; a run of everything reads everything."""
    plain, marked = file(PLAIN), file(MARKED.format(mark))
    real, smoke = file(PLAIN, slow=True), file(SMOKE, slow=True)
    assert [is_left(path, "slow") for path in (plain, marked, real, smoke)] == [True, None, None, None]
    assert [is_left(path, "not slow") for path in (plain, marked, real, smoke)] == [None, None, True, None]
    assert [is_left(path, "") for path in (plain, marked, real, smoke)] == [None] * 4


@pytest.mark.parametrize(("slow_folder", "mark"), [(False, "kill"), (False, "slow"), (True, "smoke")])
def test_a_mark_that_comes_from_elsewhere_is_noticed(file, slow_folder, mark):
    """Such a file would be left unread by one of the two runs, and nobody would hear of it."""
    with pytest.raises(pytest.UsageError, match="mark from elsewhere"):
        conftest.pytest_collection_modifyitems([Item(file(PLAIN, slow=slow_folder), mark)])


def test_what_waits_begins_first(file):
    """And what is real is slow, but for the one of its kind."""
    quick, real = Item(file(PLAIN)), Item(file(PLAIN, slow=True))
    smoke, marked = Item(file(SMOKE, slow=True), "smoke"), Item(file(MARKED.format("kill")), "kill")
    items = [quick, real, smoke, marked]
    conftest.pytest_collection_modifyitems(items)
    assert items == [real, smoke, quick, marked]
    assert [item for item in items if "slow" in item.marks] == [real, marked]


@pytest.mark.parametrize(("until", "begins"), [("0", False), ("9" * 12, True), (None, True)])
def test_nothing_begins_when_there_is_no_time_left(monkeypatch, until, begins):
    """The controls have time, or no limit."""
    monkeypatch.delenv("TESTS_UNTIL", raising=False)
    if until is not None:
        monkeypatch.setenv("TESTS_UNTIL", until)
    with nullcontext() if begins else pytest.raises(pytest.skip.Exception, match=conftest.NO_TIME):
        conftest.pytest_runtest_setup()


def test_what_did_not_begin_is_counted_aloud():
    """What was skipped for another reason is not."""
    said = []
    skipped = [
        SimpleNamespace(longrepr=("file", 1, why)) for why in (conftest.NO_TIME, "no root", conftest.NO_TIME)
    ]
    conftest.pytest_terminal_summary(SimpleNamespace(getreports=lambda _: skipped, write_line=said.append))
    assert said == [f"2 tests did not run: {conftest.NO_TIME}"]
