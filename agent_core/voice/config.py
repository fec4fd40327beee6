"""
What stands under ``voice:`` in the configuration. Nothing here knows a client or an engine: every command
reads the configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from agent_core.llm.config import ProviderSpec, unknown_name
from agent_core.llm.providers import endpoint_of

__all__ = ["LOCAL", "TranscribeSettings", "VoiceSettings", "check_voice"]

LOCAL = "local"
"""The provider that is an engine on this machine."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class TranscribeSettings(_Strict):
    """
    How voice messages and sound files become text before they are answered. Without it, they stay files.

    The provider hears everything that is sent to the bot by voice. With ``provider: local`` nothing leaves
    the machine; that needs the optional extra ``listen`` and up to 500 MB of memory while it works.
    """

    provider: str = Field(min_length=1)
    """A name under ``llm.providers``, or ``local``."""
    model: str = Field(min_length=1)
    """
    Provider and model name, such as ``openai/whisper-1`` or ``groq/whisper-large-v3-turbo``. For ``local``:
    the folder with the weights of a faster-whisper model.
    """
    client: Literal["auto", "litellm", "openai"] = "auto"
    """As for models: ``litellm`` for providers without ``/audio/transcriptions`` of OpenAI's protocol."""
    language: Annotated[str, StringConstraints(pattern=r"^([a-z]{2,3})?$")] = ""
    """The language that is spoken, such as ``en``. Empty: it is found out for each file."""
    max_seconds: float = Field(default=600.0, ge=1, le=14_400)
    """Longer files are not transcribed; the sender is told so."""
    max_mb: float = Field(default=24.0, gt=0, le=200)
    """Neither are larger ones, in millions of bytes. Many providers take 25."""
    timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Timeout for one file; ``local`` may take longer, up to six times the duration of the sound."""
    usd_per_minute: float | None = Field(default=None, ge=0)
    """US dollars per minute of sound, for ``llm.budget.usd_per_day``. Empty: as listed by litellm."""
    idle_minutes: float = Field(default=10.0, gt=0, le=1440)
    """The process of ``local`` ends after this idle time and frees its memory."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.provider == LOCAL and self.client != "auto":
            raise ValueError("client is for providers; leave it out with provider: local")
        return self


class VoiceSettings(_Strict):
    """Listening to voice messages."""

    transcribe: TranscribeSettings | None = None


def check_voice(part: Any, providers: Mapping[str, ProviderSpec]) -> list[tuple[tuple[str | int, ...], str]]:
    """
    What names something that does not exist, as (path of the key, what is wrong with it).

    Args:
        part: What stands under ``voice:``, before it is checked.
        providers: Those of ``llm.providers``.
    """
    found: list[tuple[tuple[str | int, ...], str]] = []
    for name in ("transcribe",):
        section = part.get(name) if isinstance(part, dict) else None
        if not isinstance(section, dict):
            continue
        said = _provider_problem(section.get("provider"), providers)
        if said:
            found.append((("voice", name, "provider"), said))
        elif section.get("client") == "openai" and _has_no_address(section, providers):
            told = "'openai' needs the server's address; set it under llm.providers or use 'litellm'"
            found.append((("voice", name, "client"), told))
    return found


def _provider_problem(provider: Any, known: Collection[str]) -> str:
    if not isinstance(provider, str) or provider == LOCAL or provider in known:
        return ""
    return unknown_name("provider", provider, (*known, LOCAL))


def _has_no_address(section: Mapping[str, Any], providers: Mapping[str, ProviderSpec]) -> bool:
    provider = providers.get(str(section.get("provider")))
    return provider is not None and not provider.api_base and not endpoint_of(str(section.get("model")), "")
