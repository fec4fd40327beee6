"""Files through a whole gateway: in with a message, named to the model, read by it, and out with the answer."""

from __future__ import annotations

import errno
import json
from datetime import UTC, datetime, timedelta
from functools import partial

import anyio
import pytest

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.session_files import named_in_files
from channels.attachments import AttachmentStore
from channels.base import Capabilities
from gateway.routing.attachment_retention import ORPHAN_AFTER_S, AttachmentSweeper
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import NewOutbound, Pending, StoreUnavailable
from gateway.system.clock import SystemClock
from tests.clock import EPOCH, ManualClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.inbound import inbound
from tests.integration.gateway_world import world
from tests.pictures import png

OWNER, OTHER = "@ann:hs.test", "@bob:hs.test"
SETTINGS = {
    "owner": {"aliases": [OWNER]},
    "llm": {"models": {"demo": {"model": "demo/demo", "vision": True}}, "pools": {"main": ["demo"]}},
}


def said(text, *attachments, sender=OWNER, number=0):
    return inbound(
        SessionKey("matrix", f"dm-{sender}"),
        sender,
        text,
        f"{sender}-{number}",
        received_at=datetime.now(UTC),
        attachments=attachments,
    )


async def answered(one, message):
    """Hand a message over and wait for what comes back."""
    place = message.session.conversation
    before = len(one.server.seen(place))
    await one.hand_over(message)
    return (await one.server.answers(before + 1, conversation=place, within_s=60))[-1]


@pytest.fixture
def store(tmp_path):
    return AttachmentStore(tmp_path / "home")


@pytest.fixture
def home(tmp_path):
    workspace = tmp_path / "home/workspace"
    workspace.mkdir(parents=True, mode=0o700)
    (workspace / "plan.txt").write_text("the plan")
    return tmp_path / "home"


async def test_a_file_is_named_shown_read_and_remembered(home, store):
    """The model is told of each file, sees pictures, reads texts, also in a later turn; the history names them."""
    notes = await store.save("notes.md", "text/markdown", b"buy milk")
    cat = await store.save("cat.png", "image/png", png())
    async with world(home, name="matrix", settings=SETTINGS) as one:
        first = await answered(one, said("", notes, cat, number=1))
        assert (
            f'- "notes.md", text/markdown, 8 bytes\n- "cat.png", image/png, {cat.size_bytes} bytes'
            in first.text
        )
        assert "Pictures that I was shown: 1." in first.text
        second = await answered(one, said("!readfile " + notes.id, number=2))
        assert "buy milk" in second.text
        stranger = await answered(one, said("!readfile " + notes.id, sender=OTHER, number=3))
        assert "no such attachment" in stranger.text
    [history] = [path for path in (home / "sessions").glob("*.jsonl") if "ann" in path.read_text()]
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    assert [file["sha256"] for file in lines[0]["attachments"]] == [notes.sha256, cat.sha256]
    assert lines[0]["content"].startswith(f"[Attachment {notes.id}: ")
    loaded = await JsonlMemory(home, clock=SystemClock()).load_history(
        str(SessionKey("matrix", f"dm-{OWNER}"))
    )
    assert loaded.messages[0].attachments == (notes, cat)


