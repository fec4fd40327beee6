"""Root in the home of somebody else: what it leaves behind is not its own, and no link leads it away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.errors import StateUnusable
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home

SOMEBODY = 12345

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else's guest")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Somebody's home, in which a daemon has been."""
    home = open_home(tmp_path / "h")
    home.database.write_text("")
    for path in (home.root, *home.root.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY)
    return home


def owners(home: Home) -> set[int]:
    return {path.lstat().st_uid for path in (home.root, *home.root.rglob("*"))}


def leave_something(home: Home) -> None:
    (home.root / "sessions" / "new").mkdir()
    (home.root / "sessions" / "new" / "file").write_text("x")
    home.database.unlink()
    home.database.write_text("y")


def test_what_root_leaves_is_handed_over(home: Home) -> None:
    """New files, new folders and those that took the place of others, also when the command fails."""
    with pytest.raises(ZeroDivisionError), hold_home(home, purpose="command"):
        leave_something(home)
        assert owners(home) == {0, SOMEBODY}  # the control
        1 / 0  # noqa: B018 - any failure
    assert owners(home) == {SOMEBODY}


def test_root_s_own_home_stays_its_own(tmp_path: Path) -> None:
    """Nothing is given away there."""
    home = open_home(tmp_path / "h")
    with hold_home(home, purpose="command"):
        (home.root / "sessions" / "file").write_text("x")
    assert owners(home) == {0}


@pytest.mark.parametrize("kind", ["link to a folder", "link to a file", "second name of a file"])
def test_root_follows_no_link(home: Home, tmp_path: Path, kind: str) -> None:
    """What leads out of the home is named, before anything is written, and is not handed over."""
    target = tmp_path / "target"
    trap = home.root / "sessions" / "trap"
    if kind == "link to a folder":
        target.mkdir()
        trap.symlink_to(target)
    else:
        target.write_text("root's")
        trap.symlink_to(target) if kind == "link to a file" else trap.hardlink_to(target)
    with pytest.raises(StateUnusable, match="trap is a link"), hold_home(home, purpose="command"):
        pytest.fail("nothing may be done")
    assert target.stat().st_uid == 0


def test_links_in_the_workspace_are_its_owner_s_affair(home: Home, tmp_path: Path) -> None:
    """People put links there; they stay, and what they lead to is not touched."""
    (tmp_path / "notes").write_text("n")
    (home.root / "workspace" / "notes").symlink_to(tmp_path / "notes")
    with hold_home(home, purpose="command"):
        pass
    assert (tmp_path / "notes").stat().st_uid == 0


def test_a_person_s_home_is_for_that_person(home: Home) -> None:
    """There is a user who can run the command, so root is sent to that user, guest or not."""
    for as_guest in (False, True):
        with pytest.raises(StateUnusable, match="sudo -u #12345"):
            open_home(home.root, as_guest=as_guest)
