"""A run of the kill tests that was broken off goes on where it was, and a damaged line costs one test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kill.tally import Ledger, Run

RUN = Run(commit="abc", seed=7, kills=20)


def test_what_has_passed_is_read_again(tmp_path):
    ledger = Ledger.begin(tmp_path / "run", RUN)
    ledger.note("a::b", {"of the queue alone": 3})
    ledger.note("a::c", {"of the queue alone": 2, "of mails": 1})
    again = Ledger.read(tmp_path / "run")
    assert again is not None
    assert (again.run, set(again.passed)) == (RUN, {"a::b", "a::c"})
    assert again.hits == {"of the queue alone": 5, "of mails": 1}


def test_a_line_that_was_cut_off_costs_one_test(tmp_path):
    path = tmp_path / "run"
    ledger = Ledger.begin(path, RUN)
    ledger.note("a::b", {"of the queue alone": 3})
    path.write_bytes(path.read_bytes()[:-5])
    ledger.note("a::c", {"of mails": 1})
    again = Ledger.read(path)
    assert again is not None
    assert set(again.passed) == {"a::c"}


def test_no_file_and_no_header_are_no_run(tmp_path):
    (tmp_path / "damaged").write_text('{"commit": ')
    assert Ledger.read(tmp_path / "missing") is None
    assert Ledger.read(tmp_path / "damaged") is None


def test_pytest_runs_only_what_is_left(tmp_path):
    """The plugin of the kill tests: a failed test stays, a passed one with its SIGKILLs does not run again."""
    folder = tmp_path / "of-a-run"
    folder.mkdir()
    (folder / "conftest.py").write_text("from tests.kill.conftest import *  # noqa: F403\n")
    (folder / "test_some.py").write_text(
        "from pathlib import Path\n"
        "from tests.kill.tally import TALLY\n"
        "def test_good():\n    TALLY['of somebody'] += 2\n"
        "def test_bad():\n    TALLY['of somebody'] += 5\n    assert Path('mended').exists()\n"
    )
    path = tmp_path / "run"
    Ledger.begin(path, RUN)

    def run() -> str:
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                str(folder),
            ],
            cwd=tmp_path,
            env={
                "PYTHONPATH": f"{root}:{root / 'deploy'}",
                "SQUIDBOT_KILL_LEDGER": str(path),
                "PATH": "/usr/bin:/bin",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            },
            stdout=subprocess.PIPE,
            check=False,
        )
        return done.stdout.decode()

    first = run()
    assert "1 failed, 1 passed" in first
    ledger = Ledger.read(path)
    assert ledger is not None
    assert list(ledger.passed.values()) == [{"of somebody": 2}]
    (tmp_path / "mended").touch()
    assert "1 passed, 1 deselected" in run()
    ledger = Ledger.read(path)
    assert ledger is not None
    assert ledger.hits == {"of somebody": 7}
