"""What speaks by the settings, against a server that does as it is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import anyio
import pytest

from agent_core.errors import ModelError, ModelRateLimited, ModelRefused, ModelUnavailable, ModelUnreadable
from agent_core.llm.litellm.litellm_client import LiteLLMProcess
from agent_core.llm.model_config import LLMSpec, ProviderSpec
from agent_core.media import local_engines
from agent_core.media.local_engines import LocalSpeech, OpusSpeech
from agent_core.media.media_client import MAX_SPEECH_BYTES, ProviderSpeech, build_speaker
from agent_core.media.media_config import SpeakSettings
from agent_core.media.speech import SpeechPort
from devservers.provider import Trouble
from devservers.speech import SpeechServer, opus_of, wav_of
from gateway.routing import delivery
from tests.clock import ManualClock

_IS_READY_AND_NO_MORE = (
    "import socket, sys, time; from agent_core.children.frames import encode_frame;"
    " link = socket.socket(fileno=int(sys.argv[1])); link.sendall(encode_frame({'ready': {}})); time.sleep(60)"
)


@pytest.fixture
def server() -> Iterator[SpeechServer]:
    with SpeechServer() as up:
        yield up


def speaker(server: SpeechServer, litellm: LiteLLMProcess | None = None, **more: object) -> SpeechPort:
    settings = SpeakSettings.model_validate(
        {"provider": "p", "model": "openai/tts-x", "voice": "nova", "usd_per_million_chars": 20.0, **more}
    )
    spec = LLMSpec(providers={"p": ProviderSpec(api_base=server.api_base, api_key="the-key-of-p")})
    return build_speaker(settings, spec, ManualClock(), litellm=litellm or LiteLLMProcess())


async def test_a_text_comes_back_as_sound_with_its_price(server):
    """Model, voice and format are as they were wished; the price is that of the characters."""
    voice = speaker(server)
    spoken = await voice.speak("Hello there")
    await voice.aclose()
    assert isinstance(voice, ProviderSpeech)
    assert server.asked == [
        {"model": "tts-x", "voice": "nova", "response_format": "opus", "input": "Hello there"}
    ]
    assert server.keys == ["Bearer the-key-of-p"]
    assert (spoken.media_type, spoken.name, spoken.model) == (
        "audio/ogg",
        "Voice message.ogg",
        "openai/tts-x",
    )
    assert spoken.cost_usd == pytest.approx(11 * 20 / 1_000_000)
    assert spoken.sound is not None


@pytest.mark.parametrize(
    ("trouble", "kind", "temporary"),
    [
        (Trouble(400, b'{"error": {"message": "no such voice: the-key-of-p"}}'), ModelRefused, False),
        (Trouble(401, b"{}"), ModelError, False),
        (Trouble(429, b"{}", headers={"Retry-After": "7"}), ModelRateLimited, True),
        (Trouble(500, b"oops"), ModelUnavailable, True),
        (Trouble(200, b"<html>hello</html>"), ModelUnreadable, False),
        (Trouble(200, b"OggS" + bytes(MAX_SPEECH_BYTES)), ModelUnreadable, False),
        (Trouble(302, b"-", headers={"Location": "http://127.0.0.1:1/"}), ModelUnreadable, False),
        (Trouble(wait_s=3.0), ModelUnreadable, False),
    ],
)
async def test_whatever_goes_wrong_is_one_of_our_errors(server, trouble, kind, temporary):
    """Refused, limited, broken, no sound, endless, elsewhere, slow; the key is in none of the texts."""
    server.plan(trouble)
    voice = speaker(server, timeout_s=1.0)
    with pytest.raises(kind) as raised:
        await voice.speak("Hello")
    await voice.aclose()
    assert raised.value.temporary is temporary
    assert "the-key-of-p" not in str(raised.value)


async def test_what_is_no_opus_is_told_by_its_content(server):
    """WAV has a duration and a waveform, too; of MP3 nothing is known, and it is a file like any other."""
    server.plan(Trouble(200, wav_of(2.0)), Trouble(200, b"ID3" + bytes(100)), Trouble(200, opus_of(1.0)))
    voice = speaker(server)
    found = [await voice.speak("x") for _ in range(3)]
    await voice.aclose()
    assert [(each.media_type, each.name) for each in found] == [
        ("audio/wav", "Voice message.wav"),
        ("audio/mpeg", "Voice message.mp3"),
        ("audio/ogg", "Voice message.ogg"),
    ]
    assert [each.sound is None for each in found] == [False, True, False]


def test_the_engine_on_this_machine_is_chosen_by_its_name(server):
    """Nothing is started or asked by choosing it."""
    local = speaker(server, provider="local", model="/voices/joe.onnx")
    assert isinstance(local, LocalSpeech)
    assert local.process.pid is None


async def test_an_engine_on_this_machine_that_is_too_slow_is_not_asked_again():
    """It would be as slow the next time."""
    settings = SpeakSettings(provider="local", model="/voices/joe.onnx", timeout_s=0.5)
    local = LocalSpeech(settings, ManualClock())
    local.process.command = ["python3", "-c", _IS_READY_AND_NO_MORE]
    with pytest.raises(ModelUnreadable) as raised:
        await local.speak("Hello")
    await local.aclose()
    assert (raised.value.kind, raised.value.temporary) == ("slow", False)


@pytest.mark.parametrize(
    "child", [("sh", "-c", "exec sleep 60"), (sys.executable, "-c", _IS_READY_AND_NO_MORE)]
)
async def test_what_was_paid_is_not_lost_to_a_process_that_hangs(server, monkeypatch, child):
    """It is given up, at its start and at its work, before the delivery is, which would have it paid once more."""
    assert (
        SpeakSettings.model_json_schema()["properties"]["timeout_s"]["maximum"]
        < local_engines._CONVERSION_LIMIT_S
    )
    assert local_engines._CONVERSION_LIMIT_S < delivery._LIMIT_S
    monkeypatch.setattr(local_engines, "_CONVERSION_LIMIT_S", 1.0)
    server.plan(Trouble(200, wav_of(2.0)))
    voice = OpusSpeech(speaker(server), idle_s=60)
    voice.process.command = list(child)
    with anyio.fail_after(60):
        spoken = await voice.speak("Hello")
    await voice.aclose()
    assert (spoken.media_type, spoken.content) == ("audio/wav", wav_of(2.0))


@pytest.mark.slow
async def test_litellm_speaks_in_its_process(server):
    """The same through litellm: the sound, the price, and a refusal that is one of our errors."""
    litellm = LiteLLMProcess()
    voice = speaker(server, litellm, client="litellm")
    try:
        spoken = await voice.speak("Hello there")
        server.plan(Trouble(400, b'{"error": {"message": "no such voice", "code": 400}}'))
        with pytest.raises(ModelError) as raised:
            await voice.speak("Hello")
    finally:
        await litellm.aclose()
    assert server.asked[0]["input"] == "Hello there"
    assert server.asked[0]["model"] == "tts-x"
    assert spoken.media_type == "audio/ogg"
    assert spoken.sound is not None
    assert spoken.cost_usd == pytest.approx(11 * 20 / 1_000_000)
    assert raised.value.temporary is False
    assert "no such voice" in str(raised.value)
