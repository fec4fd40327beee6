"""A command can nest folders in the workspace deeper than any path leads: what looks at all files goes on."""

from __future__ import annotations

import os

import pytest

from agent_core.children.removal import remove_folder
from gateway.operations.backup.contents import BackupPart, BackupSelection
from gateway.operations.privacy.person_erasure import files_naming
from gateway.system.home import open_home
from gateway.system.ownership import Host


@pytest.fixture(params=["d", "d" * 200], ids=["short names", "long names"])
def home(request, tmp_path):
    home = open_home(tmp_path / "h")
    work = home.root / "workspace" / "work"
    work.mkdir(parents=True)
    (work / "before").write_text("ann@example.org")
    (work / "z-behind").write_text("ann@example.org")
    here = os.open(work, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir(request.param, dir_fd=here)
        inner = os.open(request.param, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    yield home
    remove_folder(str(work))  # pytest cannot


def test_a_backup_has_the_rest_and_says_what_it_has_not(home):
    choice = BackupSelection(home.root, home.root / "workspace")
    names = [found.name for found in choice.files(BackupPart.LATE)]
    assert names == ["workspace/work/before", "workspace/work/z-behind"]
    assert len(choice.left_out) == 1
    assert choice.left_out[0].startswith("workspace/work/d")
    assert choice.left_out[0].endswith("(nested too deeply)")


def test_a_name_is_found_in_the_rest(home):
    """And where nobody can look is named, too."""
    found = list(files_naming(home.root, ["ann@example.org"]))
    assert found[:2] == ["workspace/work/before", "workspace/work/z-behind"]


def test_root_hands_over_the_rest(home):
    Host(home.root).hand_over()
