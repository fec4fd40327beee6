"""
The settings of voice messages (``voice:``) and of generated pictures (``tools.image``). No client or engine
is imported here, because every command reads the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from agent_core.llm.model_config import ProviderSpec, unknown_name
from agent_core.llm.prices import listed_per_minute
from agent_core.llm.providers import endpoint_of
from agent_core.settings_section import SettingsSection

SLOWNESS = 6.0
"""The time that the engine on this machine may take, in multiples of a sound's length."""
LOCAL = "local"
"""The provider that is an engine on this machine."""
_LISTED_PER_MILLION_CHARS: Mapping[str, float] = {"openai/tts-1": 15.0, "openai/tts-1-hd": 30.0}
"""US dollars, of the models that are paid so."""


class TranscribeSettings(SettingsSection):
    """
    Transcribes voice messages and sound files before they are answered. Without this section they stay files.

    The provider hears everything that people send by voice. With ``provider: local`` nothing leaves the
    machine; this needs the extra ``listen`` and up to 500 MB of memory while it works.
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
    """The spoken language, such as ``en``. Empty: detected for each file."""
    max_seconds: float = Field(default=600.0, ge=1, le=14_400)
    """Longer files are not transcribed, and squidbot tells the sender so."""
    max_mb: float = Field(default=24.0, gt=0, le=200)
    """Larger files, in millions of bytes, are not transcribed either. Many providers accept 25."""
    timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Timeout for one file; with ``local`` up to six times the duration of the sound, if that is longer."""
    usd_per_minute: float | None = Field(default=None, ge=0)
    """US dollars per minute of sound, for ``llm.budget.usd_per_day``. Empty: the price that litellm lists."""
    idle_minutes: float = Field(default=10.0, gt=0, le=1440)
    """The ``local`` process ends after this idle time and frees its memory."""

    def longest_s(self) -> float:
        """Return the most seconds of one turn's transcriptions: half an hour plus the last sound."""
        local = self.provider == LOCAL
        one_s = max(self.timeout_s, self.max_seconds * SLOWNESS) if local else 2 * self.timeout_s
        return 1800.0 + one_s

    def price(self, providers: Mapping[str, ProviderSpec]) -> float | None:
        """Return the price of a minute of sound in US dollars; None if it is unknown."""
        return _price(self.usd_per_minute, listed_per_minute, self, providers)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.provider == LOCAL and self.client != "auto":
            raise ValueError("client is for providers; leave it out with provider: local")
        return self


class SpeakSettings(SettingsSection):
    """
    Speaks answers, in addition to the text, which is always sent first. Without this section answers are text
    only.

    The provider reads every answer that it speaks. With ``provider: local`` nothing leaves the machine; this
    needs the extra ``speak`` and about 250 MB of memory while it works.
    """

    when: Literal["never", "same", "always"] = "same"
    """``same``: a voice message is answered by voice and text. ``always``: every answer is spoken, too."""
    allow: Literal["owner", "people"] = "people"
    """``owner``: only in conversations that you alone can read. ``people``: wherever the bot answers."""
    provider: str = Field(min_length=1)
    """A name under ``llm.providers``, or ``local``."""
    model: str = Field(min_length=1)
    """
    Provider and model name, such as ``openai/gpt-4o-mini-tts``. For ``local``: the file of a Piper voice,
    such as ``/var/lib/voices/en_US-joe-medium.onnx``, with its ``.onnx.json`` beside it.
    """
    voice: str = "alloy"
    """One of the provider's voices. ``local`` uses the voice of its file."""
    client: Literal["auto", "litellm", "openai"] = "auto"
    """As for models: ``litellm`` for providers without ``/audio/speech`` of OpenAI's protocol."""
    format: Literal["opus", "wav", "mp3"] = "opus"
    """
    The format to request; ``wav`` and ``mp3`` are for providers that offer nothing else. With the extra
    ``speak`` they become voice messages; without it they are sent as files.
    """
    max_chars: int = Field(default=1500, ge=60, le=5000)
    """A longer answer is spoken up to this length; the rest is in the text. 1,500 characters take about 100
    seconds."""
    timeout_s: float = Field(default=60.0, gt=0, le=110)
    """Timeout for one answer."""
    usd_per_million_chars: float | None = Field(default=None, ge=0)
    """US dollars per million characters, for ``llm.budget.usd_per_day``. Empty: the listed price of the
    model."""
    idle_minutes: float = Field(default=10.0, gt=0, le=1440)
    """A local process (``local``, or the Opus encoder) ends after this idle time."""

    def price(self, providers: Mapping[str, ProviderSpec]) -> float | None:
        """Return the price of a million characters in US dollars; None if it is unknown."""
        return _price(self.usd_per_million_chars, _LISTED_PER_MILLION_CHARS.get, self, providers)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.provider == LOCAL and self.client != "auto":
            raise ValueError("client is for providers; leave it out with provider: local")
        return self


class VoiceSettings(SettingsSection):
    """Understanding voice messages, and answering by voice."""

    transcribe: TranscribeSettings | None = None
    speak: SpeakSettings | None = None

    def models(self) -> dict[str, str]:
        """The models in use, with their providers."""
        parts = [
            part for part in (self.transcribe, self.speak) if part is not None and part.provider != LOCAL
        ]
        return {part.model: part.provider for part in parts}


def _price(
    own: float | None,
    listed: Callable[[str], float | None],
    part: TranscribeSettings | SpeakSettings,
    providers: Mapping[str, ProviderSpec],
) -> float | None:
    """The price of one's own, else the listed one, which is that of the provider's own address."""
    if part.provider == LOCAL:
        return 0.0
    public = not providers.get(part.provider, ProviderSpec()).api_base
    return listed(part.model) if own is None and public else own


def check_voice(part: Any, providers: Mapping[str, ProviderSpec]) -> list[tuple[tuple[str | int, ...], str]]:
    """Check the raw ``voice:`` against ``llm.providers``; return (path of the key, problem) each."""
    found: list[tuple[tuple[str | int, ...], str]] = []
    for name in ("transcribe", "speak"):
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


_SIZE = r"^(auto|[1-9][0-9]{1,3}x[1-9][0-9]{1,3})?$"


class ImageSettings(SettingsSection):
    """
    Generating pictures (the tool ``image``). Without this section there is no such tool.

    The provider reads the prompt, and each picture costs money. Only the owner has the tool, in conversations
    that nobody else can read.
    """

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
    extra: dict[str, Any] = Field(default={})
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
