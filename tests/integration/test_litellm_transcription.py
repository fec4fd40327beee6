"""Transcripts through litellm in its own process, from the stand-in server."""

from __future__ import annotations

import pytest

from agent_core.errors import ModelAuthFailed, ModelError, ModelUnavailable
from agent_core.llm.litellm.litellm_client import LiteLLMProcess
from agent_core.llm.model_config import LLMSpec, ProviderSpec
from agent_core.media.media_client import ProviderTranscription, build_transcriber
from agent_core.media.media_config import TranscribeSettings
from agent_core.media.transcript import Clip
from devservers.transcription import Reply, TranscriptionServer
from gateway.system.clock import SystemClock
from tests.sounds import wav

pytestmark = [pytest.mark.slow]


async def test_litellm_listens():
    """The words come, the price is that of the setting; a wrong key and a server that is away are what they are."""
    with TranscriptionServer() as server:
        spec = LLMSpec(providers={"ears": ProviderSpec(api_base=server.api_base, api_key="key")})
        wished = TranscribeSettings(
            provider="ears", model="openai/whisper-1", client="litellm", language="en", usd_per_minute=0.06
        )
        process = LiteLLMProcess()
        engine = build_transcriber(wished, spec, SystemClock(), litellm=process)
        assert isinstance(engine, ProviderTranscription)
        assert engine.client.endpoint is None
        sound = wav(30, says="call Bob")
        try:
            found = await engine.transcribe(Clip(sound, "sound.wav", "audio/wav", 30.0))
            errors = []
            for status in (401, 503):
                server.always = Reply(status=status)
                with pytest.raises(ModelError) as raised:
                    await engine.transcribe(Clip(sound, "sound.wav", "audio/wav", 30.0))
                errors.append(type(raised.value))
        finally:
            await engine.aclose()
            await process.aclose()

    assert found.heard.text == "call Bob"
    assert (found.usage.prompt_tokens, found.usage.cost_usd) == (300, pytest.approx(0.03))
    assert errors == [ModelAuthFailed, ModelUnavailable]
    assert server.fields[0]["authorization"] == "Bearer key"
    assert server.fields[0]["language"] == "en"
