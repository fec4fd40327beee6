"""One guest filled the store of attachments, and the owner's file was refused."""

from __future__ import annotations

import pytest

from agent_core.messages import SessionKey
from agent_core.storage.layout import Layout
from channels.attachments import AttachmentsFull, AttachmentStore
from gateway.app.agent import open_attachments
from gateway.operations.privacy.inventory import people
from gateway.operations.privacy.person_erasure import forget_person
from gateway.routing.access import Access, Alias
from gateway.settings import Settings
from gateway.system.home import Home
from tests.clock import EPOCH
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
    """Everybody fills all they can; there is room for one more guest, and half of everything for the owner."""
    first = await filled_by(store, EVE)
    second = await filled_by(store, BOB)
    assert first == TOTAL // 4
    assert 0 < second <= first // 2 + 100
    await filled_by(store, "third@home.test", size=10)
    assert await filled_by(store, OWNER) >= TOTAL // 2


async def test_without_shares_one_guest_takes_everything(tmp_path):
    """The negative control: files on nobody's share fill all of it."""
    store = AttachmentStore(tmp_path, max_total_bytes=TOTAL, share_of=lambda _: None)
    assert await filled_by(store, EVE) == TOTAL
    with pytest.raises(AttachmentsFull):
        await store.save("f", "", b"of the owner", message=said_by(OWNER))


async def test_who_imitates_somebody_fills_nobodys_share(store):
    """Unproven senders have one share together, whatever they call themselves."""
    together = sum([await filled_by(store, name, verified=False) for name in (OWNER, EVE, "x@y.test")])
    assert together == TOTAL // 4
    assert await filled_by(store, EVE) > 0
    assert await filled_by(store, OWNER) >= TOTAL // 2


async def test_shares_outlive_a_restart_and_end_with_the_files(tmp_path, store):
    """Counted anew from the disk; what is removed, refused or sent twice is not counted."""
    before = await filled_by(store, EVE)
    again = opened(tmp_path)
    assert await filled_by(again, EVE) == 0
    files = await again.list_files()
    assert await again.remove(files) == len(files)
    assert await filled_by(again, EVE) == before
    bob = [await again.save("f", "", b"the same", message=said_by(BOB)) for _ in range(50)]
    assert len({one.path for one in bob}) == 1
    with pytest.raises(AttachmentsFull):
        await again.save("f", "", b"y" * 600, message=said_by(BOB))
    assert await filled_by(again, BOB) > 300, "what was refused has been given back"


async def test_a_disk_that_is_nearly_full_is_not_filled_by_guests(store, monkeypatch):
    """They take half of what is free there at most, and the half of that each."""
    from shutil import disk_usage

    real = disk_usage(".")
    monkeypatch.setattr(
        "channels.attachments.attachment_store.shutil.disk_usage", lambda _: real._replace(free=800)
    )
    assert await filled_by(store, EVE, size=50) <= 400
    await store.save("f", "", b"z" * 700, message=said_by(OWNER))


async def test_forgetting_a_person_forgets_the_share(tmp_path, store):
    """No mark of theirs stays."""
    await filled_by(store, EVE)
    shares = tmp_path / "attachments" / "shares"
    assert len(list(shares.iterdir())) == 1
    layout = Layout(tmp_path, tmp_path / "workspace")
    layout.sessions.mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "memory").mkdir()
    forget_person(layout, tmp_path / "gateway.db", people([EVE], []), now=EPOCH)
    assert not list(shares.iterdir())


async def test_small_files_count_as_what_they_take(tmp_path):
    """
    Files of two bytes each took hundreds of times the room that they were counted for: a disk gives each of them a
    block, and an inode. All of that is the same after a restart, and after they are removed.
    """
    total = 20_000_000
    store = AttachmentStore(tmp_path, max_total_bytes=total)
    store._least_bytes = store._shares._least_bytes = least = total // 100  # as if there could be a hundred

    async def fill(begin):
        for number in range(begin, 200):
            try:
                await store.save("f", "", b"%d" % number, message=said_by(EVE))
            except AttachmentsFull:
                return number
        return None

    assert await fill(0) == 25
    assert store._used_bytes == 25 * least
    store._used_bytes = None  # as at a start
    assert await fill(25) == 25
    assert store._used_bytes == 25 * least
    files = await store.list_files()
    assert await store.remove(files) == len(files)
    assert store._used_bytes == 0
    assert await fill(0) == 25
    assert AttachmentStore(tmp_path)._least_bytes == 4_000  # about a block, with the default of two gigabytes
