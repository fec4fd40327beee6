"""
A guest's quotations (4 s each) and files (45 s) at a server that answers slowly were fetched inside the receiving loop:
whatever anybody else wrote waited for them.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from agent_core.messages import Audience
from channels.attachments import AttachmentStore
from channels.matrix.client.homeserver import Download, HttpAnswer, LinkBroken
from channels.matrix.receive.deferred_reading import FETCHING
from tests.doubles.accounts import scripted_channel
from tests.doubles.homeserver import ScriptedHomeserver, member, text
from tests.doubles.inbox import MemoryInbox, running

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

BOT, OWNER, GUEST = "@bot:hs.test", "@owner:hs.test", "@guest:hs.test"
MINE, THEIRS = "!mine:hs.test", "!theirs:hs.test"


class SlowHomeserver(ScriptedHomeserver):
    """Files of ``slow.test`` never come, those of others at once; what is quoted takes its time."""

    def __init__(self):
        super().__init__()
        self.asked_for = []
        self.quoted = 0
        self.hanging = ""
        """Requests with this in their path wait for another server."""

    async def request(self, method, path, body=None, *, timeout_s=30.0, **options):
        if self.hanging and self.hanging in path:
            await anyio.sleep(timeout_s)
            raise LinkBroken("the server did not answer in time", maybe_taken=True)
        if "/context/" in path:
            self.quoted += 1
            await anyio.sleep(timeout_s)
        return await super().request(method, path, body, timeout_s=timeout_s, **options)

    @asynccontextmanager
    async def download(self, path, *, query=None, anonymous=False):
        self.asked_for.append(path)
        if "slow.test" in path:
            await anyio.sleep_forever()

        async def content():
            yield b"what is in it"

        yield Download(HttpAnswer(200, {}), None, content())


class Setup:
    others = ()

    def __init__(self, folder):
        self.folder = folder
        self.server = SlowHomeserver()
        self.inbox = MemoryInbox()
        self.inbox.positions["next_batch"] = "s0"

    def store(self):
        return AttachmentStore(self.folder / "home")

    def channel(self, *, allow_from=None, is_owner=lambda _: False, **settings):
        allowed = {"allow_from": allow_from or [OWNER, GUEST, *self.others], "group_policy": "open"}
        return scripted_channel(
            self.server, self.folder, settings=allowed | settings, attachments=self.store(), is_owner=is_owner
        )

    def says(self, *events, room=THEIRS):
        timeline = {"events": list(events), "limited": False, "prev_batch": "p"}
        self.server.sync_body(rooms={"join": {room: {"timeline": timeline}}})

    @property
    def ids(self):
        return [one.native_id for one in self.inbox.accepted]


@pytest.fixture
def it(tmp_path):
    return Setup(tmp_path)


def file(event_id, sender=GUEST, server="slow.test"):
    return text(event_id, "a.txt", sender) | {
        "content": {"msgtype": "m.file", "body": "a.txt", "url": f"mxc://{server}/{event_id[1:]}"}
    }


def reply(event_id, to, sender=GUEST):
    return text(event_id, "and this?", sender, **{"m.relates_to": {"m.in_reply_to": {"event_id": to}}})


def taken_back(event_id, sender=GUEST):
    content = {"redacts": event_id}
    return {
        "type": "m.room.redaction", "event_id": "$redaction", "sender": sender, "content": content,
        "redacts": event_id,
    }  # fmt: skip


def edited(event_id, body, sender=GUEST):
    edit = {"m.new_content": {"msgtype": "m.text", "body": body}}
    return text(
        "$edit",
        f"* {body}",
        sender,
        **edit,
        **{"m.relates_to": {"rel_type": "m.replace", "event_id": event_id}},
    )


@pytest.mark.parametrize("what", [file, partial(reply, to="$old")], ids=["files", "quotations"])
async def test_others_are_heard_while_somebodys_server_is_waited_for(it, what):
    """In another room and in the same one; a minute later the guest's own are there, too, and in order."""
    it.says(*[what(f"${number}") for number in range(20)], text("$after", "well?", GUEST))
    it.says(text("$here", "hello", OWNER))
    it.says(text("$there", "hello", OWNER), room=MINE)
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(2, within_s=1.0)
        assert it.ids == ["$here", "$there"]
        assert it.inbox.positions["next_batch"] == "s3"
        await it.inbox.until_accepted(23, within_s=3600)

    assert it.ids[2:] == [*[f"${number}" for number in range(20)], "$after"]
    assert json.loads(it.inbox.positions[FETCHING]) == {}


async def test_a_file_of_a_good_server_does_not_wait_for_one_of_a_slow_one(it):
    """A second person's file comes at once, and is not given up early because another's server hangs."""
    it.says(file("$slow"))
    it.says(file("$good", OWNER, "good.test"))
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(1, within_s=1.0)

    [message] = it.inbox.accepted
    assert message.native_id == "$good"
    assert len(message.attachments) == 1


