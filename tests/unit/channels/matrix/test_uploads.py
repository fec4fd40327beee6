"""Files on their way out against a scripted homeserver, and the door itself against bodies that break."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web

from agent_core.messages import OutboundMessage, SessionKey
from channels.attachments import AttachmentStore, Damaged, LocalFiles, StorageUnreachable
from channels.base import ChannelUnavailable
from channels.matrix.client.homeserver import HttpAnswer, LinkBroken, MatrixCredentials
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.events.outbound_events import transaction_id
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.event_sender import NOT_ALONE, EventSender
from tests.clock import EPOCH, ManualClock
from tests.doubles.homeserver import ScriptedHomeserver, failure, member
from tests.integration.proxy import free_socket
from tests.pictures import png

BOT, ROOM = "@bot:hs.test", "!room:hs.test"
SEND = r"/send/m\.room\.message/"
STORED = HttpAnswer(200, {"content_uri": "mxc://hs.test/m"})


class UploadServer(ScriptedHomeserver):
    """Takes files as well; ``uploads`` are the answers, the last one stays."""

    def __init__(self):
        super().__init__()
        self.uploads = [STORED]
        self.uploaded = []
        self.on("GET", "/media/config", HttpAnswer(200, {"m.upload.size": 1000}))
        self.on("PUT", SEND, lambda call: HttpAnswer(200, {"event_id": f"${len(self.asked('PUT', SEND))}"}))

    async def upload(self, path, content, *, size_bytes, media_type, query=None, timeout_s=90.0):
        body = b"".join([piece async for piece in content])
        self.uploaded.append((body, media_type, dict(query or {})))
        answer = self.uploads.pop(0) if len(self.uploads) > 1 else self.uploads[0]
        if isinstance(answer, LinkBroken):
            raise answer
        return answer

    def said(self):
        return [call.body for call in self.asked("PUT", SEND)]


class Setup:
    def __init__(self, tmp_path, *people, server=None, store=None, crypto=None):
        self.server = server or UploadServer()
        self.store = store or AttachmentStore(tmp_path / "home")
        self.now = EPOCH
        self.marks = 0
        config = MatrixConfig(homeserver="http://hs", user_id=BOT, password="pw")
        rooms = self.rooms = Rooms(BOT)
        state = [member(BOT), *(member(one) for one in people)]
        rooms.update({"rooms": {"join": {ROOM: {"state": {"events": state}}}}})
        login = MatrixLogin(config, self.server, tmp_path, ManualClock())
        self.sending = EventSender(
            config, self.server, login, rooms,
            is_current=lambda: True, now=lambda: self.now, attachments=self.store, crypto=crypto,
        )  # fmt: skip

    async def deliver(self, *files, **fields):
        values = {
            "id": "row-1", "channel": "matrix", "account": BOT, "session": SessionKey("matrix", ROOM),
            "text": "Here.", "created_at": EPOCH, "attachments": files,
        }  # fmt: skip
        message = OutboundMessage(**{**values, **fields})
        await self.sending.deliver(message, uncertain=self.mark)
        return message

    async def mark(self):
        self.marks += 1


@pytest.fixture
def it(tmp_path):
    return Setup(tmp_path)


async def test_each_file_is_an_event_with_a_name_of_its_own(it):
    """Transaction ids derive from the message; in a thread the files are in it, and nobody is mentioned anew."""
    files = [await it.store.save(f"{n}.txt", "text/plain", str(n).encode()) for n in range(2)]
    context = {"route": {"event_id": "$q", "sender": "@a:hs", "thread": "$root"}}
    message = await it.deliver(*files, context=context)
    names = [call.path.rpartition("/")[2] for call in it.server.asked("PUT", SEND)]
    assert names == [transaction_id(message.id) + end for end in ("", ".f0", ".f1")]
    text, *sent = it.server.said()
    assert [content["body"] for content in sent] == ["0.txt", "1.txt"]
    assert all(content["m.relates_to"]["event_id"] == "$root" for content in sent)
    assert text["m.mentions"] == {"user_ids": ["@a:hs"]}
    assert all(content["m.mentions"] == {} for content in sent)
    assert it.server.uploaded[0] == (b"0", "text/plain", {"filename": "0.txt"})


@pytest.mark.parametrize("trouble", [Damaged("x"), FileNotFoundError(), StorageUnreachable("away")])
async def test_a_file_that_cannot_be_read_to_its_end_is_no_broken_link(tmp_path, trouble):
    """
    For the homeserver's client a body that ends too early is a connection that broke, which is tried for two days. What
    is damaged, or gone, is told in its place at once; a store that is away is tried again.
    """

    class Spoiled(LocalFiles):
        left = 1

        def read(self, path, size, *, offset, max_bytes):
            if self.left == 0:
                raise trouble
            self.left -= 1
            return super().read(path, size, offset=offset, max_bytes=max_bytes)

    class Breaks(UploadServer):
        async def upload(self, path, content, **more):
            try:
                return await super().upload(path, content, **more)
            except Exception as error:
                raise LinkBroken("the body ended", maybe_taken=False) from error

    (tmp_path / "shared/attachments").mkdir(parents=True)
    storage = Spoiled(tmp_path / "shared", elsewhere=True)
    it = Setup(tmp_path, server=Breaks(), store=AttachmentStore(tmp_path / "home", storage=storage))
    file = await it.store.save("a.txt", "text/plain", b"content")
    if isinstance(trouble, StorageUnreachable):
        with pytest.raises(ChannelUnavailable, match="cannot be read: away"):
            await it.deliver(file)
        return
    await it.deliver(file)
    why = "damaged" if isinstance(trouble, Damaged) else "no longer kept"
    assert why in str(it.server.said()[-1])
    assert it.server.uploaded == []


async def test_what_was_stored_is_not_stored_again_by_a_second_try(it):
    """A send that broke is repeated with the same address."""
    file = await it.store.save("a.png", "image/png", png())
    it.server.on("PUT", r"\.f0$", LinkBroken("cut", maybe_taken=True), HttpAnswer(200, {"event_id": "$f"}))
    with pytest.raises(Exception, match="cut"):
        await it.deliver(file)
    await it.deliver(file)
    assert len(it.server.uploaded) == 1
    assert {call.body["url"] for call in it.server.asked("PUT", r"\.f0$")} == {"mxc://hs.test/m"}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([failure(413, "M_TOO_LARGE")], "rejects it as too large"),
        ([failure(413)], "rejects it as too large"),
        ([failure(403, "M_FORBIDDEN")], "does not accept it from me"),
    ],
)
async def test_a_refused_file_becomes_a_sentence(it, answers, reason):
    """Under the file's own name, so that a repetition says it once."""
    it.server.uploads = answers
    message = await it.deliver(await it.store.save("a.txt", "text/plain", b"x"))
    assert it.server.said()[1]["body"].startswith("I cannot send you the file 'a.txt': ")
    assert reason in it.server.said()[1]["body"]
    assert it.server.asked("PUT", SEND)[1].path.endswith(f"{transaction_id(message.id)}.f0")


