"""Piper itself, offline, with a voice that a package ships, in the process in which the daemon has it speak."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from agent_core.errors import ModelError
from agent_core.media.local_engines import LocalSpeech, engine_command
from agent_core.media.media_config import SpeakSettings
from gateway.system.clock import SystemClock
from tests.integration.speech_engines import decoded, piper_engine

TEXT = "This is said by a machine. It has two sentences."


@pytest.fixture(scope="module")
def piper() -> tuple[str, Path]:
    """The Python that has Piper, and the file of the voice."""
    return piper_engine()


def speaker(piper: tuple[str, Path], *, voice: str = "", idle_minutes: float = 10.0) -> LocalSpeech:
    python, model = piper
    file = voice or str(model)
    settings = SpeakSettings(provider="local", model=file, idle_minutes=idle_minutes, timeout_s=60)
    engine = LocalSpeech(settings, SystemClock())
    engine.process.command = list(engine_command("piper", file, python=python))
    return engine


async def test_a_text_is_spoken_without_a_network(piper, capsys):
    """
    It comes as Opus in Ogg with a duration and a waveform, of a voice and not of silence; the process, which has no
    network, tells its memory, serves again, and is gone when nobody has asked for a while.
    """
    local = speaker(piper, idle_minutes=1 / 60)
    try:
        spoken = await local.speak(TEXT)
        pid = local.process.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.nice(0) + 5)
        assert await local.speak("☃") is not None  # nothing that it can read
        assert local.process.pid == pid
        confined = local.process.ready_report
        with anyio.fail_after(60):
            while local.process.pid is not None:
                await anyio.sleep(0.05)
        with anyio.fail_after(60):
            while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
                await anyio.sleep(0.05)
        again = await local.speak("Again.")
    finally:
        await local.aclose()

    assert spoken.media_type == "audio/ogg"
    assert (spoken.calls, spoken.cost_usd) == (0, 0.0)
    assert spoken.sound is not None
    assert 1.5 < spoken.sound.duration_s < 10
    assert len(set(spoken.sound.waveform)) > 20
    rate, seconds, peak, power = decoded(piper[0], spoken.content)
    assert seconds == pytest.approx(spoken.sound.duration_s, abs=0.1)
    assert rate in (24_000, 48_000)
    assert peak > 0.1
    assert power > 0.01
    assert again.sound is not None
    assert set(confined) >= {"landlock", "seccomp", "load_s"}
    assert "memory_mb=" in capsys.readouterr().out


async def test_a_voice_that_is_not_there_is_said_plainly(piper, tmp_path):
    """The engine does not start, and the reason names the file."""
    local = speaker(piper, voice=str(tmp_path / "none.onnx"))
    try:
        with pytest.raises(ModelError) as raised:
            await local.speak(TEXT)
    finally:
        await local.aclose()
    assert "none.onnx" in str(raised.value)
