"""From the settings of ``voice.transcribe`` to what listens. Nothing is connected or started yet."""

from __future__ import annotations

from agent_core.llm.config import LLMSpec, ProviderSpec
from agent_core.llm.litellm.process import LiteLLMProcess
from agent_core.llm.providers import Endpoint, endpoint_of, key_of_environment
from agent_core.ports import Clock
from agent_core.voice.config import LOCAL, TranscribeSettings
from agent_core.voice.transcript import Transcribes

__all__ = ["transcriber"]


def transcriber(
    settings: TranscribeSettings, spec: LLMSpec, clock: Clock, *, litellm: LiteLLMProcess
) -> Transcribes:
    """What listens by these settings."""
    if settings.provider == LOCAL:
        from agent_core.voice.local_transcription import LocalTranscription  # noqa: PLC0415 - only if chosen

        return LocalTranscription(settings, clock)
    provider = spec.providers.get(settings.provider, ProviderSpec())
    key = provider.api_key.get_secret_value()
    endpoint = endpoint_of(settings.model, provider.api_base)
    if endpoint is None and settings.client == "openai":
        endpoint = Endpoint(provider.api_base, settings.model, public=False)
    price = settings.price(spec.providers)
    if endpoint is None or settings.client == "litellm":
        from agent_core.voice.litellm_transcription import LiteLLMTranscription  # noqa: PLC0415 - likewise

        return LiteLLMTranscription(settings, provider, clock, process=litellm, usd_per_minute=price)
    from agent_core.voice.openai_transcription import OpenAITranscription  # noqa: PLC0415 - likewise

    return OpenAITranscription(
        settings.model,
        endpoint=endpoint,
        clock=clock,
        api_key=key or key_of_environment(settings.model, endpoint),
        language=settings.language,
        timeout_s=settings.timeout_s,
        usd_per_minute=price,
    )
