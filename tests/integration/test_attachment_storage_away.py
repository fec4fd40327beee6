"""A folder or an object store for files that is away: messages with files wait, and afterwards each comes once."""

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
from channels.base import ChannelUnavailable
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
from tests.doubles.away_folder import AwayFolder, AwayObjects
from tests.doubles.inbox import running
from tests.home_world import ALICE, BOB, fill
from tests.integration.mail_bot import Marks, answer_to, server_of_bots
from tests.integration.mail_bot import make_bot as make_mail_bot
from tests.integration.matrix_bot import Bot, call, joined_room

mail_server = server_of_bots()


@pytest.fixture(params=["folder", "s3"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> AwayFolder | AwayObjects:
    if request.param == "folder":
        return AwayFolder(tmp_path / "mnt")
    return AwayObjects(request.getfixturevalue("gate"), tmp_path.name)


# ── messages ──


def channel_over(bot, files: AttachmentStore):
    made = bot.channel()
    made._keeper._store = made._posting._attachments = files
    return made


async def test_mails_with_files_wait_in_the_mailbox(
    mail_server: MailServer, away: AwayFolder | AwayObjects, tmp_path: Path
) -> None:
    """A mail with a file comes when the place is back, before what came later, over an end of the channel, each once."""
    bot = make_mail_bot(mail_server, tmp_path)
    files = AttachmentStore(tmp_path / "home", storage=away)
    away.is_unreachable = True
    async with bot.running(channel_over(bot, files)):
        await bot.send("With a file", "look", attachments=[("a.txt", "text/plain", b"a")])
        await anyio.sleep(1.5)
    await bot.send("Later", "and this")
    async with running(channel_over(bot, files), bot.inbox) as run:
        with anyio.fail_after(60):
            await run.ended.wait()
    assert isinstance(run.error, ChannelUnavailable)
    assert bot.inbox.accepted == []
    away.is_unreachable = False
    async with bot.running(channel_over(bot, files)):
        with anyio.fail_after(60):
            await bot.inbox.until_accepted(2)
        await anyio.sleep(0.5)
    assert [message.text.strip() for message in bot.inbox.accepted] == ["look", "and this"]
    [kept] = bot.inbox.accepted[0].attachments
    assert await files.read(kept, max_bytes=10) == b"a"


async def test_an_answer_with_a_file_waits_and_goes_out_once(
    mail_server: MailServer, away: AwayFolder | AwayObjects, tmp_path: Path
) -> None:
    """Sending is put off while the place is away; a file that is damaged there is told in its place."""
    bot = make_mail_bot(mail_server, tmp_path)
    files = AttachmentStore(tmp_path / "home", storage=away)
    async with bot.running(channel_over(bot, files)) as channel:
        await bot.send("Hello", "hello")
        [asked] = await bot.inbox.until_accepted(1)
        kept = await files.save("plan.txt", "text/plain", b"the plan")
        answer = answer_to(asked).model_copy(update={"attachments": (kept,)})
        away.is_unreachable = True
        with pytest.raises(ChannelUnavailable):
            await channel.deliver(answer, uncertain=Marks())
        away.is_unreachable = False
        await channel.deliver(answer, uncertain=Marks())
        away.spoil(kept.path, b"the")
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
    make_bot: Callable[..., Bot], alice: MatrixPeer, bob: MatrixPeer
) -> None:
    """
    Another room is answered meanwhile; the file comes afterwards, before what its sender wrote later, over an end of
    the channel, each once.
    """
    bot = make_bot(allow_from=[alice.user_id, bob.user_id])
    folder = AwayFolder(bot.folder / "mnt")
    bot.attachments = AttachmentStore(bot.folder / "home", storage=folder)
    async with bot.up():
        hers, his = await joined_room(alice, bot), await joined_room(bob, bot)
        folder.is_unreachable = True
        for name in ("a.txt", "b.txt"):
            address = await call(uploaded, alice, name.encode())
            content = {"msgtype": "m.file", "body": name, "url": address}
            await call(alice.send_event, hers, "m.room.message", content)
        await call(alice.send, hers, "and this")
        await call(bob.send, his, "of another")
        await bot.inbox.until_accepted(1)
    async with bot.up():
        await call(bob.send, his, "and another")
        await bot.inbox.until_accepted(2)
        assert [message.text for message in bot.inbox.accepted] == ["of another", "and another"]
        folder.is_unreachable = False
        with anyio.fail_after(60):
            await bot.inbox.until_accepted(5)
        await anyio.sleep(0.5)
    *files, last = bot.inbox.accepted[2:]
    assert last.text == "and this"
    kept = [file for message in files for file in message.attachments]
    assert [await bot.attachments.read(file, max_bytes=10) for file in kept] == [b"a.txt", b"b.txt"]


# ── sweeping ──


async def test_what_belongs_to_another_squidbot_is_not_swept(
    away: AwayFolder | AwayObjects, tmp_path: Path
) -> None:
    """Two databases on one place by mistake: the second one removes nothing, the first one goes on."""
    clock = ManualClock(datetime.now(UTC))
    async with (
        await SqliteQueue.open(tmp_path / "one.db", clock=clock) as first,
        await SqliteQueue.open(tmp_path / "two.db", clock=clock) as second,
    ):
        store = AttachmentStore(tmp_path, storage=away)
        mine, theirs = (
            AttachmentSweeper(
                store, queue, partial(named_in_files, tmp_path / "sessions"), clock=clock, keep_days=180
            )
            for queue in (first, second)
        )
        assert await mine.sweep_own() == 0
        await store.save("a", "", b"nobody names it")
        clock.advance(ORPHAN_AFTER_S + 60)
        assert await theirs.sweep_own() == 0
        assert len(await store.list_files()) == 1
        assert await mine.sweep_own() == 1


# ── a person's data ──


@pytest.fixture
async def elsewhere(away: AwayFolder | AwayObjects, tmp_path: Path):
    """A home with a file of Bob's, and one that both have sent, all elsewhere."""
    filled = await fill(tmp_path / "home")
    mine, both = filled.attach(b"of bob alone", "bob.txt"), filled.attach(b"of both", "both.txt")
    await filled.say(BOB, "@bob:hs.test", "see", "seen", native_id="$b9", attachments=(mine, both))
    await filled.say(ALICE, "@alice:hs.test", "see", "seen", native_id="$a9", attachments=(both,))
    away.prepare()
    for file in (filled.home.root / "attachments").glob("??/*"):
        with file.open("rb") as content:
            away.save(content.fileno(), file, str(file.relative_to(filled.home.root)), file.stat().st_size)
        file.unlink()
    return filled, away, mine, both


async def test_a_persons_files_are_exported_and_forgotten(elsewhere, tmp_path: Path) -> None:
    """Away: nothing is written and nothing changed. Then all of it, but what others' messages name."""
    filled, storage, mine, both = elsewhere
    root, database = filled.home.root, filled.home.database
    layout, bob = Layout(root, root / "workspace"), people(["@bob:hs.test"], [])
    storage.is_unreachable = True
    with pytest.raises(ExportRefused, match="cannot be fetched"):
        export_person(layout, database, bob, tmp_path / "out", now=EPOCH, storage=storage)
    assert not (tmp_path / "out").exists()
    before = database.read_bytes()
    with pytest.raises(StorageUnreachable):
        forget_person(layout, database, bob, now=EPOCH, storage=storage)
    assert database.read_bytes() == before
    storage.is_unreachable = False
    export_person(layout, database, bob, tmp_path / "out", now=EPOCH, storage=storage)
    out = {path.read_bytes() for path in (tmp_path / "out/attachments").iterdir()}
    assert out == {b"of bob alone", b"of both"}
    for kept in (mine, both):
        storage.spoil(kept.path, b"x" * kept.size_bytes)
    export_person(layout, database, bob, tmp_path / "spoiled", now=EPOCH, storage=storage)
    assert [path.name for path in (tmp_path / "spoiled/attachments").iterdir()] == ["damaged.txt"]
    seen = forget_person(layout, database, bob, now=EPOCH, storage=storage)
    assert seen.kept_files == 1
    assert storage.find(mine.path) is None
    assert storage.find(both.path) is not None


async def test_check_looks_at_the_files(elsewhere) -> None:
    """It answers, in one line; what is missing, damaged or named by nobody there is found; what is away is said."""
    filled, storage, mine, _ = elsewhere
    home = filled.home
    answer = storage_answers(storage)
    assert (answer.verdict, "stores, returns and removes" in answer.text) == ("ok", True)
    named = names_in_rows(home.database, in_use=False)
    assert list(attachment_contents(home, storage)) == []
    assert list(attachment_files(home, storage, {**named, mine.path: True}, SystemClock())) == []
    storage.spoil(mine.path, b"x" * mine.size_bytes)
    assert len(list(attachment_contents(home, storage))) == 1
    storage.erase(mine.path)
    late = ManualClock(datetime.now(UTC) + timedelta(days=3))
    missing, *orphans = [one.text for one in attachment_files(home, storage, {mine.path: True}, late)]
    assert missing.startswith(f"1 files that messages refer to are missing: {mine.path}")
    assert len(orphans) == len(list(storage.list_files())) >= 1
    assert all(PATH.match(text) for text in orphans)
    storage.is_unreachable = True
    assert storage_answers(storage).verdict == "fail"
    assert "were not checked" in next(attachment_contents(home, storage)).text


def test_a_backup_says_that_the_files_are_not_in_it(tmp_path: Path) -> None:
    """With a store elsewhere there is a note, and its keys are secrets; the control without one has none."""
    config = tmp_path / "squidbot.yaml"
    config.touch(mode=0o600)
    for place in ("/mnt/x", "s3://bucket/x"):
        config.write_text(f"attachments: {{store: '{place}'}}\n")
        notes = kept_config(tmp_path, config, with_secrets=False).notes
        assert any(f"{place} and not in this backup" in note for note in notes)
    keys = "{access_key_id: AKIAOFTHETEST, secret_access_key: the-secret-of-the-test}"
    config.write_text(f"attachments: {{store: 's3://bucket/x', s3: {keys}}}\n")
    for with_secrets in (False, True):
        kept = repr(kept_config(tmp_path, config, with_secrets=with_secrets))
        assert ("the-secret" in kept, "AKIA" in kept) == (with_secrets, with_secrets)
    config.write_text("attachments: {max_file_mb: 1}\n")
    assert not kept_config(tmp_path, config, with_secrets=False).notes
