"""Files of Matrix messages on hostile and broken servers, on virtual time: no message is ever lost for its file."""

from __future__ import annotations

import os
import resource
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from agent_core.messages import Audience, InboundMessage, MessageContext, SessionKey
from channels.attachments import AttachmentStore, AttachmentsUnavailable
from channels.matrix.client.homeserver import Download, HttpAnswer, LinkBroken
from channels.matrix.events.inbound_events import BotIdentity, read_event
from channels.matrix.events.media_events import FileEncryption, MediaInvalid, media_in
from channels.matrix.receive.downloads import ALL_LIMIT_S, Downloads
from channels.matrix.rooms.room_state import Rooms
from tests.clock import EPOCH
from tests.doubles.away_folder import AwayFolder, store_over
from tests.doubles.homeserver import failure, text
from tests.inbound import inbound
from tests.pictures import png

pytestmark = pytest.mark.virtual_time
ALICE = "@alice:hs.test"


class Media:
    """The door for files alone: what is asked for under a media id is given piece by piece, or is an answer."""

    def __init__(self):
        self.files = {}
        self.asked = []
        self.at_once = self.most_at_once = 0
        self.old_only = False

    @asynccontextmanager
    async def download(self, path, *, query=None, anonymous=False):
        self.asked.append((path, anonymous))
        if self.old_only and "/client/v1/" in path:
            yield Download(failure(404, "M_UNRECOGNIZED"), None, pieces())
            return
        found = self.files[path.rpartition("/")[2]]
        found = found.pop(0) if isinstance(found, list) and len(found) > 1 else found
        found = found[0] if isinstance(found, list) else found
        if isinstance(found, LinkBroken):
            raise found
        if isinstance(found, HttpAnswer):
            yield Download(found, None, pieces())
            return
        chunks = found() if callable(found) else pieces(found)
        yield Download(HttpAnswer(200, {}), None, self.counted(chunks))

    async def counted(self, chunks):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            self.at_once -= 1


async def pieces(*parts):
    for part in parts:
        await anyio.lowlevel.checkpoint()
        yield part


async def endless():
    while True:
        await anyio.sleep(0.001)
        yield b"x" * 50_000


async def stalling():
    yield b"x"
    await anyio.sleep_forever()


async def broken():
    yield b"x" * 1000
    raise LinkBroken("gone", maybe_taken=True)


@pytest.fixture
def server():
    return Media()


@pytest.fixture
def store(tmp_path):
    return AttachmentStore(tmp_path, max_file_bytes=1_000_000)


def message(media_id, *, name="a.bin", number=0, sender=ALICE, addressed=True, **content):
    """A message as `read_event` leaves it."""
    content = {"msgtype": "m.file", "body": name, "url": f"mxc://hs.test/{media_id}", **content}
    return inbound(
        SessionKey("matrix", "!r:hs.test"),
        sender,
        f'[A file is attached: "{name}"]',
        f"$e{number}",
        account="@bot:hs.test",
        audience=Audience.DIRECT,
        addressed=addressed,
        context={
            "route": {
                "media": {
                    "type": "m.room.message",
                    "content": content,
                    "remark": f'[A file is attached: "{name}"]',
                }
            }
        },
    )


def downloads(server, store, **more):
    return Downloads(server, store, allows=lambda user: user == ALICE, **more)


async def one(server, store, found, **more):
    server.files["m"] = found
    [brought] = await downloads(server, store).fetch_files([message("m", **more)])
    assert "media" not in brought.context.route
    return brought


def leftovers(tmp_path):
    return [path for path in (tmp_path / "attachments").rglob("*") if path.is_file()]


async def test_a_file_becomes_an_attachment(server, store):
    """And its remark goes from the text."""
    brought = await one(server, store, b"content")
    assert (brought.text, [file.size_bytes for file in brought.attachments]) == ("", [7])


