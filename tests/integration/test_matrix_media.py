"""Files on Matrix against a real Synapse: what people send is stored as it was, what the bot sends arrives once."""

from __future__ import annotations

import hashlib
import json
import secrets
import urllib.request

import pytest

from channels.attachments import AttachmentStore
from channels.matrix.events.media_events import FileDecryption, FileEncryption, media_in
from tests.integration.matrix_bot import Bot, bodies, bot_joined, call, joined_room
from tests.integration.secret_peer import SecretPeer
from tests.pictures import png

pytestmark = pytest.mark.integration


@pytest.fixture
def make_bot(synapse, fresh_credentials, tmp_path):
    def make(url=None, *, max_file_bytes=1_000_000, **settings):
        bot = Bot(fresh_credentials("bot"), url or synapse.url, tmp_path / secrets.token_hex(4), **settings)
        bot.attachments = AttachmentStore(bot.folder / "home", max_file_bytes=max_file_bytes)
        return bot

    return make


def upload(peer, content, media_type="application/octet-stream"):
    """Store a file at the homeserver; gives its mxc address."""
    request = urllib.request.Request(
        f"{peer.url}/_matrix/media/v3/upload",
        data=content,
        headers={"Authorization": f"Bearer {peer.access_token}", "Content-Type": media_type},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["content_uri"]


def fetch(peer, mxc):
    server, media_id = mxc.removeprefix("mxc://").split("/")
    request = urllib.request.Request(
        f"{peer.url}/_matrix/client/v1/media/download/{server}/{media_id}",
        headers={"Authorization": f"Bearer {peer.access_token}"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return answer.headers.get("Content-Type"), answer.read()


def encrypted_file(peer, content):
    """Store a file encrypted; gives its EncryptedFile."""
    encryption = FileEncryption()
    return dict(encryption.file(upload(peer, encryption.encrypt(content))))


def about(msgtype, name, **more):
    return {"msgtype": msgtype, "body": name, **more}


async def read_all(bot, message):
    return [await bot.attachments.read(file, max_bytes=10**7) for file in message.attachments]


@pytest.mark.parametrize("version", ["11", "12"])
async def test_files_of_every_kind_arrive(make_bot, alice, version):
    """A captioned picture, a file, a voice message and a sticker: content, name and kind, in order."""
    bot = make_bot(allow_from=[alice.user_id])
    picture, notes, voice = png(30, 20), b"a,b\n1,2\n", b"OggS" + bytes(5000)
    async with bot.up():
        room = await joined_room(alice, bot, version=version)
        sent = [
            about("m.image", "Look at this", filename="cat.png", url=await call(upload, alice, picture),
                  info={"mimetype": "image/png", "size": 2**31, "w": 1, "h": 1}),
            about("m.file", "../../table.csv", url=await call(upload, alice, notes)),
            about("m.audio", "Voice message.ogg", url=await call(upload, alice, voice),
                  info={"mimetype": "audio/ogg"}, **{"org.matrix.msc3245.voice": {}}),
        ]  # fmt: skip
        for content in sent:
            await call(alice.send_event, room, "m.room.message", content)
        sticker = {"body": "a waving cat", "url": sent[0]["url"], "info": {}}
        await call(alice.send_event, room, "m.sticker", sticker)
        messages = await bot.inbox.until_accepted(4)

    assert [message.text for message in messages] == ["Look at this", "", "", ""]
    assert [[(file.name, file.media_type) for file in message.attachments] for message in messages] == [
        [("cat.png", "image/png")],
        [("table.csv", "text/csv")],
        [("Voice message.ogg", "audio/ogg")],
        [("a waving cat", "image/png")],
    ]
    assert [await read_all(bot, message) for message in messages] == [[picture], [notes], [voice], [picture]]
    assert all("media" not in message.context.route for message in messages)
    recorded = [message.context.spoken for message in messages]
    assert recorded == [(), (), (messages[2].attachments[0].sha256,), ()]


@pytest.mark.parametrize("version", ["11", "12"])
async def test_encrypted_files_arrive(synapse, make_bot, fresh_credentials, tmp_path, version):
    """In an encrypted room a file is decrypted and checked; one that was changed on the way is refused."""
    bot = make_bot()
    person = await call(SecretPeer, synapse.url, fresh_credentials("alice"), tmp_path / "alice")
    bot.settings["allow_from"] = [person.user_id]
    content = secrets.token_bytes(300_000)
    changed = await call(encrypted_file, person.peer, content)
    changed["url"] = await call(upload, person.peer, secrets.token_bytes(300_000))
    odd = {**changed, "v": "v9"}
    async with bot.up():
        room = await call(person.create_room, bot.user_id, version=version)
        await call(bot_joined, person.peer, room, bot.user_id)
        for name, file in (
            ("a.bin", await call(encrypted_file, person.peer, content)),
            ("b.bin", changed),
            ("c.bin", odd),
        ):
            await call(person.send, room, name, to=bot.user_id, msgtype="m.file", file=file)
        messages = await bot.inbox.until_accepted(3, within_s=60)
    person.close()

    assert await read_all(bot, messages[0]) == [content]
    assert [message.attachments for message in messages[1:]] == [(), ()]
    assert (
        messages[1].text
        == '[A file is attached: "b.bin", but I could not get it: its content was changed in transit]'
    )
    assert "encrypted in a way that I do not support" in messages[2].text
    stored = bot.folder / "home/attachments"
    kept = [path for path in stored.rglob("*") if path.is_file() and "shares" not in path.parts]
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in kept] == [
        hashlib.sha256(content).hexdigest()
    ]


async def test_bad_files_cost_nothing_but_themselves(make_bot, alice):
    """Too large, unknown, no address, no picture, empty, badly named: the message is there with a reason."""
    bot = make_bot(allow_from=[alice.user_id], max_file_bytes=50_000)
    async with bot.up():
        room = await joined_room(alice, bot)
        fits, too_large = bytes(50_000), bytes(50_001)
        for name, url in (
            ("fits", await call(upload, alice, fits)),
            ("large", await call(upload, alice, too_large)),
            ("unknown", f"mxc://{alice.user_id.partition(':')[2]}/nosuchmedia"),
            ("elsewhere", "https://example.org/x.png"),
            ("empty", await call(upload, alice, b"")),
            ("evil.png", await call(upload, alice, b"<html><script>", "image/png")),
            ("..\\..\\\x00.bashrc", await call(upload, alice, b"alias")),
        ):
            await call(
                alice.send_event, room, "m.room.message",
                about("m.file", name, url=url, info={"size": 1, "mimetype": "image/png"}),
            )  # fmt: skip
        await call(alice.send, room, "and a word")
        messages = await bot.inbox.until_accepted(8)

    found = {index: message.attachments for index, message in enumerate(messages)}
    assert [len(found[index]) for index in range(8)] == [1, 0, 0, 0, 1, 1, 1, 0]
    assert found[0][0].size_bytes == 50_000
    assert "larger than 0.05 MB" in messages[1].text
    assert "does not have it" in messages[2].text
    assert "no address" in messages[3].text
    assert found[4][0].size_bytes == 0
    assert (found[5][0].media_type, found[5][0].path[-4:]) == ("application/octet-stream", ".bin")
    assert found[6][0].name == "bashrc"
    assert messages[7].text == "and a word"


async def test_files_of_strangers_and_of_talk_are_not_fetched(make_bot, alice, fresh_user):
    """A stranger fills no disk, and what is not meant for the bot is named only; a mention in the caption counts."""
    bot = make_bot(allow_from=[alice.user_id])
    stranger = await call(fresh_user, "stranger")
    async with bot.up():
        room = await joined_room(alice, bot, direct=False, name="group")
        await call(alice.invite, room, stranger.user_id)
        await call(stranger.join, room)
        url = await call(upload, alice, png())
        name = bot.user_id[1:].partition(":")[0]
        picture = about("m.image", f"{name}.png", url=url)
        captioned = about("m.image", f"{name}: what is this?", filename="x.png", url=url)
        await call(stranger.send_event, room, "m.room.message", captioned)
        await call(alice.send_event, room, "m.room.message", picture)
        await call(alice.send_event, room, "m.room.message", captioned)
        messages = await bot.inbox.until_accepted(3)

    assert [(message.addressed, len(message.attachments)) for message in messages] == [
        (True, 0),
        (False, 0),
        (True, 1),
    ]
    assert messages[1].text == f'[A picture is attached: "{name}.png"]'


async def test_a_question_about_an_earlier_picture_brings_it_along(make_bot, alice, fresh_user):
    """In a group a picture is talk; who answers it and asks the bot shows it that picture, whoever sent it."""
    bot = make_bot(allow_from=[alice.user_id])
    bob = await call(fresh_user, "bob")
    async with bot.up():
        room = await joined_room(alice, bot, direct=False, name="group")
        await call(alice.invite, room, bob.user_id)
        await call(bob.join, room)
        picture = about("m.image", "cat.png", url=await call(upload, bob, png(9, 9)))
        event_id = await call(bob.send_event, room, "m.room.message", picture)
        relation = {"m.in_reply_to": {"event_id": event_id}}
        asked = {"m.relates_to": relation, "m.mentions": {"user_ids": [bot.user_id]}}
        await call(alice.send, room, "what is this?", **asked)
        talk, question = await bot.inbox.until_accepted(2)

    assert (talk.addressed, talk.attachments) == (False, ())
    assert question.text == "what is this?"
    assert await read_all(bot, question) == [png(9, 9)]
    assert any('[A picture is attached: "cat.png"]' in said.text for said in question.background)


async def test_a_picture_posted_before_the_question_comes_along(make_bot, alice, fresh_user):
    """Posted without a mention, asked about in the next line, in a real room."""
    bot = make_bot(allow_from=[alice.user_id])
    bob = await call(fresh_user, "bob")
    async with bot.up():
        room = await joined_room(alice, bot, direct=False, name="group")
        await call(alice.invite, room, bob.user_id)
        await call(bob.join, room)
        await call(alice.send_event, room, "m.room.message",
                   about("m.image", "cat.png", url=await call(upload, alice, png(9, 9))))  # fmt: skip
        mention = {"m.mentions": {"user_ids": [bot.user_id]}}
        await call(alice.send, room, "what is this?", **mention)
        await call(alice.send, room, "and now?", **mention)
        talk, question, later = await bot.inbox.until_accepted(3)

    assert (talk.addressed, talk.attachments) == (False, ())
    assert await read_all(bot, question) == [png(9, 9)]
    assert (question.text, later.attachments) == ("what is this?", ())


# ── out ──


def shown(events, sender):
    return [event.content for event in events if event.sender == sender]


@pytest.mark.parametrize("version", ["11", "12"])
async def test_files_go_out_once(make_bot, alice, version):
    """Text, picture and file, delivered three times, are three events; the content arrives as it was."""
    bot = make_bot(allow_from=[alice.user_id])
    picture, notes = png(30, 20), b"some notes"
    files = (
        await bot.attachments.save("cat.png", "image/png", picture),
        await bot.attachments.save("Grüße.txt", "text/plain", notes),
    )
    async with bot.up() as channel:
        assert channel.capabilities.attachments
        room = await joined_room(alice, bot, version=version)
        answer = bot.message(room, "Here you are.", attachments=files)
        receipts = [await channel.deliver(answer, uncertain=bot.mark) for _ in range(2)]
    # A process that knows nothing of the first two tries, but has the same device.
    async with bot.up() as channel:
        receipts.append(await channel.deliver(answer, uncertain=bot.mark))
        events = shown(await call(alice.history, room), bot.user_id)
        # The control: the same under another id is sent again.
        await channel.deliver(bot.message(room, "Here you are.", attachments=files), uncertain=bot.mark)
    assert len(shown(await call(alice.history, room), bot.user_id)) == 2 * len(events)

    assert len({receipt.provider_id for receipt in receipts}) == 1
    assert [(event["msgtype"], event["body"]) for event in events] == [
        ("m.text", "Here you are."),
        ("m.image", "cat.png"),
        ("m.file", "Grüße.txt"),
    ]
    assert events[1]["info"] == {"mimetype": "image/png", "size": len(picture), "w": 30, "h": 20}
    assert await call(fetch, alice, events[1]["url"]) == ("image/png", picture)
    assert (await call(fetch, alice, events[2]["url"]))[1] == notes


@pytest.mark.parametrize("version", ["11", "12"])
async def test_a_file_goes_encrypted_into_an_encrypted_room(
    synapse, make_bot, fresh_credentials, tmp_path, version
):
    """The event is encrypted, has no plain address, and what the homeserver stores is not the file."""
    bot = make_bot()
    person = await call(SecretPeer, synapse.url, fresh_credentials("alice"), tmp_path / "alice")
    bot.settings["allow_from"] = [person.user_id]
    content = secrets.token_bytes(200_000)
    file = await bot.attachments.save("plan.pdf", "application/pdf", content)
    async with bot.up() as channel:
        room = await call(person.create_room, bot.user_id, version=version)
        await call(bot_joined, person.peer, room, bot.user_id)
        answer = bot.message(room, "Here.", attachments=(file,))
        for _ in range(2):
            await channel.deliver(answer, uncertain=bot.mark)
        events = await call(person.read, room)
    person.close()

    said = [(kind, event) for kind, event in events if event.get("msgtype")]
    assert [(kind, event["msgtype"]) for kind, event in said] == [
        ("m.room.encrypted", "m.text"),
        ("m.room.encrypted", "m.file"),
    ]
    event = said[1][1]
    assert "url" not in event
    media_type, stored = await call(fetch, person.peer, event["file"]["url"])
    assert media_type == "application/octet-stream"
    assert stored != content
    decryption = FileDecryption(media_in("m.room.message", event).secret)
    assert decryption.decrypt(stored) == content
    decryption.finish()


async def test_a_file_too_large_for_the_server_becomes_a_sentence(make_bot, alice):
    """The answer arrives all the same, and says what is missing and why."""
    bot = make_bot(allow_from=[alice.user_id], max_file_bytes=100_000_000)
    large = await bot.attachments.save("film.mp4", "video/mp4", bytes(60_000_000))
    async with bot.up() as channel:
        room = await joined_room(alice, bot)
        await channel.deliver(bot.message(room, "Here.", attachments=(large,)), uncertain=bot.mark)
    assert await bodies(alice, room, bot.user_id) == [
        "Here.",
        "I cannot send you the file 'film.mp4': it has 60 MB, and this homeserver accepts 52.4 MB.",
    ]