async def test_a_full_disk_is_in_the_status_and_told_to_the_owner(home, monkeypatch):
    """A picture that had no room waited in silence. With room again the status is as before: the control."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with world(home, name="matrix", settings=SETTINGS) as one:
        await answered(one, said("hello", number=1))
        assert "attachments" not in await one.built.status.read()
        with monkeypatch.context() as patch:
            patch.setattr("channels.attachments.attachment_store.Writing.write", full)
            await one.hand_over(said("!sendfile plan.txt", number=2))
            with anyio.fail_after(60):
                while not (
                    told := [
                        m for m in one.server.seen(f"dm-{OWNER}") if "Messages with files wait" in m.text
                    ]
                ):
                    await anyio.sleep(0.02)
        assert "No space left on device" in told[0].text
        files = (await one.built.status.read())["attachments"]
        assert (
            files
            == "messages with files wait: the attachments folder cannot be used: No space left on device"
        )
        await one.hand_over(said("!sendfile plan.txt", number=3))
        with anyio.fail_after(60):
            while "attachments" in await one.built.status.read():
                await anyio.sleep(0.02)


async def test_a_file_of_the_workspace_goes_out_to_the_owner_alone(home, store):
    """The answer carries a copy for the owner; another person gets none, but may have back what was sent."""
    async with world(home, name="matrix", settings=SETTINGS) as one:
        mine = await answered(one, said("!sendfile plan.txt", number=1))
        theirs = await answered(one, said("!sendfile plan.txt", sender=OTHER, number=2))
        own = await store.save("own.txt", "text/plain", b"own")
        back = await answered(one, said("!sendfile", own, sender=OTHER, number=3))
    assert [file.name for file in mine.attachments] == ["plan.txt"]
    assert await store.read(mine.attachments[0], max_bytes=100) == b"the plan"
    assert (theirs.attachments, "That did not work" in theirs.text) == ((), True)
    assert back.attachments == (own,)


class TextOnly(LoopbackChannel):
    """A channel that cannot carry files."""

    def __init__(self, server):
        super().__init__(server, name="matrix")
        self.capabilities = Capabilities(redelivery=self.capabilities.redelivery)


async def test_a_channel_without_files_says_what_is_missing(home):
    """The text names the file instead of losing it."""
    server = LoopbackServer()
    channels = {"matrix": (TextOnly(server), "each")}
    async with world(home, server=server, name="matrix", settings=SETTINGS, channels=channels) as one:
        answer = await answered(one, said("!sendfile plan.txt", number=1))
    assert answer.attachments == ()
    assert answer.text.endswith("(I cannot send files here, so this one is missing: plan.txt)")


# ── sweeping ──


@pytest.fixture
async def queue(tmp_path):
    opened = await SqliteQueue.open(tmp_path / "gateway.db", clock=SystemClock())
    yield opened
    await opened.aclose()


async def test_only_files_that_nobody_needs_are_swept(tmp_path, home, queue):
    """Waiting, unsent and remembered files stay; a forgotten one goes after two days, a very old one anyway."""
    store = AttachmentStore(home)
    names = ("waiting", "unsent", "journal", "history", "forgotten")
    files = {name: await store.save(name, "text/plain", name.encode()) for name in names}
    waiting = said("look", files["waiting"])
    await queue.inbox.accept("matrix", "bot", [Pending(waiting)], {})
    unsent = NewOutbound("matrix", "bot", waiting.session, "here", attachments=(files["unsent"],))
    await queue.outbox.post([unsent])
    memory = JsonlMemory(home, clock=SystemClock())
    line = Message(role="user", content="see", id="1", attachments=(files["history"], files["journal"]))
    await memory.append_message(str(waiting.session), line)
    await memory.sync_history(str(waiting.session))
    young = await store.save("young", "text/plain", b"young")
    now = datetime.now(UTC)

    def sweeper(at):
        return AttachmentSweeper(
            store, queue, partial(named_in_files, home / "sessions"), clock=ManualClock(at), keep_days=180
        )

    assert await sweeper(now + timedelta(seconds=ORPHAN_AFTER_S - 60)).sweep() == 0
    assert await sweeper(now + timedelta(seconds=ORPHAN_AFTER_S + 60)).sweep() == 2
    assert not store.path(files["forgotten"]).exists()
    assert not store.path(young).exists()
    assert await sweeper(now + timedelta(days=181)).sweep() == 2
    left = {name for name in names if store.path(files[name]).exists()}
    assert left == {"waiting", "unsent"}
    assert await sweeper(EPOCH - timedelta(days=900)).sweep() == 0


class Away:
    """A queue that cannot be asked."""

    @property
    def inbox(self):
        return self

    async def rows(self, **_):
        raise StoreUnavailable("the disk is away")


async def test_nothing_is_swept_when_anything_cannot_be_asked(home):
    """Without knowing what waits, even the oldest file stays."""
    store = AttachmentStore(home)
    kept = await store.save("a", "text/plain", b"a")
    clock = ManualClock(datetime.now(UTC) + timedelta(days=1000))
    sweeper = AttachmentSweeper(
        store, Away(), partial(named_in_files, home / "sessions"), clock=clock, keep_days=180
    )
    with pytest.raises(StoreUnavailable):
        await sweeper.sweep()
    assert store.path(kept).exists()
