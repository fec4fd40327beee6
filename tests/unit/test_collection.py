"""Each test runs in `make test` or in `make test-slow`: no file is left unread that has one for the run."""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.kill import conftest as kill_conftest
from tests.rows import rows

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
    monkeypatch.delenv("TESTS_UNTIL", raising=False)
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
    plain, one = file(PLAIN), file(f"@pytest.mark.{mark}\n{PLAIN}")
    whole, but_one = file(MARKED.format(mark)), file(f"{MARKED.format(mark)}\n{SMOKE}")
    real, smoke = file(PLAIN, slow=True), file(SMOKE, slow=True)
    paths = (plain, one, whole, but_one, real, smoke)
    assert [is_left(path, "slow") for path in paths] == [True, None, None, None, None, None]
    assert [is_left(path, "not slow") for path in paths] == [None, None, True, None, True, None]
    assert [is_left(path, "") for path in paths] == [None] * 6


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


def test_a_run_that_must_end_begins_with_what_was_changed_last(tmp_path, monkeypatch):
    """Then comes what the day before began later; in as many days as there are, every file is among the first."""
    paths = [tmp_path / "tests" / f"test_{number}.py" for number in range(10)]
    paths[0].parent.mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.test"]
    subprocess.run([*git, "init", "-q"], check=True)
    for path in (paths[3], paths[7]):
        path.write_text(PLAIN)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "Add a test"], check=True)
    monkeypatch.setattr(conftest, "HERE", tmp_path / "tests")
    orders = []
    for day in range(conftest.DAYS + 1):
        turns = conftest._turns(set(paths), day=day)
        orders.append(sorted(paths, key=turns.__getitem__))
    assert [order[:2] for order in orders] == [[paths[7], paths[3]]] * len(orders)
    assert {path for order in orders for path in order[2:4]} == {*paths} - {paths[3], paths[7]}
    assert orders[-1] == orders[0] != orders[1]


def cases_of(test, **swept):
    for places in product(*(range(len(values)) for values in swept.values())):
        indices = dict(zip(swept, places, strict=True))
        params = {name: swept[name][place] for name, place in indices.items()}
        nodeid = f"{test}[{'-'.join(map(str, params.values()))}]"
        call = SimpleNamespace(indices=indices, params=params)
        yield SimpleNamespace(nodeid=nodeid, path=kill_conftest.HERE / "test_a.py", callspec=call)


def test_of_a_sweep_of_kills_each_state_is_left_once():
    """A moment before a call stays where there is none after it; controls stay whole."""
    moments = ["a.before", "a.after", "b.before", "taken"]
    sweep = list(cases_of("sweep", moment=moments, number=[1, 2]))
    control = list(cases_of("control", moment=moments, control=["forgets"]))
    left_out = kill_conftest._beyond_sample([*sweep, *control])
    kept = [case.nodeid for case in sweep if case.nodeid not in left_out]
    assert kept == ["sweep[a.after-1]", "sweep[b.before-2]", "sweep[taken-1]"]
    assert left_out < {case.nodeid for case in sweep}


def test_rows_in_one_test_are_all_tried_and_those_that_fail_are_named():
    """The control has none that fails. Tables stand above each other as those of pytest do."""
    seen = []

    @rows("more", [0, pytest.param(10, id="ten")])
    @rows(("one", "two"), [(1, 1), (1, 2), (2, 3)])
    def table(one, two, more):
        seen.append((one, two, more))
        assert one + more >= two
        if (one, more) == (2, 10):
            pytest.fail("no")

    with pytest.raises(BaseExceptionGroup) as failed:
        table()
    assert len(seen) == 6
    notes = [
        (error.__notes__, [inner.__notes__ for inner in error.exceptions])
        for error in failed.value.exceptions
    ]
    row = "in the row {'one': %d, 'two': %d}"
    assert notes == [
        (["in the row {'more': 0}"], [[row % (1, 2)], [row % (2, 3)]]),
        (["in the row {'more': 10}"], [[row % (2, 3)]]),
    ]
    rows("one", [1, 2])(lambda one: None)()
    with pytest.raises(BaseExceptionGroup, match="1 of 2 rows"):
        rows("one", [1, 2])(lambda one: one == 1 or pytest.skip("not here"))()