@pytest.mark.parametrize("what", [file, partial(reply, to="$old")], ids=["files", "quotations"])
async def test_what_waits_survives_the_end_of_the_run(it, what):
    """The room is read again from where it was left; what was accepted before is not accepted twice."""
    it.says(text("$first", "one", GUEST), what("$waits"), text("$after", "three", GUEST))
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s1")
        await anyio.sleep(1)
    assert it.ids == ["$first"]
    assert json.loads(it.inbox.positions[FETCHING]) == {THEIRS: "s0"}

    events = [text("$first", "one", GUEST), what("$waits"), text("$after", "three", GUEST)]
    it.server.on("GET", "/messages$", HttpAnswer(200, {"chunk": events}))
    timeline = {"events": [], "limited": False, "prev_batch": "p"}
    it.server.syncs.append(
        HttpAnswer(200, {"next_batch": "s2", "rooms": {"join": {THEIRS: {"timeline": timeline}}}})
    )
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(3, within_s=600)
        it.server.syncs.append(HttpAnswer(200, {"next_batch": "s3"}))
        await it.inbox.until(lambda inbox: json.loads(inbox.positions[FETCHING]) == {})

    assert it.ids == ["$first", "$waits", "$after"]
    assert [call.query["from"] for call in it.server.asked("GET", "/messages$")] == ["s0"]


async def test_what_is_taken_back_while_it_waits_is_not_answered(it):
    """The redaction does not wait in line; an edit does, and comes after its message."""
    it.says(file("$gone"), file("$kept"))
    it.says(taken_back("$gone"))
    it.says(edited("$kept", "b.txt"))
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(1, within_s=600)
        await it.inbox.until(lambda inbox: len(inbox.amendments) == 2)

    assert it.ids == ["$kept"]
    assert [(one.kind, one.native_id) for one in it.inbox.amendments] == [
        ("withdraw", "$gone"),
        ("replace", "$kept"),
    ]


async def test_a_room_that_is_left_keeps_nobody_waiting(it):
    """What waits in it is dropped, and not read again by the next run."""
    it.says(file("$waits"))
    it.server.sync_body(rooms={"leave": {THEIRS: {}}})
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions.get(FETCHING) == "{}", within_s=5)

    assert it.ids == []


async def test_who_says_too_much_meanwhile_gets_no_files(it):
    """Words are not held up by hundreds of files; nothing grows without end, and nothing is lost."""
    for start in range(0, 500, 50):
        it.says(*[file(f"${number}") for number in range(start, start + 50)])
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(500, within_s=60)

    assert it.ids == [f"${number}" for number in range(500)]
    assert "could not get it" in it.inbox.accepted[-1].text


async def test_one_person_uses_a_few_lanes_at_a_time(it):
    """In however many rooms they are."""
    for number in range(13):
        it.says(file(f"${number}"), room=f"!r{number}:hs.test")
    async with running(it.channel(), it.inbox):
        await it.inbox.until(lambda inbox: inbox.positions["next_batch"] == "s13")
        await anyio.sleep(1)
        assert len(it.server.asked_for) == 2
        await it.inbox.until_accepted(13, within_s=3600)


async def test_a_room_whose_members_our_server_has_to_wait_for(it):
    """It counts as none of two, is asked about once a minute, and holds up nobody for longer than a moment."""
    it.server.hanging = "theirs%3Ahs.test/members"
    directs = {"type": "m.direct", "content": {GUEST: [THEIRS]}}
    room = {
        "state": {"events": [member(BOT), member(GUEST)]},
        "summary": {"m.joined_member_count": 2, "m.invited_member_count": 0},
        "timeline": {"events": [text("$0", "hello", GUEST)], "limited": False, "prev_batch": "p"},
    }
    it.server.sync_body(account_data={"events": [directs]}, rooms={"join": {THEIRS: room}})
    for number in range(1, 6):
        it.says(text(f"${number}", "hello", GUEST))
    it.says(text("$mine", "hello", OWNER), room=MINE)
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(7, within_s=6.0)

    assert {one.audience for one in it.inbox.accepted} == {Audience.GROUP}


async def test_a_room_whose_past_is_at_a_server_that_hangs(it):
    """What was said between the invitation and the joining is read as far as it can be had in a moment."""
    it.server.hanging = "/messages"
    it.server.sync_body()
    joined = member(BOT, before="invite")
    it.says(joined, text("$guest", "hello", GUEST))
    it.says(text("$mine", "hello", OWNER), room=MINE)
    async with running(it.channel(), it.inbox):
        await it.inbox.until_accepted(2, within_s=12.0)

    assert it.ids == ["$guest", "$mine"]
