"""
Makes the speech and transcription clients from the settings of ``voice``. Nothing is connected or started
yet.
"""

from __future__ import annotations

from agent_core.llm.config import LLMSpec, ProviderSpec
from agent_core.llm.litellm.process import LiteLLMProcess
from agent_core.llm.providers import Endpoint, endpoint_of, key_of_environment
from agent_core.ports import Clock
from agent_core.voice.config import LOCAL, SpeakSettings, TranscribeSettings
from agent_core.voice.speech import Speaks
from agent_core.voice.transcript import Transcribes


def build_speaker(settings: SpeakSettings, spec: LLMSpec, clock: Clock, *, litellm: LiteLLMProcess) -> Speaks:
    """The speech client of these settings."""
    if settings.provider == LOCAL:
        from agent_core.voice.local_speech import LocalSpeech  # noqa: PLC0415 - only if chosen

        return LocalSpeech(settings, clock)
    provider = spec.providers.get(settings.provider, ProviderSpec())
    price, endpoint = settings.price(spec.providers), _endpoint(settings, provider)
    if endpoint is None:
        from agent_core.voice.litellm_speech import LiteLLMSpeech  # noqa: PLC0415 - likewise

        voice: Speaks = LiteLLMSpeech(settings, provider, clock, process=litellm, usd_per_million_chars=price)
    else:
        from agent_core.voice.openai_speech import OpenAISpeech  # noqa: PLC0415 - likewise

        voice = OpenAISpeech(
            settings.model,
            endpoint=endpoint,
            clock=clock,
            api_key=provider.api_key.get_secret_value() or key_of_environment(settings.model, endpoint),
            body={"voice": settings.voice, "response_format": settings.format},
            timeout_s=settings.timeout_s,
            usd_per_million_chars=price,
        )
    from agent_core.voice.opus_speech import OpusSpeech, can_make_opus  # noqa: PLC0415 - likewise

    return OpusSpeech(voice, idle_s=settings.idle_minutes * 60) if can_make_opus() else voice


def transcriber(
    settings: TranscribeSettings, spec: LLMSpec, clock: Clock, *, litellm: LiteLLMProcess
) -> Transcribes:
    """The transcription client of these settings."""
    if settings.provider == LOCAL:
        from agent_core.voice.local_transcription import LocalTranscription  # noqa: PLC0415 - only if chosen

        return LocalTranscription(settings, clock)
    provider = spec.providers.get(settings.provider, ProviderSpec())
    price, endpoint = settings.price(spec.providers), _endpoint(settings, provider)
    if endpoint is None:
        from agent_core.voice.litellm_transcription import LiteLLMTranscription  # noqa: PLC0415 - likewise

        return LiteLLMTranscription(settings, provider, clock, process=litellm, usd_per_minute=price)
    from agent_core.voice.openai_transcription import OpenAITranscription  # noqa: PLC0415 - likewise

    return OpenAITranscription(
        settings.model,
        endpoint=endpoint,
        clock=clock,
        api_key=provider.api_key.get_secret_value() or key_of_environment(settings.model, endpoint),
        language=settings.language,
        timeout_s=settings.timeout_s,
        usd_per_minute=price,
    )


def _endpoint(settings: SpeakSettings | TranscribeSettings, provider: ProviderSpec) -> Endpoint | None:
    """Where OpenAI's protocol is spoken; None: litellm is asked."""
    if settings.client == "litellm":
        return None
    endpoint = endpoint_of(settings.model, provider.api_base)
    if endpoint is None and settings.client == "openai":
        return Endpoint(provider.api_base, settings.model, public=False)
    return endpoint
