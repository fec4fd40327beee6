"""``tools.image``: the settings of image generation. No client is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from agent_core.llm.model_config import ProviderSpec, unknown_name
from agent_core.llm.providers import endpoint_of

_SIZE = r"^(auto|[1-9][0-9]{1,3}x[1-9][0-9]{1,3})?$"


class ImageSettings(BaseModel):
    """
    Generating pictures (the tool ``image``). Without this section there is no such tool.

    The provider reads the prompt, and each picture costs money. Only the owner has the tool, in conversations
    that nobody else can read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    allow: Literal["owner", "none"] = "owner"
    """``none``: nobody."""
    provider: str = Field(min_length=1)
    """A name under ``llm.providers``."""
    model: str = Field(min_length=1)
    """Provider and model name, such as ``openai/gpt-image-1`` or ``gemini/imagen-4.0-generate-001``."""
    client: Literal["auto", "litellm", "openai"] = "auto"
    """As for models: ``litellm`` for providers without ``/images/generations`` of OpenAI's protocol."""
    size: Annotated[str, StringConstraints(pattern=_SIZE)] = "1024x1024"
    """Default width and height. Empty: the provider's default."""
    extra: dict[str, Any] = {}
    """Additional fields of the request, such as ``{quality: low}``."""
    max_per_turn: int = Field(default=4, ge=1, le=20)
    """Maximum number of pictures for one question."""
    max_mb: float = Field(default=10.0, gt=0, le=20)
    """Maximum size of one picture, in millions of bytes. With ``litellm`` at most 5."""
    timeout_s: float = Field(default=180.0, gt=0, le=900)
    """Timeout for one request."""
    usd_per_image: float | None = Field(default=None, ge=0)
    """US dollars per picture, for ``llm.budget.usd_per_day``. Empty: what the provider reports, if it
    does."""


def is_plain_image(settings: ImageSettings, provider: ProviderSpec) -> bool:
    """Return True if our own client requests the pictures instead of litellm."""
    if settings.client != "auto":
        return settings.client == "openai"
    return settings.model.startswith("openai/") or (
        bool(provider.api_base) and endpoint_of(settings.model, provider.api_base) is not None
    )


def check_image(part: Any, providers: Mapping[str, ProviderSpec]) -> list[tuple[tuple[str | int, ...], str]]:
    """Check the raw ``tools:`` against ``llm.providers``; return (path of the key, problem) each."""
    section = part.get("image") if isinstance(part, dict) else None
    if not isinstance(section, dict):
        return []
    name, model = section.get("provider"), section.get("model")
    if isinstance(name, str) and name not in providers:
        return [(("tools", "image", "provider"), unknown_name("provider", name, tuple(providers)))]
    plain = section.get("client") == "openai" and isinstance(name, str) and isinstance(model, str)
    if plain and endpoint_of(str(model), providers[str(name)].api_base) is None:
        told = "'openai' needs the server's address; set it under llm.providers or use 'litellm'"
        return [(("tools", "image", "client"), told)]
    return []