@pytest.mark.parametrize(
    ("found", "reason", "tries"),
    [
        (endless, "larger than 1 MB", 1),
        (stalling, "took too long", 1),
        (broken, "connection to the homeserver broke", 3),
        (LinkBroken("no", maybe_taken=False), "connection to the homeserver broke", 3),
        (failure(404, "M_NOT_FOUND"), "does not have it", 1),
        (failure(404), "could not deliver it (404)", 3),
        (failure(502), "could not deliver it (502)", 3),
        (failure(504, "M_NOT_YET_UPLOADED"), "could not deliver it (504)", 3),
        (failure(403, "M_FORBIDDEN"), "does not let me read it", 1),
        (failure(429, "M_LIMIT_EXCEEDED", retry_after_ms=1000), "limits the rate", 3),
    ],
)
async def test_what_cannot_be_had_is_told(server, store, tmp_path, found, reason, tries):
    """The message is accepted with the reason; what may pass is tried again; nothing stays on the disk."""
    began = anyio.current_time()
    brought = await one(server, store, found)
    assert brought.attachments == ()
    assert brought.text.startswith('[A file is attached: "a.bin", but I could not get it: ')
    assert reason in brought.text
    assert len(server.asked) == tries
    assert anyio.current_time() - began <= ALL_LIMIT_S + 1
    assert leftovers(tmp_path) == []


async def test_a_passing_failure_passes(server, store):
    """A second try gets what the first did not."""
    assert (await one(server, store, [failure(502), broken, b"content"])).attachments


async def test_one_file_that_never_ends_keeps_the_others_only_so_long(server, store):
    """The others of the same answer are there, and all of it is over in time."""
    server.files = {"slow": stalling, "good": b"content"}
    began = anyio.current_time()
    asked = [message("slow" if number == 3 else "good", number=number) for number in range(8)]
    brought = await downloads(server, store).fetch_files(asked)
    assert [len(each.attachments) for each in brought] == [1, 1, 1, 0, 1, 1, 1, 1]
    assert [each.native_id for each in brought] == [f"$e{number}" for number in range(8)]
    assert anyio.current_time() - began <= ALL_LIMIT_S + 1


async def test_a_hundred_files_are_fetched_a_few_at_a_time(server, store):
    """All arrive, and never more than four are on their way."""

    async def slow():
        await anyio.sleep(0.5)
        yield os.urandom(100)

    server.files["m"] = slow
    brought = await downloads(server, store).fetch_files([message("m", number=n) for n in range(100)])
    assert sum(len(each.attachments) for each in brought) == 100
    assert server.most_at_once == 4


async def test_an_old_homeserver_is_asked_by_its_old_door(server, store):
    """Once it has said that it does not know the new one, without a token, and only there from then on."""
    server.old_only = True
    assert (await one(server, store, b"content")).attachments
    fetching = downloads(server, store)
    for number in range(2):
        await fetching.fetch_files([message("m", number=number)])
    assert [anonymous for _, anonymous in server.asked] == [False, True, False, True, True]
    assert "/_matrix/media/v3/download/hs.test/m" in server.asked[-1][0]


async def test_a_disk_that_takes_nothing_holds_the_answer_up(server, store, tmp_path):
    """Nothing is given back, so nothing is accepted, until there is room again; then the file is there."""
    await store.save("first", "", b"the folders are there")
    content = os.urandom(400_000)
    server.files["m"] = content
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    done = []

    async def bring():
        done.extend(await downloads(server, store).fetch_files([message("m")]))

    async with anyio.create_task_group() as group:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            group.start_soon(bring)
            await anyio.sleep(3600)
            assert not done
            assert len(server.asked) > 10
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [file.size_bytes for file in done[0].attachments] == [400_000]


class Slow(AttachmentStore):
    """What it has read takes long to keep."""

    async def save(self, *given, **how):
        kept = await super().save(*given, **how)
        await anyio.sleep(10 * ALL_LIMIT_S)
        return kept


