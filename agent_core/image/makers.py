"""Makes the image client from the settings. Nothing connects before the first picture."""

from __future__ import annotations

from collections.abc import Mapping

from agent_core.image.config import ImageSettings, is_plain_image
from agent_core.image.litellm_images import LiteLLMImages
from agent_core.image.openai_images import OpenAIImages
from agent_core.image.pictures import MakesPictures
from agent_core.llm.config import ProviderSpec
from agent_core.llm.litellm.process import LiteLLMProcess
from agent_core.llm.providers import endpoint_of, key_of_environment
from agent_core.ports import Clock


def build_maker(
    settings: ImageSettings, providers: Mapping[str, ProviderSpec], process: LiteLLMProcess, clock: Clock
) -> MakesPictures:
    """Make the image client of these settings, which have passed `check_image`."""
    provider = providers.get(settings.provider, ProviderSpec())
    endpoint = endpoint_of(settings.model, provider.api_base)
    key = provider.api_key.get_secret_value()
    max_bytes = int(settings.max_mb * 1_000_000)
    if endpoint is not None and is_plain_image(settings, provider):
        return OpenAIImages(
            settings.model,
            endpoint=endpoint,
            clock=clock,
            api_key=key or key_of_environment(settings.model, endpoint),
            extra=settings.extra,
            max_bytes=max_bytes,
            timeout_s=settings.timeout_s,
            usd_per_image=settings.usd_per_image,
        )
    return LiteLLMImages(
        settings.model,
        process=process,
        clock=clock,
        api_base=provider.api_base,
        api_key=key,
        extra=settings.extra,
        max_bytes=min(max_bytes, 5_000_000),
        timeout_s=settings.timeout_s,
        usd_per_image=settings.usd_per_image,
    )
