"""Everything that was written can be listed and undone, for as long as it is kept."""

from __future__ import annotations

import random

import pytest

from agent_core.errors import ToolError
from agent_core.provenance import untrusted_origin
from agent_core.tools.files.journaled_files import ChangeAuthor
from tests.file_tools_world import FileDesk

ME = ChangeAuthor(session="squidbot files undo")


@pytest.fixture
def desk(tmp_path):
    return FileDesk(tmp_path / "home")


def _files(desk):
    return {
        str(path.relative_to(desk.ws)): path.read_bytes() for path in desk.ws.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("seed", range(5))
async def test_everything_is_undone_back_to_the_beginning_and_forth_again(desk, seed):
    """Forty changes of every kind, over restarts: each is listed, and undoing all brings every state back."""
    chance = random.Random(seed)
    (desk.ws / "found.txt").write_text("was here")
    states = [_files(desk)]
    while len(states) < 40:
        names = list(_files(desk)) or ["a"]
        name, other = chance.choice(names), chance.choice(["a", "b/c", "d", "b/e"])
        match chance.randrange(4):
            case 0:
                if (desk.ws / other).exists():
                    await desk("read_file", path=other)
                result = await desk("write_file", path=other, content=str(chance.random()))
            case 1:
                text = (desk.ws / name).read_text() if (desk.ws / name).exists() else ""
                result = await desk("edit_file", path=name, old=text[:4], new=chance.choice("xyz"))
            case 2:
                result = await desk("move_file", path=name, to=other)
            case _:
                result = await desk("delete_file", path=name)
        if not result.is_error:
            states.append(_files(desk))
            if chance.random() < 0.2:
                desk.restart()
    changes = desk.journaled.journal.changes()
    assert len(changes) == len(states) - 1
    assert all(change.made and change.turn == "turn1" and change.session for change in changes)

    undone = []
    for change, before in zip(changes, states[-2::-1], strict=True):
        undone.append(desk.journaled.undo(change.id, by=ME).id)
        assert _files(desk) == before
    for number, after in zip(reversed(undone), states[1:], strict=True):
        desk.journaled.undo(number, by=ME)  # an undo is a change like any other
        assert _files(desk) == after


async def test_what_was_changed_since_is_undone_only_by_force(desk):
    """By hand, by another call, deleted, moved away: refused and left; forced, and that is kept as well."""
    await desk.ok("write_file", path="a", content="one")
    await desk.ok("write_file", path="a", content="two")
    (desk.ws / "a").write_text("by hand")

    with pytest.raises(ToolError, match=r"changed, moved or deleted since.*--force"):
        desk.journaled.undo(2, by=ME)
    assert (desk.ws / "a").read_text() == "by hand"

    forced = desk.journaled.undo(2, by=ME, force=True)
    assert (desk.ws / "a").read_text() == "one"
    desk.journaled.undo(forced.id, by=ME)
    assert (desk.ws / "a").read_text() == "by hand"
    (desk.ws / "a").unlink()
    with pytest.raises(ToolError, match="--force"):
        desk.journaled.undo(1, by=ME)


async def test_an_undo_brings_back_mode_and_origins(desk):
    """What comes back is whose it was, and as private as it was."""
    (desk.ws / "a").write_text("theirs")
    (desk.ws / "a").chmod(0o640)
    await desk.ok("delete_file", path="a")

    desk.journaled.undo(1, by=ME)

    assert (desk.ws / "a").stat().st_mode & 0o777 == 0o640
    assert (await desk.ok("read_file", path="a")).origins == (untrusted_origin("file", "a"),)


async def test_what_does_not_exist_is_said(desk):
    """No such change; a version that is not kept any more."""
    with pytest.raises(LookupError, match="no change 7"):
        desk.journaled.undo(7, by=ME)
    await desk.ok("write_file", path="a", content="one")
    await desk.ok("write_file", path="a", content="two")
    for version in (desk.home / "state" / "files" / "versions").glob("*"):
        version.unlink()
    with pytest.raises(LookupError, match="not kept any more"):
        desk.journaled.undo(2, by=ME)


async def test_old_versions_go_and_what_files_are_made_of_stays_known(desk):
    """After the days, change and version are gone; of a file that is still so, its origins are known."""
    mail = untrusted_origin("mail", "mallory@example.org")
    desk.origins = lambda: (mail,)
    await desk.ok("write_file", path="kept", content="tainted")
    desk.origins = lambda: ()
    await desk.ok("write_file", path="a", content="one")
    await desk.ok("write_file", path="a", content="two")
    desk.day = 29
    await desk.ok("write_file", path="a", content="three")
    desk.day = 31
    desk.restart()

    assert [change.id for change in desk.journaled.journal.changes()] == [4, 1]
    assert len(list((desk.home / "state" / "files" / "versions").glob("*"))) == 1
    assert (await desk.ok("read_file", path="kept")).origins == (mail,)
    desk.journaled.undo(4, by=ME)
    assert (desk.ws / "a").read_text() == "two"


async def test_too_much_is_forgotten_oldest_first(tmp_path):
    """The bound of all versions together holds; the newest can be undone."""
    desk = FileDesk(tmp_path / "home", max_bytes=2500)
    for number in range(6):
        await desk.ok("write_file", path="a", content=str(number) * 1000)
    desk.restart(max_bytes=2500)
    desk.journaled.journal.changes()

    assert len(list((desk.home / "state" / "files" / "versions").glob("*"))) == 2
    desk.journaled.undo(6, by=ME)
    with pytest.raises(LookupError):
        desk.journaled.undo(2, by=ME, force=True)


async def test_a_torn_or_damaged_line_costs_only_itself(desk):
    """A line that a power cut tore, and garbage, are passed over; what follows is read and written."""
    await desk.ok("write_file", path="a", content="one")
    journal = desk.home / "state" / "files" / "changes.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"id": 9, "broken": true}\n[]\n\xff\n{"id": 10, "pa')
    desk.restart()

    await desk.ok("read_file", path="a")
    await desk.ok("write_file", path="a", content="two")
    desk.restart()
    assert [(change.id, change.made) for change in desk.journaled.journal.changes()] == [(2, True), (1, True)]


async def test_the_history_is_for_this_user_only(desk):
    """Folders 0700, files 0600."""
    await desk.ok("write_file", path="a", content="one")
    await desk.ok("write_file", path="a", content="two")
    for path in (desk.home / "state" / "files").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0
