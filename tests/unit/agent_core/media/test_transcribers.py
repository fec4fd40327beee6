"""What listens by the settings, against a server that notes what it is asked."""

from __future__ import annotations

import pytest

from agent_core.llm.litellm.litellm_client import LiteLLMProcess
from agent_core.llm.model_config import LLMSpec, ProviderSpec
from agent_core.llm.openai_format import Piece
from agent_core.media.media_client import build_transcriber
from agent_core.media.media_config import TranscribeSettings
from agent_core.media.transcript import Clip
from devservers.transcription import TranscriptionServer
from tests.clock import ManualClock
from tests.sounds import wav


@pytest.mark.parametrize("language", ["", "de"])
async def test_a_language_is_told_if_one_is_set(language):
    """Without one the provider finds out for each sound; words of another language come back as they were said."""
    with TranscriptionServer() as server:
        settings = TranscribeSettings(provider="p", model="openai/whisper-x", language=language)
        spec = LLMSpec(providers={"p": ProviderSpec(api_base=server.api_base)})
        engine = build_transcriber(settings, spec, ManualClock(), litellm=LiteLLMProcess())
        sound = wav(2, says="Grüße aus Hamburg")
        heard = (await engine.transcribe(Clip(sound, "sound.wav", "audio/wav", 2.0))).heard
        await engine.aclose()

    assert heard.text == "Grüße aus Hamburg"
    [fields] = server.fields
    assert fields.get("language", "") == language
    assert "translat" not in str(fields)


class Endless:
    """A process of litellm whose provider has heard more than anybody can say."""

    async def start(self):
        pass

    async def ask(self, request, *, stream, cost, task):
        yield Piece(text="over and\n over " * 15_000)


async def test_more_than_anybody_can_say_is_cut_through_litellm_too():
    """It would stand in the prompt, and in those of all later questions."""
    settings = TranscribeSettings(provider="p", model="deepgram/nova-3")
    engine = build_transcriber(settings, LLMSpec(), ManualClock(), litellm=Endless())
    heard = (await engine.transcribe(Clip(wav(2), "sound.wav", "audio/wav", 2.0))).heard
    assert heard.text.startswith("over and over over and")
    assert len(heard.text) <= 100_000
