"""
A file counts as unchanged if the marks of its inode are. A program that writes through a mapped page leaves them as
they were: after its first write on any disk, and on tmpfs always. So a command that was made of a stranger's words put
them into a file of the owner's, and the output of the next command that read it counted as the owner's own.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_core.tools.files.command_basis import basis_of
from tests.unit.agent_core.tools.files.test_command_labels import EVIL, PAGE, Desk, is_anybodys, is_own

MEMORY = Path("/dev/shm")
TICK_S = 0.06


@pytest.fixture(params=["disk", "memory"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    if request.param == "disk":
        yield Desk(tmp_path / "home")
        return
    if not MEMORY.is_dir():
        pytest.skip("this machine has no tmpfs there")
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    yield Desk(folder / "home")
    shutil.rmtree(folder)


class Page:
    """What a command has mapped of a file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def touch(self) -> None:
        """Write what is there."""
        self._map[0] = self._map[0]

    def put(self, text: str) -> None:
        self._map[: len(text)] = text.encode()


def note(desk: Desk) -> Path:
    desk.put("note.txt", "the milk is sour today")
    desk.run("cat ../note.txt")  # it is looked at once more when it is old enough to be remembered
    time.sleep(TICK_S)
    assert is_own(desk.run("cat ../note.txt")[1])
    return desk.ws / "note.txt"


def read_twice(desk: Desk) -> None:
    """Whoever reads the file gets the words with their origin, also from what the first look has remembered."""
    time.sleep(TICK_S)
    for _ in range(2):
        said, origins = desk.run("cat ../note.txt")
        assert EVIL in said
        assert is_anybodys(origins)


def test_a_command_alone(desk: Desk) -> None:
    page = Page(note(desk))
    desk.files.begin(PAGE)
    page.touch()
    page.put(EVIL)
    desk.files.end()
    read_twice(desk)


def test_beside_another_command(desk: Desk) -> None:
    """That one looks at the file between two writes."""
    page = Page(note(desk))
    desk.files.begin(PAGE)
    page.touch()
    time.sleep(TICK_S)
    assert is_anybodys(desk.run("true")[1])
    page.put(EVIL)
    desk.files.end()
    read_twice(desk)


def test_between_the_end_of_another_and_its_own(desk: Desk) -> None:
    """What was there when the other one ended has its words; what comes later has those of both."""
    path = note(desk)
    desk.files.begin(())
    desk.files.begin(())
    page = Page(path)
    page.touch()
    time.sleep(TICK_S)
    assert is_own(desk.files.end())
    desk.files.note_other_writer(PAGE)
    page.put(EVIL)
    desk.files.end()
    read_twice(desk)


def test_a_yes_is_for_what_stood_there(desk: Desk) -> None:
    """Also if a command has touched the page before the question; the control is a look in between."""
    page = Page(note(desk))
    desk.files.begin(())
    page.touch()
    time.sleep(TICK_S)
    asked = basis_of(desk.files, "sh ../note.txt")
    assert basis_of(desk.files, "sh ../note.txt") == asked
    page.put(EVIL)
    assert basis_of(desk.files, "sh ../note.txt").state != asked.state
    desk.files.end()
    assert basis_of(desk.files, "sh ../note.txt").state != asked.state


def test_what_is_not_touched_stays_the_owners(desk: Desk) -> None:
    """The control: the same page, read alone."""
    page = Page(note(desk))
    desk.files.begin(PAGE)
    assert page is not None
    desk.files.end()
    assert is_own(desk.run("cat ../note.txt")[1])
