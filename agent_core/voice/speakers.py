"""From the settings to what speaks. Nothing is loaded and nobody is asked before the first text."""

from __future__ import annotations

import os
from collections.abc import Mapping

from agent_core.llm.config import ProviderSpec
from agent_core.llm.providers import endpoint_of, key_variables
from agent_core.ports import Clock
from agent_core.voice.config import SpeakSettings
from agent_core.voice.openai_speech import OpenAISpeech
from agent_core.voice.speech import Speaks

__all__ = ["build_speaker"]

_LISTED_USD_PER_MILLION_CHARS: Mapping[str, float] = {"openai/tts-1": 15.0, "openai/tts-1-hd": 30.0}
"""Of the models that are paid by the character."""


def build_speaker(settings: SpeakSettings, providers: Mapping[str, ProviderSpec], clock: Clock) -> Speaks:
    """
    What speaks by these settings, which `check_voice` has no complaint about.

    Raises:
        ValueError: The provider has no ``/audio/speech`` of OpenAI's protocol.
    """
    provider = providers.get(settings.provider, ProviderSpec())
    endpoint = endpoint_of(settings.model, provider.api_base)
    if endpoint is None:
        raise ValueError(f"{settings.model} has no /audio/speech")
    key = provider.api_key.get_secret_value()
    if not key and endpoint.public:
        key = next((os.environ[name] for name in key_variables(settings.model) if os.environ.get(name)), "")
    price = settings.usd_per_million_chars
    if price is None and endpoint.public:
        price = _LISTED_USD_PER_MILLION_CHARS.get(settings.model)
    return OpenAISpeech(
        settings.model,
        endpoint=endpoint,
        clock=clock,
        api_key=key,
        body={"voice": settings.voice, "response_format": settings.format},
        timeout_s=settings.timeout_s,
        usd_per_million_chars=price,
    )
