"""What a command has for itself goes with it, however it was filled, also what a crash has left."""

from __future__ import annotations

import os
import platform
import shutil

import pytest

from agent_core.children.order import landlock_version
from agent_core.children.removal import remove_folder

from .conftest import proved, sandbox_in
from .test_limits import python

DEEP = 1200
NESTED = f"""
import os
os.chdir(os.environ["TMPDIR"])
for _ in range({DEEP}):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("last", "w").close()
print("made")
"""


def nested(folder, depth=DEEP):
    """Folders in each other, with longer names together than any path may have."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 200, dir_fd=here)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("last", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_folders_in_each_other_beyond_every_path(tmp_path):
    """The control leaves them, or fails."""
    for name in ("control", "removed"):
        (tmp_path / name).mkdir()
        nested(tmp_path / name)
    try:
        shutil.rmtree(tmp_path / "control", ignore_errors=True)
    except RecursionError:
        pass
    assert (tmp_path / "control").exists()
    for name in ("control", "removed"):
        remove_folder(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_nothing_that_a_link_leads_to_is_touched(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "to-a-folder").symlink_to(kept)
    (folder / "to-a-file").symlink_to(kept / "file")
    (tmp_path / "itself").symlink_to(kept)
    (folder / "a" / "b").chmod(0)
    (folder / "a").chmod(0)
    remove_folder(str(folder))
    remove_folder(str(tmp_path / "itself"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["itself", "kept"]
    assert (kept / "file").read_text() == "x"


@pytest.mark.skipif(
    landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
    reason="this kernel has no Landlock, or the machine is not known",
)
async def test_a_command_leaves_no_such_folder_and_one_that_is_left_stops_no_trial(home):
    sandbox = await proved(sandbox_in(home))
    outcome = await sandbox.run(python(NESTED), seconds=60)
    assert outcome.head == b"made\n", outcome
    commands = home / "run" / "commands"
    assert list(commands.iterdir()) == []
    (commands / "left").mkdir()
    nested(commands / "left")
    assert (await sandbox.prove()).held
    assert list(commands.iterdir()) == []
