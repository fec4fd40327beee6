"""``squidbot import`` killed before and after each of its writes: the same command brings it to its end."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from agent_core.storage.history_file import HistoryFile
from agent_core.storage.memory_files import DocumentFile
from agent_core.tools.files.change_journal import ChangeJournal
from agent_core.tools.files.journaled_files import JournaledFiles
from gateway.operations.migration import import_operation
from gateway.operations.migration.import_sources import ForeignHome
from gateway.store.sql.job_store import JobStore
from tests import foreign_homes
from tests.kill.tally import TALLY, die_at_call
from tests.unit.gateway.operations.test_import import NewHome

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

WRITES: list[tuple[Any, str, int]] = [
    (JournaledFiles, "replace", 4),
    (ChangeJournal, "begin", 4),
    (ChangeJournal, "record_completion", 4),
    (DocumentFile, "save", 2),
    (JobStore, "add_job", 4),
    (HistoryFile, "append", 5),
]
"""What writes, and how often one import calls it."""
MOMENTS = [
    (owner, name, count, before)
    for owner, name, calls in WRITES
    for count in range(1, calls + 1)
    for before in (True, False)
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str, Any]:
    """An empty home, the other assistant's, the code, and what there is after an import in one piece."""
    root = tmp_path_factory.mktemp("import")
    old, empty = foreign_homes.openclaw(root / "old"), NewHome(root / "empty")
    shutil.copytree(root / "empty", root / "whole")
    whole = NewHome.at(root / "whole")
    code = whole.bring("openclaw", old)["code"]
    whole.bring("openclaw", old, code)
    return empty.home.root, old, code, whole.all("openclaw")


def life(home: NewHome, old: Path, code: str, moment: tuple[Any, str, int, bool] | None) -> int:
    """Import in a process of its own; return the signal that ended it, 0 for none."""
    pid = os.fork()
    if pid == 0:
        try:
            import_operation._PAGE = 1
            if moment is not None:
                owner, name, count, before = moment
                die_at_call(owner, name, count, before=before)
            home.bring("openclaw", old, code)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@pytest.mark.parametrize(
    "moment", MOMENTS, ids=lambda one: f"{one[1]}-{one[2]}-{'before' if one[3] else 'after'}"
)
def test_an_import_that_was_killed_goes_on(
    world: tuple[Path, Path, str, Any], tmp_path: Path, moment: tuple[Any, str, int, bool]
) -> None:
    empty, old, code, whole = world
    shutil.copytree(empty, tmp_path / "home")
    home = NewHome.at(tmp_path / "home")
    assert life(home, old, code, moment) == signal.SIGKILL
    TALLY["during an import"] += 1
    assert life(home, old, code, None) == 0
    assert home.all("openclaw") == whole


def test_the_control_notices_what_comes_twice(
    world: tuple[Path, Path, str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With names that are not made of what is said, a repeated import doubles the history."""
    empty, old, code, whole = world
    shutil.copytree(empty, tmp_path / "home")
    home = NewHome.at(tmp_path / "home")
    real = ForeignHome._made

    def made(self: ForeignHome, role: Any, text: str, at: Any) -> Any:
        return real(self, role, text, at).model_copy(update={"id": os.urandom(8).hex()})

    monkeypatch.setattr(ForeignHome, "_made", made)
    assert life(home, old, code, (HistoryFile, "append", 5, False)) == signal.SIGKILL
    assert life(home, old, code, None) == 0
    assert home.all("openclaw") != whole