async def test_a_slow_store_is_no_slow_homeserver(server, tmp_path):
    """Files are waited for that only have to be kept, more of them than go at once; the homeserver stays trusted."""
    slow = Slow(tmp_path)
    server.files["m"] = b"content"
    fetching = downloads(server, slow)
    assert (await fetching.fetch_file(message("m"))).attachments
    brought = await fetching.fetch_files([message("m", number=number) for number in range(9)])
    assert [len(each.attachments) for each in brought] == [1] * 9
    assert server.most_at_once <= 4
    server.files["m"] = stalling
    began = anyio.current_time()
    assert not (await fetching.fetch_file(message("m"))).attachments
    assert anyio.current_time() - began > 40


async def test_a_store_that_is_away_is_told_without_fetching(server, tmp_path):
    """The first one learns it, the next ones fetch nothing; when it has answered the file is there."""
    storage = AwayFolder(tmp_path / "shared")
    store = store_over(storage, tmp_path / "home")
    fetching = downloads(server, store)
    server.files["m"] = b"content"
    await store.ready()
    storage.is_unreachable = True
    for _ in range(3):
        with pytest.raises(AttachmentsUnavailable):
            await fetching.fetch_file(message("m"))
    assert len(server.asked) == 1
    storage.is_unreachable = False
    assert (await fetching.fetch_file(message("m"))).attachments


async def test_a_changed_file_is_refused(server, store, tmp_path):
    """One bit, a missing end, an end too many: nothing of it is kept. As it was sent it is taken."""
    content = os.urandom(300_000)
    encryption = FileEncryption()
    stored = encryption.encrypt(content)
    file = dict(encryption.file("mxc://hs.test/m"))
    for changed in (stored[:-1], stored + b"x", bytes([stored[0] ^ 1]) + stored[1:], b""):
        brought = await one(server, store, changed, url=None, file=file)
        assert "its content was changed in transit" in brought.text
        assert leftovers(tmp_path) == []
    [kept] = (await one(server, store, stored, url=None, file=file)).attachments
    assert await store.read(kept, max_bytes=10**6) == content


@pytest.mark.parametrize(
    "content",
    [
        {"url": "https://elsewhere.example/x"},
        {"url": "mxc://hs.test/../../_matrix/client/v3/account/whoami"},
        {"url": "mxc://hs.test/a?b"},
        {"url": 7},
        {"url": None, "file": {"url": "mxc://hs.test/m", "v": "v1"}},
        {"url": None, "file": "nonsense"},
        {"url": None, "file": {"url": "mxc://hs.test/m", "v": "v2", "key": {"kty": "oct", "alg": "A256CTR", "k": "ä"}}},
        {"url": None, "file": {"url": "mxc://hs.test/m", "v": "v2", "iv": "AAAA", "hashes": {"sha256": "AAAA"},
                               "key": {"kty": "oct", "alg": "A256CTR", "k": "AAAA"}}},
    ],
)  # fmt: skip
async def test_an_address_or_key_that_is_none_asks_nobody(server, store, content):
    """No request goes out for it."""
    brought = await one(server, store, b"content", **content)
    assert server.asked == []
    assert "but I could not get it" in brought.text


async def test_strangers_and_talk_cost_no_request(server, store):
    """Only what an allowed person says to the bot is fetched; a rule of the room may say otherwise."""
    server.files["m"] = b"content"
    here = message("m", sender="@guest:hs.test")
    here = here.with_context(replace(here.context, allowed_here=True))
    brought = await downloads(server, store).fetch_files(
        [message("m", sender="@bad:hs.test"), message("m", addressed=False), here]
    )
    assert [len(each.attachments) for each in brought] == [0, 0, 1]
    assert len(server.asked) == 1
    assert all("media" not in each.context.route for each in brought)


async def test_without_a_store_a_file_is_named(server):
    """The text says that there was one and that it cannot be opened."""
    [brought] = await downloads(server, None).fetch_files([message("m")])
    assert brought.text == '[A file is attached: "a.bin", which cannot be opened here]'


# ── events ──


def read(content, kind="m.room.message", sender=ALICE, **changes):
    rooms = Rooms("@bot:hs.test")
    event = {**text("$1", "", sender), "type": kind, "content": content, **changes}
    me = BotIdentity("matrix", "@bot:hs.test", display_name="Squid")
    return read_event(event, "!r:hs.test", me=me, rooms=rooms, now=EPOCH)


