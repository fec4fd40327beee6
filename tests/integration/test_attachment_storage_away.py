"""An object store that is away: messages with files wait, others do not, and afterwards each comes once."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest

from agent_core.storage.layout import Layout
from agent_core.storage.session_files import named_in_files
from channels.attachments import PATH, AttachmentStore, StorageUnreachable
from channels.attachments.file_storage import LocalFiles
from channels.base import ChannelUnavailable
from channels.matrix.receive import deferred_reading, downloads
from devservers import MailServer, MatrixPeer
from gateway.cli.check.attachment_checks import attachment_contents, attachment_files, storage_answers
from gateway.operations.backup.backup_settings import kept_config
from gateway.operations.privacy.export import ExportRefused, export_person
from gateway.operations.privacy.inventory import people
from gateway.operations.privacy.person_erasure import forget_person
from gateway.routing.attachment_retention import ORPHAN_AFTER_S, AttachmentSweeper
from gateway.store.sqlite.database_integrity import names_in_rows
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from tests.clock import EPOCH, ManualClock
from tests.doubles.object_server import Gate, ObjectServer
from tests.home_world import ALICE, BOB, fill
from tests.integration.mail_bot import Marks, answer_to, raw_mail, server_of_bots
from tests.integration.mail_bot import make_bot as make_mail_bot
from tests.integration.matrix_bot import Bot, call, joined_room

mail_server = server_of_bots()


# ── messages ──


async def test_mails_with_files_wait_and_others_do_not(
    mail_server: MailServer, object_server: ObjectServer, gate: Gate, tmp_path: Path
) -> None:
    """
    While the store hangs up, or hangs: another person's mail comes at once; a mail with a file comes afterwards,
    before what its sender wrote later, over an end of the channel, each once.
    """
    bot = make_mail_bot(mail_server, tmp_path)
    files = AttachmentStore(
        tmp_path / "home", storage=object_server.storage(tmp_path.name, url=gate.url, limit_s=1)
    )

    def channel():
        made = bot.channel()
        made._keeper._store = made._posting._attachments = files
        return made

    async with bot.running(channel()):
        gate.way = "away"
        await bot.send("With a file", "look", attachments=[("a.txt", "text/plain", b"a")])
        await bot.send("Later", "and this")
        await bot.inject(raw_mail(bot, message_id="<bob1@x>", sender="bob@mail.test", text="of another"))
        [other] = await bot.inbox.until_accepted(1)
        assert other.text.strip() == "of another"
        await anyio.sleep(1.5)
        assert len(bot.inbox.accepted) == 1
    gate.way = "stuck"
    async with bot.running(channel()):
        await bot.inject(raw_mail(bot, message_id="<bob2@x>", sender="bob@mail.test", text="of another, too"))
        await bot.inbox.until_accepted(2)
        assert [message.text.strip() for message in bot.inbox.accepted][1:] == ["of another, too"]
        gate.way = "open"
        with anyio.fail_after(60):
            await bot.inbox.until_accepted(4)
        await anyio.sleep(0.5)
    assert [message.text.strip() for message in bot.inbox.accepted][2:] == ["look", "and this"]
    [kept] = bot.inbox.accepted[2].attachments
    assert await files.read(kept, max_bytes=10) == b"a"


async def test_an_answer_with_a_file_waits_and_goes_out_once(
    mail_server: MailServer, object_server: ObjectServer, gate: Gate, tmp_path: Path
) -> None:
    """Sending is put off while the store is away; a file that is damaged there is told in its place."""
    bot = make_mail_bot(mail_server, tmp_path)
    files = AttachmentStore(
        tmp_path / "home", storage=object_server.storage(tmp_path.name, url=gate.url, limit_s=1)
    )
    made = bot.channel()
    made._keeper._store = made._posting._attachments = files
    async with bot.running(made) as channel:
        await bot.send("Hello", "hello")
        [asked] = await bot.inbox.until_accepted(1)
        kept = await files.save("plan.txt", "text/plain", b"the plan")
        answer = answer_to(asked).model_copy(update={"attachments": (kept,)})
        gate.way = "failing"
        with pytest.raises(ChannelUnavailable):
            await channel.deliver(answer, uncertain=Marks())
        gate.way = "open"
        await channel.deliver(answer, uncertain=Marks())
        gate.way = "wrong"
        await channel.deliver(
            answer_to(asked, key="row-2").model_copy(update={"attachments": (kept,)}), uncertain=Marks()
        )
        with anyio.fail_after(60):
            while len(mails := await bot.answers()) < 2:
                await anyio.sleep(0.2)
    first, second = mails
    assert [part.get_payload(decode=True) for part in first.iter_attachments()] == [b"the plan"]
    assert "plan.txt is damaged" in second.as_string()
    assert list(second.iter_attachments()) == []


# ── Matrix ──


def uploaded(person: MatrixPeer, content: bytes) -> str:
    """Store a file at the homeserver; gives its mxc address."""
    request = urllib.request.Request(
        f"{person.url}/_matrix/media/v3/upload",
        data=content,
        headers={"Authorization": f"Bearer {person.access_token}"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["content_uri"]


async def test_matrix_messages_with_files_wait_and_others_do_not(
    make_bot: Callable[..., Bot],
    alice: MatrixPeer,
    bob: MatrixPeer,
    object_server: ObjectServer,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    While the store hangs up, or hangs for longer than a file may take: another room is answered, also what has to
    be looked up at the homeserver; the file comes afterwards, before what its sender wrote later, over an end of the
    channel, each once.
    """
    monkeypatch.setattr(downloads, "ALL_LIMIT_S", 1.0)
    monkeypatch.setattr(deferred_reading, "_AT_ONCE_PER_SERVER", 1)
    bot = make_bot(allow_from=[alice.user_id, bob.user_id])
    bot.attachments = AttachmentStore(
        bot.folder / "home", storage=object_server.storage(bot.folder.name, url=gate.url, limit_s=1)
    )
    async with bot.up():
        hers, his = await joined_room(alice, bot), await joined_room(bob, bot)
        earlier = await call(bob.send, his, "earlier")
        await bot.inbox.until_accepted(1)
        gate.way = "stuck"
        gate.asked.clear()
        for name in ("a.txt", "b.txt"):
            address = await call(uploaded, alice, name.encode())
            content = {"msgtype": "m.file", "body": name, "url": address}
            await call(alice.send_event, hers, "m.room.message", content)
        await call(alice.send, hers, "and this")
        with anyio.fail_after(60):
            while not gate.asked:
                await anyio.sleep(0.05)
        await call(bob.send, his, "of another")
        await bot.inbox.until_accepted(2)
    gate.way = "away"
    gate.asked.clear()
    async with bot.up():
        with anyio.fail_after(60):
            while not gate.asked:
                await anyio.sleep(0.05)
        quoting = {
            "msgtype": "m.text",
            "body": "this one?",
            "m.relates_to": {"m.in_reply_to": {"event_id": earlier}},
        }
        await call(bob.send_event, his, "m.room.message", quoting)
        await bot.inbox.until_accepted(3)
        assert [message.text for message in bot.inbox.accepted[:2]] == ["earlier", "of another"]
        assert "this one?" in bot.inbox.accepted[2].text
        gate.way = "open"
        with anyio.fail_after(60):
            await bot.inbox.until_accepted(6)
        await anyio.sleep(0.5)
    *files, last = bot.inbox.accepted[3:]
    assert last.text == "and this"
    kept = [file for message in files for file in message.attachments]
    assert [await bot.attachments.read(file, max_bytes=10) for file in kept] == [b"a.txt", b"b.txt"]


