"""Answers by voice from the real daemon: on a real Synapse, plain and encrypted, and a real mail server."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
import threading
import time
from contextlib import closing
from urllib.parse import quote

import pytest
from anyio.to_thread import run_sync

from agent_core.media.sound_file import opus_in
from channels.matrix.events.media_events import FileDecryption, media_in
from devservers import SpeechServer, Trouble, text_of
from devservers.speech import opus_of, wav_of
from devservers.transcription import TranscriptionServer
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.element.client import Person
from tests.integration.secret_peer import SecretPeer
from tests.integration.test_matrix_media import about, fetch, upload
from tests.sounds import ogg_opus

VOICE = "org.matrix.msc3245.voice"
SECONDS = "org.matrix.msc1767.audio"


@pytest.fixture
def speech():
    with SpeechServer() as server:
        yield server


def speaking(speech, owner, channels, **speak):
    """A configuration with the echoing model, whose answers are spoken."""
    return {
        "owner": {"aliases": [owner]},
        "llm": {
            "providers": {"p": {"api_base": speech.api_base, "api_key": "key-of-the-voice"}},
            "models": {"demo": {"model": "demo/echo"}},
            "pools": {"main": ["demo"]},
        },
        "agents": {"heartbeat": {"enabled": False}},
        "voice": {"speak": {"provider": "p", "model": "openai/tts-x", "voice": "nova", **speak}},
        "channels": channels,
    }


def said(peer, room, bot):
    """What the bot has said, in order: texts, and the contents of voice messages."""
    return [event.content for event in peer.history(room, limit=200) if event.sender == bot.user_id]


def is_voice(content):
    return VOICE in content


def test_a_voice_message_is_answered_by_text_and_voice(
    synapse, speech, fresh_credentials, fresh_user, tmp_path
):
    """
    With ``same`` a text gets a text, a voice message a text and then a voice message; Markdown is not read out.
    """
    bot, alice = fresh_credentials("bot"), fresh_user("alice")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, alice.user_id)
    with Daemon(tmp_path / "home", speaking(speech, alice.user_id, {"matrix": matrix})) as daemon:
        daemon.up()
        room = alice.create_room(invite=[bot.user_id], is_direct=True)
        daemon.wait_until(lambda: bot.user_id in alice.members(room))
        alice.send(room, "only written")
        daemon.wait_until(lambda: len(said(alice, room, bot)) == 1)
        voice = about(
            "m.audio", "**Say** [this](https://x.test/y) `now`", filename="Voice message.ogg",
            url=upload(alice, opus_of(1.0)), info={"mimetype": "audio/ogg"}, **{VOICE: {}},
        )  # fmt: skip
        alice.send_event(room, "m.room.message", voice)
        daemon.wait_until(lambda: len(said(alice, room, bot)) == 3)
        daemon.wait_until(lambda: daemon.work("inbox", "settled") == 2)
        time.sleep(1)
        written, text, spoken = said(alice, room, bot)
        status = daemon.asked("/status")[1]["speech"]

    assert "only written" in written["body"]
    assert not is_voice(written) and not is_voice(text)
    assert "[this](https://x.test/y)" in text["body"]
    assert spoken["msgtype"] == "m.audio"
    assert is_voice(spoken)
    content = fetch(alice, spoken["url"])[1]
    sound = opus_in(content)
    assert spoken[SECONDS] == {"duration": round(sound.duration_s * 1000), "waveform": list(sound.waveform)}
    assert spoken["info"]["mimetype"] == "audio/ogg"
    assert spoken["info"]["size"] == len(content)
    [asked] = speech.asked
    assert "Say this now" in asked["input"]
    assert (asked["model"], asked["voice"], asked["response_format"]) == ("tts-x", "nova", "opus")
    assert speech.keys == ["Bearer key-of-the-voice"]
    assert status == {"spoken": 1, "not_spoken": 0, "trouble": None}


def test_in_an_encrypted_room_the_sound_is_encrypted(synapse, speech, fresh_credentials, tmp_path):
    """The event is encrypted, the homeserver has no sound that anybody could play, and the hash is right."""
    bot = fresh_credentials("bot")
    person = SecretPeer(synapse.url, fresh_credentials("alice"), tmp_path / "alice")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, person.user_id)
    settings = speaking(speech, person.user_id, {"matrix": matrix}, when="always")
    try:
        with Daemon(tmp_path / "home", settings) as daemon:
            daemon.up()
            room = person.create_room(bot.user_id)
            daemon.wait_until(lambda: bot.user_id in person.peer.members(room))
            person.send(room, "Tell me", to=bot.user_id)
            daemon.wait_until(lambda: len(person.read(room)) == 2)
        (kind, text), (wire, spoken) = person.read(room)
    finally:
        person.close()

    assert (kind, wire) == ("m.room.encrypted", "m.room.encrypted")
    assert "Tell me" in text["body"]
    assert is_voice(spoken)
    assert "url" not in spoken
    stored = fetch(person.peer, spoken["file"]["url"])[1]
    assert not stored.startswith(b"OggS")
    decryption = FileDecryption(media_in("m.room.message", spoken).secret)
    opened = decryption.decrypt(stored)
    decryption.finish()
    assert opus_in(opened).duration_s * 1000 == pytest.approx(spoken[SECONDS]["duration"], abs=1)


def test_a_room_that_becomes_encrypted_between_text_and_voice(synapse, speech, fresh_credentials, tmp_path):
    """The text went out in clear, as the room was then; the voice message is encrypted, and its file is."""
    bot = fresh_credentials("bot")
    person = SecretPeer(synapse.url, fresh_credentials("alice"), tmp_path / "alice")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, person.user_id)
    settings = speaking(speech, person.user_id, {"matrix": matrix}, when="always")
    changed = threading.Event()
    with closing(person), Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        room = person.peer.create_room(invite=[bot.user_id], is_direct=True)
        daemon.wait_until(lambda: bot.user_id in person.peer.members(room))
        speech.plan(Trouble(200, opus_of(2.0), until=changed))
        person.peer.send(room, "Tell me")
        daemon.wait_until(lambda: len(speech.asked) == 1 and len(person.read(room)) == 1)
        person.encrypt(room)
        changed.set()
        daemon.wait_until(lambda: len(person.read(room)) == 2)
        [(first, text), (second, spoken)] = person.read(room)
    assert (first, second) == ("m.room.message", "m.room.encrypted")
    assert "Tell me" in text["body"]
    assert is_voice(spoken)
    assert "url" not in spoken
    assert not fetch(person.peer, spoken["file"]["url"])[1].startswith(b"OggS")


def test_a_bot_that_is_removed_between_text_and_voice(
    synapse, speech, fresh_credentials, fresh_user, tmp_path
):
    """It is not spoken into any other place, nobody is told a second time, and the daemon goes on."""
    bot, alice, bob = fresh_credentials("bot"), fresh_user("alice"), fresh_user("bob")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, bob.user_id)
    settings = speaking(speech, alice.user_id, {"matrix": matrix}, when="always")
    changed = threading.Event()
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        rooms = {each: each.create_room(invite=[bot.user_id]) for each in (alice, bob)}
        for person, room in rooms.items():
            daemon.wait_until(lambda: bot.user_id in person.members(room))  # noqa: B023 - at once
        speech.plan(Trouble(200, opus_of(2.0), until=changed))
        bob.send(rooms[bob], "Tell me")
        daemon.wait_until(lambda: len(speech.asked) == 1 and len(said(bob, rooms[bob], bot)) == 1)
        bob.call("POST", f"/rooms/{quote(rooms[bob])}/kick", {"user_id": bot.user_id})
        changed.set()
        daemon.wait_until(lambda: daemon.work("outbox", "dead") == 1)  # given up with the room
        alice.send(rooms[alice], "And me")
        daemon.wait_until(lambda: len(said(alice, rooms[alice], bot)) == 2)
        told = [each["body"] for each in said(alice, rooms[alice], bot)]
    assert not any("Tell me" in text for text in told)
    assert len(said(bob, rooms[bob], bot)) == 1
    assert len(speech.asked) == 2


async def test_element_hears_it(modules, synapse, speech, fresh_credentials, tmp_path):
    """matrix-js-sdk decrypts a voice message with a duration and a waveform, and its file with the right hash."""
    bot, account = fresh_credentials("bot"), fresh_credentials("uma")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, account.user_id)
    settings = speaking(speech, account.user_id, {"matrix": matrix}, when="always")
    with Daemon(tmp_path / "home", settings) as daemon:
        await run_sync(daemon.up)
        async with Person.up(modules, synapse.url, account) as uma:
            await uma.do("bootstrap", password=account.password)
            room = await uma.do("create", invite=[bot.user_id], encrypted=True)
            await uma.do("joined", room=room, user=bot.user_id)
            await uma.do("send", room=room, text="Speak to me")
            shown = await uma.until(lambda event: event["content"].get("msgtype") == "m.audio")
            opened = await uma.do("openFile", file=shown["content"]["file"])

    assert (shown["wire"], shown["unreadable"], shown["shield"]) == ("m.room.encrypted", None, 0)
    assert opened["right"]
    assert is_voice(shown["content"])
    assert shown["content"][SECONDS]["duration"] > 0
    assert max(shown["content"][SECONDS]["waveform"]) == 1024


async def test_element_is_heard_and_hears_the_answer(modules, synapse, speech, fresh_credentials, tmp_path):
    """A voice message that matrix-js-sdk sends into an encrypted room: its very sound is listened to, and answered so."""
    bot, account = fresh_credentials("bot"), fresh_credentials("uma")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, account.user_id)
    settings = speaking(speech, account.user_id, {"matrix": matrix})
    sound = ogg_opus(2.0, says="when do herons nest")
    content = {
        "msgtype": "m.audio",
        "body": "Voice message.ogg",
        "info": {"mimetype": "audio/ogg", "duration": 2000, "size": len(sound)},
        SECONDS: {"duration": 2000, "waveform": [0, 512, 1024]},
        VOICE: {},
    }
    with TranscriptionServer() as ears:
        settings["llm"]["providers"]["ears"] = {"api_base": ears.api_base}
        settings["voice"]["transcribe"] = {"provider": "ears", "model": "openai/whisper-x"}
        with Daemon(tmp_path / "home", settings) as daemon:
            await run_sync(daemon.up)
            async with Person.up(modules, synapse.url, account) as uma:
                await uma.do("bootstrap", password=account.password)
                room = await uma.do("create", invite=[bot.user_id], encrypted=True)
                await uma.do("joined", room=room, user=bot.user_id)
                await uma.do("sendFile", room=room, content=content, base64=base64.b64encode(sound).decode())
                text = await uma.until(lambda event: event["content"].get("msgtype") == "m.text")
                shown = await uma.until(lambda event: event["content"].get("msgtype") == "m.audio")
                opened = await uma.do("openFile", file=shown["content"]["file"])
        heard = dict(ears.answered)

    assert heard == {hashlib.sha256(sound).hexdigest(): 1}
    assert "when do herons nest" in text["content"]["body"]
    for each in (text, shown):
        assert (each["wire"], each["unreadable"], each["shield"]) == ("m.room.encrypted", None, 0)
    assert opened["right"]
    assert is_voice(shown["content"])
    [asked] = speech.asked
    assert "when do herons nest" in asked["input"]


def test_by_mail_it_comes_as_a_file_behind_the_answer(mail_server, speech, fresh_mailbox, tmp_path):
    """A mail with a sound gets the answer at once and its sound in a second mail of the thread."""
    bot, alice = fresh_mailbox("bot"), fresh_mailbox("alice")
    email = email_settings(mail_server, bot.address, bot.password, alice.address)
    with Daemon(tmp_path / "home", speaking(speech, alice.address, {"email": email})) as daemon:
        daemon.up()
        sent = alice.send(
            bot.address, "Dictated", "Read this out", attachments=[("note.ogg", "audio/ogg", opus_of(2))]
        )

        def answers():
            return [mail for mail in alice.list() if mail["In-Reply-To"] == sent]

        daemon.wait_until(lambda: len(answers()) == 2)
        daemon.wait_until(lambda: daemon.work("inbox", "settled") == 1)
        text, voice = sorted(answers(), key=lambda mail: len(list(mail.iter_attachments())))

    assert "Read this out" in text_of(text)
    assert not list(text.iter_attachments())
    [file] = voice.iter_attachments()
    assert (file.get_content_type(), file.get_filename()) == ("audio/ogg", "Voice message.ogg")
    assert opus_in(file.get_content()).duration_s > 0
    assert "My last answer, spoken" in text_of(voice)


def test_what_cannot_be_spoken_leaves_the_text(synapse, speech, fresh_credentials, fresh_user, tmp_path):
    """
    A refusal, a page instead of a sound: the text stands alone and the log says why once. Too many requests
    and a broken server are asked again; what is WAV comes as a file of that.
    """
    bot, alice = fresh_credentials("bot"), fresh_user("alice")
    matrix = matrix_settings(synapse, bot.user_id, bot.password, alice.user_id, batching="each")
    settings = speaking(speech, alice.user_id, {"matrix": matrix}, when="always", usd_per_million_chars=1e6)
    speech.plan(
        Trouble(400, b'{"error": {"message": "no such voice"}}'),
        Trouble(200, b"<html>sorry</html>"),
        Trouble(429, b"{}", headers={"Retry-After": "1"}),
        Trouble(503, b"{}"),
        Trouble(200, wav_of(1.5)),
    )
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        room = alice.create_room(invite=[bot.user_id], is_direct=True)
        daemon.wait_until(lambda: bot.user_id in alice.members(room))
        for number in (1, 2, 3):
            alice.send(room, f"#{number}")
            daemon.wait_until(lambda: daemon.work("inbox", "settled") == number)  # noqa: B023 - used at once
        status, log, found = daemon.asked("/status")[1], daemon.log(), said(alice, room, bot)
        paid = [len(asked["input"]) for asked in (speech.asked[1], speech.asked[-1])]
        with closing(sqlite3.connect(f"file:{daemon.home / 'gateway.db'}?mode=ro", uri=True)) as db:
            sums = "SELECT SUM(calls), SUM(cost_usd) FROM usage WHERE purpose = 'speech'"
            counted = db.execute(sums).fetchone()

    assert [content["msgtype"] for content in found] == ["m.text", "m.text", "m.text", "m.audio"]
    assert found[3]["info"]["mimetype"] == "audio/wav"
    assert not is_voice(found[3])  # clients refuse a voice message of WAV, and play a file of it
    assert counted == (2, pytest.approx(sum(paid)))  # the page was paid, too
    assert log.count("speech.failed") == 2
    assert "no such voice" in log
    assert status["speech"] == {"spoken": 1, "not_spoken": 2, "trouble": None}
    assert status["work"]["outbox"]["dead"] == 0
