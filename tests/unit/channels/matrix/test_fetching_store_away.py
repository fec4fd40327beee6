"""Matrix while the place of files is away, on virtual time: who needs no file does not notice."""

from __future__ import annotations

import json

import anyio
import pytest

from channels.matrix.client.homeserver import HttpAnswer
from channels.matrix.receive.deferred_reading import FETCHING
from tests.doubles.away_folder import AwayFolder, store_over
from tests.doubles.homeserver import text
from tests.doubles.inbox import running
from tests.incidents.test_slow_server_of_another import (
    GUEST,
    OWNER,
    THEIRS,
    Setup,
    edited,
    file,
    taken_back,
)

pytestmark = pytest.mark.virtual_time


class Away(Setup):
    def __init__(self, folder):
        super().__init__(folder)
        self.storage = AwayFolder(folder / "shared")
        self.storage.is_unreachable = True

    def store(self):
        return store_over(self.storage, self.folder / "home")


@pytest.fixture
def it(tmp_path):
    return Away(tmp_path)


def good(event_id, sender=GUEST):
    """A file that the homeserver hands over at once."""
    return file(event_id, sender, "good.test")


async def test_files_wait_and_nothing_else_does(it):
    """In many rooms at once, more than there are places; each comes afterwards, in the order of its room."""
    rooms = [f"!r{number}:hs.test" for number in range(40)]
    for number, room in enumerate(rooms):
        it.says(good(f"$file{number}"), text(f"$then{number}", "look", GUEST), room=room)
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s40")
        await anyio.sleep(90)
        assert it.ids == []
        it.says(text("$mine", "hello", OWNER))
        await it.inbox.until_accepted(1, within_s=60)
        fetched = len(it.server.asked_for)
        it.storage.is_unreachable = False
        await it.inbox.until_accepted(81, within_s=120)

    assert it.ids[0] == "$mine"
    for number in range(40):
        assert it.ids.index(f"$file{number}") < it.ids.index(f"$then{number}")
    assert sum(len(one.attachments) for one in it.inbox.accepted) == 40
    assert fetched <= 40, "while it is known as away nothing is fetched in vain"
    assert json.loads(it.inbox.positions[FETCHING]) == {}


@pytest.mark.parametrize("more", [198, 200])
async def test_who_says_too_much_meanwhile_gets_no_files(it, more):
    """What waits is bounded; up to there (the control) it goes on waiting."""
    it.says(good("$file"), text("$0", "look", GUEST))
    for start in range(1, more, 40):
        it.says(*[text(f"${number}", "and", GUEST) for number in range(start, min(start + 40, more))])
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s6")
        await anyio.sleep(60)
        if more == 198:
            assert it.ids == []
            it.storage.is_unreachable = False
        await it.inbox.until_accepted(more + 1, within_s=120)

    assert it.ids == ["$file", *(f"${number}" for number in range(more))]
    assert len(it.inbox.accepted[0].attachments) == (more == 198)
    assert ("could not get it" in it.inbox.accepted[0].text) == (more == 200)


async def test_what_waits_can_be_taken_back_changed_and_left(it):
    """A redaction is heard at once; an edit comes after its message; a room that is left is over."""
    it.says(good("$gone"), good("$kept"))
    it.says(good("$left"), room="!left:hs.test")
    it.says(taken_back("$gone"))
    it.says(edited("$kept", "b.txt"))
    it.server.sync_body(rooms={"leave": {"!left:hs.test": {}}})
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s5")
        await anyio.sleep(60)
        assert [one.kind for one in it.inbox.amendments] == ["withdraw", "leave"]
        assert list(json.loads(it.inbox.positions[FETCHING])) == [THEIRS]
        it.storage.is_unreachable = False
        await it.inbox.until(lambda inbox: len(inbox.amendments) == 3, within_s=120)

    assert it.ids == ["$kept"]


async def test_what_waits_survives_the_end_of_the_run(it):
    """The next run reads the room again, also if the place is away then; each comes once, in order."""
    said = [text("$first", "one", GUEST), good("$waits"), text("$after", "three", GUEST)]
    it.says(*said)
    for _ in range(2):
        async with running(it.channel(), it.inbox):
            await it.inbox.until_accepted(1)
            await anyio.sleep(60)
        assert it.ids == ["$first"]
        assert json.loads(it.inbox.positions[FETCHING]) == {THEIRS: "s0"}
        it.server.on("GET", "/messages$", HttpAnswer(200, {"chunk": said}))
        timeline = {"events": [], "limited": False, "prev_batch": "p"}
        it.server.sync_body(rooms={"join": {THEIRS: {"timeline": timeline}}})
    it.storage.is_unreachable = False
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(3, within_s=600)

    assert it.ids == ["$first", "$waits", "$after"]
    assert len(it.inbox.accepted[1].attachments) == 1