def test_a_caption_is_the_text_and_a_file_name_is_not():
    """``body`` beside another ``filename`` is what was said; alone it is the name of the file."""
    captioned = read({"msgtype": "m.image", "body": "my cat", "filename": "cat.png", "url": "mxc://h/m"})
    assert captioned.text == 'my cat\n\n[A picture is attached: "cat.png"]'
    named = read({"msgtype": "m.image", "body": "cat.png", "filename": "cat.png", "url": "mxc://h/m"})
    assert named.text == '[A picture is attached: "cat.png"]'


def test_the_name_of_a_file_mentions_nobody():
    """In a group a picture called like the bot is talk; its caption, or a mention, is a question."""
    assert not read({"msgtype": "m.image", "body": "squid.png", "url": "mxc://h/m"}).addressed
    assert read({"msgtype": "m.image", "body": "squid?", "filename": "a.png", "url": "mxc://h/m"}).addressed
    mentioned = {"msgtype": "m.image", "body": "a.png", "m.mentions": {"user_ids": ["@bot:hs.test"]}}
    assert read({**mentioned, "url": "mxc://h/m"}).addressed


def test_a_voice_message_and_a_sticker_say_what_they_are():
    """Both are messages; a sticker's text is what it shows."""
    voice = read({"msgtype": "m.audio", "body": "v.ogg", "org.matrix.msc3245.voice": {}, "url": "mxc://h/m"})
    assert voice.text == '[A voice message is attached: "v.ogg"]'
    assert read({"body": "wave", "url": "mxc://h/m"}, "m.sticker").text == '[A sticker is attached: "wave"]'


@pytest.mark.parametrize(
    "value", [None, 7, [], "x", {"url": {}}, {"v": "v2", "key": 1, "hashes": [], "url": "mxc://h/m"}]
)
def test_no_shape_of_a_file_is_read_with_an_exception(value):
    """Whatever stands where a file is described: a message, and `MediaInvalid` at the most."""
    for key in ("file", "url", "info", "filename"):
        content = {"msgtype": "m.image", "body": "x", "url": "mxc://h/m", key: value}
        assert isinstance(read(content), InboundMessage)
        try:
            media_in("m.room.message", content)
        except MediaInvalid:
            pass
    assert media_in("m.room.message", {"msgtype": "m.text", "body": "hi"}) is None


async def test_a_picture_alone_is_a_question_in_a_conversation_of_two(server, store):
    """Nothing said but the picture: the text is empty, the attachment is there."""
    brought = await one(server, store, png(), name="cat.png")
    assert (brought.text, brought.attachments[0].media_type) == ("", "image/png")


async def test_a_voice_message_that_is_quoted_is_not_spoken_by_who_quotes_it(server, store):
    """Its words are somebody else's; the control is one of the sender's own."""
    server.files = {"a": b"OggS", "b": b"OggS"}
    voice = {"msgtype": "m.audio", "org.matrix.msc3245.voice": {}}
    own, quoted = (message(name, name="v.ogg", number=number, **voice) for number, name in enumerate("ab"))
    media = {**quoted.context.route["media"], "remark": ""}
    quoted = quoted.model_copy(update={"text": "What does he say?"})
    quoted = quoted.with_context(MessageContext(route={"media": media}))
    own, quoted = await Downloads(server, store, allows=lambda _: True).fetch_files([own, quoted])
    assert own.context.spoken == (own.attachments[0].sha256,)
    assert quoted.context.spoken == (quoted.attachments[0].sha256,)
    assert (own.context.others_words, quoted.context.others_words) == (False, True)


async def test_a_file_is_that_of_its_sender(server, tmp_path):
    """The store is told with which message it came."""
    whose = []
    store = AttachmentStore(tmp_path, is_guest=lambda message: whose.append(message.sender.address))
    server.files["m"] = b"x"
    await downloads(server, store).fetch_files([message("m")])
    assert whose == [ALICE]
