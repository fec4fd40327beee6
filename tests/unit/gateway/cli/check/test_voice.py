"""`squidbot check` has the provider of transcripts listen to a second of silence."""

from types import SimpleNamespace

import pytest

from agent_core.voice.sound_file import sound_file_of
from devservers.transcription import Reply, TranscriptionServer
from gateway.cli.check.report import Report, Verdict
from gateway.cli.check.voice import check_listening, silence
from gateway.settings import Settings
from gateway.system.clock import SystemClock


def settings(server, **more):
    wished = {"provider": "ears", "model": "openai/whisper-1", **more}
    return Settings.model_validate(
        {
            "llm": {"providers": {"ears": {"api_base": server.api_base, "api_key": "k"}}},
            "voice": {"transcribe": wished},
        }
    )


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [(Reply(), Verdict.OK), (Reply(status=401), Verdict.FAILED), (Reply(body=b"<html>"), Verdict.FAILED)],
)
async def test_the_provider_is_tried(reply, verdict):
    """An answer is enough; a wrong key and garbage are failures with the setting to look at."""
    report = Report()
    with TranscriptionServer() as server:
        server.always = reply
        built = SimpleNamespace(clock=SystemClock(), models=SimpleNamespace(litellm=None))
        await check_listening(report, settings(server), built)

    [finding] = report.findings
    assert finding.verdict is verdict
    assert sum(server.asked.values()) == 1


async def test_an_engine_whose_weights_are_missing_is_a_failure(tmp_path):
    """Whether the extra is installed or not: in words, and nothing is left running."""
    report = Report()
    with TranscriptionServer() as server:
        wished = settings(server, provider="local", model=str(tmp_path / "none"))
        built = SimpleNamespace(clock=SystemClock(), models=SimpleNamespace(litellm=None))
        await check_listening(report, wished, built)

    [finding] = report.findings
    assert finding.verdict is Verdict.FAILED
    assert "faster-whisper" in finding.text
    assert not server.asked


async def test_without_the_setting_nothing_is_said():
    """Nobody who does not want it reads of it."""
    report = Report()
    await check_listening(report, Settings(), SimpleNamespace())
    assert report.findings == []


def test_the_silence_is_a_sound_file():
    """A second of it."""
    assert sound_file_of(silence()).seconds == 1.0
