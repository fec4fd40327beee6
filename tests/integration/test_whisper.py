"""faster-whisper itself, offline, with weights that packages ship, in the process in which the daemon has it listen."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from agent_core.errors import ModelError
from agent_core.media.local_engines import LocalTranscription, engine_command
from agent_core.media.media_config import TranscribeSettings
from agent_core.media.sound_file import sound_file_of
from agent_core.media.transcript import Clip
from gateway.cli.check.voice_checks import silence
from gateway.system.clock import SystemClock
from tests.integration.speech_engines import spoken_by_espeak, whisper_engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200, func_only=True)]
TEXT = "Good morning. My favourite colour is green."


@pytest.fixture(scope="module")
def whisper() -> tuple[str, Path]:
    """The Python that has faster-whisper, and the folder of the weights."""
    return whisper_engine()


@pytest.fixture
def listener(whisper):
    python, folder = whisper

    def make(idle_minutes=10.0, max_seconds=600.0):
        wished = TranscribeSettings(
            provider="local",
            model=str(folder),
            idle_minutes=idle_minutes,
            max_seconds=max_seconds,
            language="en",
        )
        engine = LocalTranscription(wished, SystemClock())
        engine.process.command = list(engine_command("whisper", str(folder), python=python))
        return engine

    return make


def clip(content):
    return Clip(content, "sound.wav", "audio/wav", sound_file_of(content).seconds)


async def test_speech_becomes_text_without_a_network(listener, tmp_path):
    """
    Words of espeak-ng are understood, silence has none, what breaks the decoder is an error after which it goes on;
    the process is confined, and gone when nobody has asked for a while.
    """
    said = spoken_by_espeak(TEXT, "en", tmp_path)
    local = listener(idle_minutes=1 / 60)
    try:
        heard = (await local.transcribe(clip(said))).heard
        told, pid = local.process.ready_report, local.process.pid
        nothing = (await local.transcribe(clip(silence(3)))).heard
        with pytest.raises(ModelError):
            await local.transcribe(Clip(b"RIFF" + bytes(500), "sound.wav", "audio/wav", 1.0))
        with anyio.fail_after(60):
            while local.process.pid is not None:
                await anyio.sleep(0.05)
        with anyio.fail_after(60):
            while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
                await anyio.sleep(0.05)
    finally:
        await local.aclose()

    assert "favo" in heard.text.lower()
    assert "green" in heard.text.lower()
    assert nothing.text == ""
    assert told["seccomp"] == 1


async def test_a_sound_that_is_longer_than_it_says_is_given_up(listener):
    """The engine measures what it has decoded: the limit holds whatever the parts of a file say."""
    local = listener(max_seconds=1.0)
    try:
        with pytest.raises(ModelError, match="longer than its header says"):
            await local.transcribe(Clip(silence(30), "sound.wav", "audio/wav", 1.0))
    finally:
        await local.aclose()
