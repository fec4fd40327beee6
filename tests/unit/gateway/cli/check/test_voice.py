"""`squidbot check` has the provider of transcripts listen to a second of silence, and one word spoken."""

from types import SimpleNamespace

import pytest

from agent_core.media.sound_file import sound_file_of
from devservers.provider import Trouble
from devservers.speech import SpeechServer
from devservers.transcription import Reply, TranscriptionServer
from gateway.cli.check.check_report import CheckReport, FindingLevel
from gateway.cli.check.voice_checks import check_listening, check_speaking, silence
from gateway.operations.render import _speech
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
    [
        (Reply(), FindingLevel.OK),
        (Reply(status=401), FindingLevel.FAILED),
        (Reply(body=b"<html>"), FindingLevel.FAILED),
    ],
)
async def test_the_provider_is_tried(reply, verdict):
    """An answer is enough; a wrong key and garbage are failures with the setting to look at."""
    report = CheckReport()
    with TranscriptionServer() as server:
        server.always = reply
        built = SimpleNamespace(clock=SystemClock(), models=SimpleNamespace(litellm=None))
        await check_listening(report, settings(server), built)

    [finding] = report.findings
    assert finding.verdict is verdict
    assert sum(server.asked.values()) == 1


async def test_an_engine_whose_weights_are_missing_is_a_failure(tmp_path):
    """Whether the extra is installed or not: in words, and nothing is left running."""
    report = CheckReport()
    with TranscriptionServer() as server:
        wished = settings(server, provider="local", model=str(tmp_path / "none"))
        built = SimpleNamespace(clock=SystemClock(), models=SimpleNamespace(litellm=None))
        await check_listening(report, wished, built)

    [finding] = report.findings
    assert finding.verdict is FindingLevel.FAILED
    assert "faster-whisper" in finding.text
    assert not server.asked


@pytest.mark.parametrize(
    ("trouble", "verdict"), [((), FindingLevel.OK), ((Trouble(401, b"{}"),), FindingLevel.FAILED)]
)
async def test_one_word_is_spoken(trouble, verdict):
    """A sound is enough; a wrong key is a failure with the setting to look at. With ``never`` nobody is asked."""
    report = CheckReport()
    with SpeechServer() as server:
        server.plan(*trouble)
        built = SimpleNamespace(clock=SystemClock(), models=SimpleNamespace(litellm=None))
        for when in ("same", "never"):
            wished = {"provider": "mouth", "model": "openai/tts-1", "when": when}
            given = {
                "llm": {"providers": {"mouth": {"api_base": server.api_base}}},
                "voice": {"speak": wished},
            }
            await check_speaking(report, Settings.model_validate(given), built)

    [finding] = report.findings
    assert (finding.part, finding.verdict) == ("spoken answers", verdict)
    assert [each["input"] for each in server.asked] == ["Hello."]


async def test_without_the_setting_nothing_is_said():
    """Nobody who does not want it reads of it."""
    report = CheckReport()
    await check_listening(report, Settings(), SimpleNamespace())
    await check_speaking(report, Settings(), SimpleNamespace())
    assert report.findings == []


def test_the_silence_is_a_sound_file():
    """A second of it."""
    assert sound_file_of(silence()).seconds == 1.0


def test_the_status_tells_how_speaking_goes():
    """Nothing where nothing is spoken; what was wrong the last time where something was."""
    assert _speech({}) == []
    fine = {"spoken": 3, "not_spoken": 0, "trouble": None}
    assert _speech(fine) == ["speech     3 answers spoken, 0 not"]
    assert _speech({**fine, "not_spoken": 1, "trouble": "no such voice"}) == [
        "speech     3 answers spoken, 1 not; the last one was not: no such voice"
    ]