async def test_a_file_over_the_servers_limit_is_not_sent_at_all(it, tmp_path):
    """What the server says of its limit decides; one that says nothing is tried."""
    await it.deliver(await it.store.save("a.txt", "text/plain", b"x" * 1001))
    assert it.server.uploaded == []
    assert "this homeserver accepts" in it.server.said()[1]["body"]
    silent = Setup(tmp_path / "other")
    silent.server.on("GET", "/media/config", failure(404, "M_UNRECOGNIZED"))
    await silent.deliver(await silent.store.save("a.txt", "text/plain", b"x" * 1001))
    assert len(silent.server.uploaded) == 1


async def test_a_file_that_is_gone_is_told(it):
    """The answer arrives, and says that the file does not."""
    file = await it.store.save("a.txt", "text/plain", b"x")
    it.store.path(file).unlink()
    await it.deliver(file)
    assert "no longer kept" in it.server.said()[1]["body"]


@pytest.mark.parametrize(
    "answer", [LinkBroken("cut", maybe_taken=True), failure(502), failure(429, "M_LIMIT_EXCEEDED")]
)
async def test_what_may_pass_is_for_the_outbox_to_repeat(it, answer):
    """No sentence, no event: the delivery fails for now, and the next try sends the file."""
    it.server.uploads = [answer, STORED]
    file = await it.store.save("a.txt", "text/plain", b"x")
    with pytest.raises(ChannelUnavailable):
        await it.deliver(file)
    assert len(it.server.said()) == 1
    await it.deliver(file)
    assert it.server.said()[-1]["msgtype"] == "m.file"


async def test_no_file_goes_to_people_who_came_in_meanwhile(tmp_path):
    """A private answer is withheld with all that belongs to it; its voice message says nothing more of that."""
    it = Setup(tmp_path, "@alice:hs.test", "@eve:hs.test")
    it.server.on(
        "GET",
        "/members",
        HttpAnswer(200, {"chunk": [member(one) for one in (BOT, "@alice:hs.test", "@eve:hs.test")]}),
    )
    context = {"route": {"event_id": "$q", "sender": "@alice:hs.test", "direct": True}}
    await it.deliver(await it.store.save("a.txt", "text/plain", b"x"), context=context)
    sound = await it.store.save("Voice message.ogg", "audio/ogg", b"OggS")
    await it.deliver(sound, text="", context={**context, "speech": {}})
    assert [content["body"] for content in it.server.said()] == [NOT_ALONE]
    assert it.server.uploaded == []
    # The control: what is no voice message says so.
    await it.deliver(sound, text="", context=context)
    assert [content["body"] for content in it.server.said()] == [NOT_ALONE] * 2


class Covers:
    """Encrypts, and keeps what it has encrypted."""

    def __init__(self):
        self.covered = []

    async def encrypt(self, room_id, kind, content, members):
        self.covered.append(dict(content))
        return {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "…"}