# ── one sweep for all ──


async def test_one_process_sweeps_for_all(object_server: ObjectServer, tmp_path: Path) -> None:
    """The second one does nothing until the first one's next sweep is due; a sweep that failed is another's to do."""
    clock = ManualClock(datetime.now(UTC))
    home = (await fill(tmp_path / "home")).home
    async with await SqliteQueue.open(home.database, clock=clock) as queue:
        storage = object_server.storage(tmp_path.name, limit_s=3)
        store = AttachmentStore(home.root, storage=storage)

        def sweeper():
            return AttachmentSweeper(
                store, queue, partial(named_in_files, home.root / "sessions"), clock=clock, keep_days=180
            )

        first, second = sweeper(), sweeper()
        orphan = await store.save("a", "", b"nobody names it")
        clock.advance(ORPHAN_AFTER_S + 60)
        real, storage.list_files = (
            storage.list_files,
            lambda: (_ for _ in ()).throw(StorageUnreachable("gone")),
        )
        with pytest.raises(ChannelUnavailable):
            await first.sweep_alone()
        storage.list_files = real
        assert await second.sweep_alone() == 1
        assert storage.find(orphan.path) is None
        assert await first.sweep_alone() is None
        assert await second.sweep_alone() == 0
        clock.advance(7 * 3600)
        assert await first.sweep_alone() == 0


