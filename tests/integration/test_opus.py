"""What a provider sends as WAV or MP3 becomes a voice message, in the process in which the daemon has it done."""

from __future__ import annotations

import os
import subprocess

import anyio
import pytest

from agent_core.media import local_engines
from agent_core.media.local_engines import OpusSpeech, engine_command
from agent_core.media.media_client import ProviderSpeech
from agent_core.media.sound_file import opus_in
from devservers.provider import Trouble
from devservers.speech import SpeechServer, opus_of, wav_of
from tests.integration.speech_engines import decoded, engine
from tests.unit.agent_core.media.test_speakers import speaker

pytestmark = [pytest.mark.slow]
_MP3 = (
    "import io, sys, soundfile; samples, rate = soundfile.read(io.BytesIO(sys.stdin.buffer.read()));"
    " file = io.BytesIO() if 'whole' in sys.argv else sys.stdout.buffer;"
    " soundfile.write(file, samples, rate, format='MP3');"
    " sys.stdout.buffer.write(file.getvalue() if 'whole' in sys.argv else b'')"
)


def mp3_of(python: str, wav: bytes, kind: str) -> bytes:
    """An MP3 of a varying bit rate; one that is ``whole`` knows how long it is, a ``stream`` does not."""
    return subprocess.run([python, "-c", _MP3, kind], input=wav, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def python() -> str:
    return str(engine("speech"))


@pytest.fixture
def server():
    with SpeechServer() as up:
        yield up


@pytest.fixture
def voice(server, python):
    voice = OpusSpeech(speaker(server), idle_s=1.0)
    voice.process.command = list(engine_command("opus", python=python))
    return voice


async def test_wav_and_mp3_become_voice_messages(server, voice, python):
    """
    Of several rates, and without a size as a stream has it: as long and as loud as before, with the price that it had.
    What is Opus already goes past the process, which has no network and is gone when nobody needs it.
    """
    sounds = [wav_of(2.0, 8000), wav_of(2.0, 22_050), wav_of(2.0, 44_100)]
    sounds += [mp3_of(python, wav_of(2.0, 24_000), "whole")]
    server.plan(Trouble(200, opus_of(2.0)), *(Trouble(200, sound) for sound in sounds))
    try:
        as_it_was = await voice.speak("Hello")
        assert voice.process.pid is None
        spoken = [await voice.speak("Hello") for _ in sounds]
        confined, pid = voice.process.ready_report, voice.process.pid
        with anyio.fail_after(60):
            while voice.process.pid is not None:
                await anyio.sleep(0.05)
    finally:
        await voice.aclose()

    assert as_it_was.content == opus_of(2.0)
    assert pid is not None
    assert confined["seccomp"] == 1
    for sound, one in zip(sounds, spoken, strict=True):
        assert (one.media_type, one.name) == ("audio/ogg", "Voice message.ogg")
        assert opus_in(one.content) == one.sound
        assert one.cost_usd == pytest.approx(5 * 20 / 1_000_000)
        _, seconds, _, power = decoded(python, one.content)
        assert seconds == pytest.approx(one.sound.duration_s, abs=0.05)
        assert seconds == pytest.approx(2.0, abs=0.15)  # an MP3 begins and ends with a little silence
        assert power == pytest.approx(decoded(python, sound)[3], rel=0.1)


async def test_what_cannot_be_made_opus_stays_what_it_is(server, voice, python):
    """
    A sound that was paid for is neither lost nor cut off: not by garbage, eleven minutes, a length that the decoder has
    to guess, or a process that is dead.
    """
    kept = [b"ID3" + os.urandom(3000), wav_of(661, 4000), mp3_of(python, wav_of(2.0, 24_000), "stream")]
    server.plan(*(Trouble(200, sound) for sound in kept), Trouble(200, wav_of(1.0)))
    try:
        for sound in kept:
            assert (await voice.speak("Hello")).content == sound
        await voice.process.aclose()
        voice.process.command = ["/nowhere"]
        after = await voice.speak("Hello")
    finally:
        await voice.aclose()
    assert (after.content, after.media_type, after.name) == (
        wav_of(1.0),
        "audio/wav",
        "Voice message.wav",
    )


def test_without_the_library_nothing_is_converted(server, monkeypatch):
    """The control, and the way with it: who speaks by the settings."""
    monkeypatch.setattr(local_engines, "can_make_opus", lambda: False)
    assert isinstance(speaker(server), ProviderSpeech)
    monkeypatch.setattr(local_engines, "can_make_opus", lambda: True)
    assert isinstance(speaker(server), OpusSpeech)