async def test_a_room_that_becomes_encrypted_during_an_upload_gets_neither_event_nor_file_in_clear(tmp_path):
    """An upload takes its time. The file is stored once more, encrypted; the event says where, and is encrypted."""

    class BecomesSecret(UploadServer):
        async def upload(self, *given, **more):
            rooms.is_secret(ROOM)
            return await super().upload(*given, **more)

    crypto = Covers()
    it = Setup(tmp_path, server=BecomesSecret(), crypto=crypto)
    rooms = it.rooms
    it.server.on("PUT", "/send/m.room.encrypted/", HttpAnswer(200, {"event_id": "$secret"}))
    it.server.on("GET", "/members", HttpAnswer(200, {"chunk": [member(BOT)]}))
    sound = await it.store.save("Voice message.ogg", "audio/ogg", b"OggS and what was said")
    told = {"duration_ms": 1000, "waveform": [1, 2]}
    await it.deliver(sound, text="", context={"speech": told})

    assert it.server.said() == []
    [content] = crypto.covered
    assert content["msgtype"] == "m.audio"
    assert "org.matrix.msc3245.voice" in content
    assert content["file"]["url"] == "mxc://hs.test/m"
    assert "url" not in content
    body, media_type, query = it.server.uploaded[-1]
    assert (media_type, query) == ("application/octet-stream", {})
    assert b"what was said" not in body


async def test_a_file_that_was_sent_long_ago_is_found_by_its_mark(it):
    """When transaction ids may be forgotten, the room is looked through before anything is sent twice."""
    file = await it.store.save("a.txt", "text/plain", b"x")
    message = await it.deliver(file)
    events = [
        {"event_id": f"$old{n}", "sender": BOT, "type": "m.room.message", "content": content}
        for n, content in enumerate(it.server.said())
    ]
    it.server.on("GET", "/messages", HttpAnswer(200, {"chunk": events}))
    it.now = EPOCH.replace(day=20)
    await it.deliver(file, id=message.id)
    assert len(it.server.said()) == 2
    # The control: a message that is not there is sent.
    await it.deliver(file, id="another")
    assert len(it.server.said()) == 4


# ── the door itself ──


@asynccontextmanager
async def serving(handle):
    from channels.matrix.client.nio_homeserver import NioHomeserver

    app = web.Application(client_max_size=10**7)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    listening = free_socket()
    await web.SockSite(runner, listening).start()
    homeserver = NioHomeserver(f"http://127.0.0.1:{listening.getsockname()[1]}", BOT)
    homeserver.credentials = MatrixCredentials(BOT, "DEV", "token")
    try:
        yield homeserver
    finally:
        await homeserver.aclose()
        await runner.cleanup()


async def fetched(homeserver):
    async with homeserver.download("/f") as download:
        return download.answer, b"".join([piece async for piece in download.chunks])


async def test_a_download_comes_in_pieces_and_with_the_token():
    """Content and size; a refusal is an answer with its code."""
    seen = []

    async def handle(request):
        seen.append(dict(request.headers))
        if request.path == "/no":
            return web.json_response({"errcode": "M_NOT_FOUND"}, status=404)
        return web.Response(body=b"x" * 500_000)

    async with serving(handle) as homeserver:
        assert await fetched(homeserver) == (HttpAnswer(200, {}), b"x" * 500_000)
        async with homeserver.download("/no", anonymous=True) as download:
            assert (download.answer.status, download.answer.errcode) == (404, "M_NOT_FOUND")
            assert [piece async for piece in download.chunks] == []
    assert seen[0]["Authorization"] == "Bearer token"
    assert seen[0]["Accept-Encoding"] == "identity"
    assert "Authorization" not in seen[1]


async def test_a_download_that_is_cut_or_left_ends():
    """A missing end is a broken link; leaving early closes the connection, however much is still to come."""
    gone = anyio.Event()

    async def handle(request):
        response = web.StreamResponse(headers={"Content-Length": "100000"} if request.path == "/f" else {})
        await response.prepare(request)
        await response.write(b"begun")
        if request.path == "/f":
            request.transport.close()
            return response
        try:
            while True:
                await response.write(b"x" * 10_000)
                await anyio.sleep(0.001)
        finally:
            gone.set()

    async with serving(handle) as homeserver:
        with pytest.raises(LinkBroken):
            await fetched(homeserver)
        async with homeserver.download("/endless") as download:
            async for _ in download.chunks:
                break
        with anyio.fail_after(60):
            await gone.wait()


async def test_an_upload_says_how_long_it_is():
    """Servers want to know before they take it; the body is what the pieces were."""
    seen = []

    async def handle(request):
        seen.append((request.headers.get("Content-Length"), request.content_type, await request.read()))
        return web.json_response({"content_uri": "mxc://a/b"})

    async def pieces():
        for _ in range(3):
            yield b"x" * 100_000

    async with serving(handle) as homeserver:
        answer = await homeserver.upload("/u", pieces(), size_bytes=300_000, media_type="text/plain")
    assert answer.body == {"content_uri": "mxc://a/b"}
    assert seen == [("300000", "text/plain", b"x" * 300_000)]
