"""
Both engines of this machine in the real daemon: somebody speaks into a Matrix room, in clear or encrypted, faster-whisper
hears it, and the answer comes as text and in Piper's voice, in which another program finds what was said.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial

import pytest

from agent_core.media.local_engines import LocalTranscription, engine_command
from agent_core.media.media_config import TranscribeSettings
from agent_core.media.sound_file import opus_in
from agent_core.media.transcript import Clip
from channels.matrix.events.media_events import FileDecryption, media_in
from gateway.system.clock import SystemClock
from tests.daemon import Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.integration.speech_engines import (
    as_opus,
    decoded,
    piper_engine,
    spoken_by_espeak,
    whisper_engine,
)
from tests.integration.test_matrix_media import fetch
from tests.integration.test_speaking import SECONDS, is_voice, said
from tests.integration.test_voice_messages import Room

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800, func_only=True)]
ENGLISH = "Good morning. My favourite colour is green."
GERMAN = "Guten Morgen. Meine Schwester wohnt in Hamburg."
WITHIN_S = 600


def settings(synapse, bot, alice, uma, weights, voice):
    return {
        "owner": {"aliases": [alice.user_id]},
        "llm": {"models": {"demo": {"model": "demo/echo"}}, "pools": {"main": ["demo"]}},
        "agents": {"heartbeat": {"enabled": False}},
        "voice": {
            "transcribe": {"provider": "local", "model": str(weights)},
            "speak": {"provider": "local", "model": str(voice), "timeout_s": 110},
        },
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, alice.user_id, uma.user_id)
        },
    }


def opened(peer, content):
    """The sound of a voice message in an encrypted room, which the homeserver has without its key."""
    stored = fetch(peer, content["file"]["url"])[1]
    assert not stored.startswith(b"OggS")
    decryption = FileDecryption(media_in("m.room.message", content).secret)
    sound = decryption.decrypt(stored)
    decryption.finish()
    return sound


def encrypted(person, room):
    """What the bot has said in an encrypted room, nothing of it in clear."""
    found = person.read(room)
    assert {wire for wire, _ in found} <= {"m.room.encrypted"}
    return [content for _, content in found]


async def heard_in(listens, weights, sound, seconds):
    """What faster-whisper, in a process beside the daemon's, hears in a sound."""
    wished = TranscribeSettings(provider="local", model=str(weights))
    engine = LocalTranscription(wished, SystemClock())
    engine.process.command = list(engine_command("whisper", str(weights), python=listens))
    try:
        return (await engine.transcribe(Clip(sound, "sound.ogg", "audio/ogg", seconds))).heard.text.lower()
    finally:
        await engine.aclose()


async def test_what_is_said_is_heard_and_answered_aloud_on_this_machine(
    synapse, fresh_credentials, fresh_user, tmp_path
):
    """
    English, then German in an encrypted room, without a setting for either: the words stay in the language in which
    they were said, each has one text and one voice message, in the voice of the settings, that is Opus with the
    duration that it tells.
    """
    (listens, weights), (speaks, voice) = whisper_engine(), piper_engine()
    bot, alice = fresh_credentials("bot"), fresh_user("alice")
    uma = SecretPeer(synapse.url, fresh_credentials("uma"), tmp_path / "uma")
    with (
        Daemon(tmp_path / "home", settings(synapse, bot, alice, uma, weights, voice)) as daemon,
        closing(uma),
    ):
        daemon.module = "tests.integration.engines_daemon"
        daemon.environment = {"SQUIDBOT_TEST_LISTENS": listens, "SQUIDBOT_TEST_SPEAKS": speaks}
        daemon.up()
        plain, secret = Room(alice, bot.user_id), Room(uma.peer, bot.user_id, uma)
        answers = {plain: partial(said, alice, plain.room, bot), secret: lambda: encrypted(uma, secret.room)}
        for place, language, text in ((plain, "en", ENGLISH), (secret, "de", GERMAN)):
            daemon.wait_until(lambda: bot.user_id in place.person.members(place.room))  # noqa: B023 - at once
            place.speak(as_opus(speaks, spoken_by_espeak(text, language, tmp_path)))
            daemon.wait_until(lambda: len(answers[place]()) == 2, within_s=WITHIN_S)  # noqa: B023 - at once
        daemon.wait_until(lambda: daemon.work("inbox", "settled") == 2)
        time.sleep(1)
        (english, spoken), (german, gesprochen) = answers[plain](), answers[secret]()
        log = daemon.log()
        sounds = [fetch(alice, spoken["url"])[1], opened(uma.peer, gesprochen)]

    assert "green" in english["body"].lower()
    assert "guten morgen" in german["body"].lower()  # nothing was translated
    assert "hamburg" in german["body"].lower()
    lasts = []
    for told, content in zip((spoken, gesprochen), sounds, strict=True):
        assert is_voice(told)
        assert told["info"]["mimetype"] == "audio/ogg"
        assert opus_in(content) is not None
        _, seconds, peak, power = decoded(speaks, content)
        lasts.append(seconds)
        assert told[SECONDS]["duration"] == pytest.approx(seconds * 1000, abs=100)
        assert len(set(told[SECONDS]["waveform"])) > 20
        assert peak > 0.1
        assert power > 0.01
    assert "green" in await heard_in(listens, weights, sounds[0], lasts[0])
    assert log.count('"engine":"faster-whisper"') == 2
    assert log.count('"engine":"piper"') == 2
