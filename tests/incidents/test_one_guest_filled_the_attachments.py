"""One guest filled the store of attachments, and the owner's file was refused."""

from __future__ import annotations

import pytest

from agent_core.messages import SessionKey
from channels.attachments import AttachmentsFull, AttachmentStore
from gateway.app.agent import open_attachments
from gateway.routing.access import Access, Alias
from gateway.settings import Settings
from gateway.system.home import Home
from tests.inbound import inbound

OWNER, EVE, BOB = "olga@home.test", "eve@home.test", "bob@home.test"
ACCESS = Access([Alias("email", OWNER)], {"email": ["*"]})
TOTAL = 4000


def said_by(address, *, verified=True):
    return inbound(
        SessionKey("email", "x"),
        address,
        "see the file",
        f"of {address}",
        account="bot@home.test",
        verified=verified,
    )


@pytest.fixture
def store(tmp_path):
    return opened(tmp_path)


def opened(root):
    settings = Settings.model_validate(
        {"attachments": {"max_total_mb": TOTAL / 1e6, "max_file_mb": 1000 / 1e6}}
    )
    return open_attachments(settings, Home(root), ACCESS)


async def filled_by(store, address, *, verified=True, size=100):
    """How many bytes somebody can leave here with files of this size."""
    done = 0
    while True:
        content = f"{address} {verified} {done} ".encode().ljust(size, b"x")
        try:
            await store.save("f", "", content, message=said_by(address, verified=verified))
        except AttachmentsFull:
            return done
        done += size


async def test_the_owner_has_room_whatever_guests_do(store):
    """Everybody fills all they can; a large file leaves room for others, and half of everything is the owner's."""
    assert await filled_by(store, EVE, size=1000) == TOTAL // 4
    assert await filled_by(store, BOB) > 0
    await filled_by(store, "third@home.test", verified=False, size=10)
    assert await filled_by(store, OWNER) >= TOTAL // 2


async def test_without_the_bound_one_guest_takes_everything(tmp_path):
    """The negative control: files of nobody who is a guest fill all of it."""
    store = AttachmentStore(tmp_path, max_total_bytes=TOTAL, is_guest=lambda _: False)
    assert await filled_by(store, EVE) == TOTAL
    with pytest.raises(AttachmentsFull):
        await store.save("f", "", b"of the owner", message=said_by(OWNER))


async def test_a_disk_that_is_nearly_full_is_not_filled_by_guests(store, monkeypatch):
    """A file of theirs takes a quarter of what is free at most; the owner's takes all of it."""
    from shutil import disk_usage

    real = disk_usage(".")
    monkeypatch.setattr(
        "channels.attachments.attachment_store.shutil.disk_usage",
        lambda _: real._replace(free=800 - store._used_bytes),
    )
    assert await filled_by(store, EVE, size=50) == 650
    await store.save("f", "", b"z" * 150, message=said_by(OWNER))


async def test_small_files_count_as_what_they_take(tmp_path):
    """
    Files of two bytes each took hundreds of times the room that they were counted for: a disk gives each of them a
    block, and an inode. All of that is the same after a restart, and after they are removed.
    """
    total = 20_000_000
    store = AttachmentStore(tmp_path, max_total_bytes=total)
    store._least_bytes = least = total // 100  # as if there could be a hundred

    async def fill(begin):
        for number in range(begin, 200):
            try:
                await store.save("f", "", b"%d" % number, message=said_by(EVE))
            except AttachmentsFull:
                return number
        return None

    assert await fill(0) == 49
    assert store._used_bytes == 49 * least
    store._used_bytes = None  # as at a start
    assert await fill(49) == 49
    assert store._used_bytes == 49 * least
    files = await store.list_files()
    assert await store.remove(files) == len(files)
    assert store._used_bytes == 0
    assert await fill(0) == 49
    assert AttachmentStore(tmp_path)._least_bytes == 4_000  # about a block, with the default of two gigabytes