async def test_what_belongs_to_another_squidbot_is_not_swept(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    """Two databases on one place by mistake: the second one removes nothing, the first one goes on."""
    clock = ManualClock(datetime.now(UTC))
    async with (
        await SqliteQueue.open(tmp_path / "one.db", clock=clock) as first,
        await SqliteQueue.open(tmp_path / "two.db", clock=clock) as second,
    ):
        store = AttachmentStore(tmp_path, storage=object_server.storage(tmp_path.name, limit_s=3))
        mine, theirs = (
            AttachmentSweeper(
                store, queue, partial(named_in_files, tmp_path / "sessions"), clock=clock, keep_days=180
            )
            for queue in (first, second)
        )
        assert await mine.sweep_alone() == 0
        await store.save("a", "", b"nobody names it")
        clock.advance(ORPHAN_AFTER_S + 60)
        assert await theirs.sweep_alone() == 0
        assert len(await store.list_files()) == 1
        clock.advance(7 * 3600)
        assert await mine.sweep_alone() == 1


# ── a person's data ──


@pytest.fixture
async def elsewhere(object_server: ObjectServer, gate: Gate, tmp_path: Path):
    """A home with a file of Bob's, and one that both have sent, all in the object store."""
    filled = await fill(tmp_path / "home")
    mine, both = filled.attach(b"of bob alone", "bob.txt"), filled.attach(b"of both", "both.txt")
    await filled.say(BOB, "@bob:hs.test", "see", "seen", native_id="$b9", attachments=(mine, both))
    await filled.say(ALICE, "@alice:hs.test", "see", "seen", native_id="$a9", attachments=(both,))
    storage = object_server.storage(tmp_path.name, url=gate.url, limit_s=1)
    storage.prepare()
    for file in (filled.home.root / "attachments").glob("*/*"):
        with file.open("rb") as content:
            storage.save(content.fileno(), file, str(file.relative_to(filled.home.root)), file.stat().st_size)
        file.unlink()
    for whose, name, _ in LocalFiles(filled.home.root).marks():
        storage.mark(whose, name)
    return filled, storage, mine, both


async def test_a_persons_objects_are_exported_and_forgotten(elsewhere, gate: Gate, tmp_path: Path) -> None:
    """Away: nothing is written and nothing changed. Then all of it, but what others' messages name."""
    filled, storage, mine, both = elsewhere
    root, database = filled.home.root, filled.home.database
    layout, bob = Layout(root, root / "workspace"), people(["@bob:hs.test"], [])
    gate.way = "away"
    with pytest.raises(ExportRefused, match="cannot be fetched"):
        export_person(layout, database, bob, tmp_path / "out", now=EPOCH, storage=storage)
    assert not (tmp_path / "out").exists()
    before = database.read_bytes()
    with pytest.raises(StorageUnreachable):
        forget_person(layout, database, bob, now=EPOCH, storage=storage)
    assert database.read_bytes() == before
    gate.way = "open"
    export_person(layout, database, bob, tmp_path / "out", now=EPOCH, storage=storage)
    out = {path.read_bytes() for path in (tmp_path / "out/attachments").iterdir()}
    assert out == {b"of bob alone", b"of both"}
    gate.way = "wrong"
    export_person(layout, database, bob, tmp_path / "spoiled", now=EPOCH, storage=storage)
    assert [path.name for path in (tmp_path / "spoiled/attachments").iterdir()] == ["damaged.txt"]
    gate.way = "open"
    seen = forget_person(layout, database, bob, now=EPOCH, storage=storage)
    assert seen.kept_files == 1
    assert storage.find(mine.path) is None
    assert storage.find(both.path) is not None


async def test_check_looks_at_the_store(elsewhere, gate: Gate) -> None:
    """It answers, in one line; what is missing, damaged or named by nobody there is found; what is away is said."""
    filled, storage, mine, _ = elsewhere
    home = filled.home
    answer = storage_answers(storage)
    assert (answer.verdict, "stores, returns and removes" in answer.text) == ("ok", True)
    named = names_in_rows(home.database, in_use=False)
    assert list(attachment_contents(home, storage)) == []
    assert list(attachment_files(home, storage, {**named, mine.path: True}, SystemClock())) == []
    gate.way = "wrong"
    assert len(list(attachment_contents(home, storage))) == len(list(storage.list_files())) >= 2
    gate.way = "open"
    storage.erase(mine.path)
    late = ManualClock(datetime.now(UTC) + timedelta(days=3))
    missing, *orphans = [one.text for one in attachment_files(home, storage, {mine.path: True}, late)]
    assert missing.startswith(f"1 files that messages refer to are missing: {mine.path}")
    assert len(orphans) == len(list(storage.list_files())) >= 1
    assert all(PATH.match(text) for text in orphans)
    gate.way = "away"
    assert storage_answers(storage).verdict == "fail"
    assert "were not checked" in next(attachment_contents(home, storage)).text


def test_a_backup_says_that_the_objects_are_not_in_it(tmp_path: Path) -> None:
    """With a store elsewhere there is a note; the control without one has none."""
    config = tmp_path / "squidbot.yaml"
    config.touch(mode=0o600)
    config.write_text("attachments: {store: 's3://bucket/x'}\n")
    assert any(
        "s3://bucket/x and not in this backup" in note
        for note in kept_config(tmp_path, config, with_secrets=False).notes
    )
    config.write_text("attachments: {max_file_mb: 1}\n")
    assert not kept_config(tmp_path, config, with_secrets=False).notes
