"""
The settings under ``llm:`` in the configuration: providers, models and pools. `check_references` names every
key that points at something that does not exist, all at once, so that the settings can report them with file
and line. Nothing here knows a client: every command reads the configuration, and the libraries that talk to
models take longer to load than most commands take altogether.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from agent_core.llm.prices import listed_price
from agent_core.llm.providers import endpoint_of, is_ollama
from agent_core.settings_section import SettingsSection


def _address(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("must be an address that begins with http:// or https://")
    return value


class ProviderSpec(SettingsSection):
    """A server that offers models, and its API key. Both may be empty."""

    api_base: Annotated[str, AfterValidator(_address)] = ""
    """Address of a server that speaks OpenAI's protocol. Empty: the provider's public address."""
    api_key: SecretStr = SecretStr("")
    """
    Preferably a reference: ``${secret:NAME}``, ``${file:/path}``, or ``${NAME}`` for an environment variable.
    Empty: the provider's usual variable, such as ``OPENAI_API_KEY``.
    """


class PriceSpec(SettingsSection):
    """US dollars per million tokens."""

    prompt_usd_per_million: float = Field(ge=0)
    """Prompt tokens."""
    completion_usd_per_million: float = Field(ge=0)
    """Completion tokens."""
    cached_usd_per_million: float | None = Field(default=None, ge=0)
    """Prompt tokens that the provider had cached. Empty: the price of prompt tokens."""


class ModelSpec(SettingsSection):
    """One model of one provider."""

    provider: str = ""
    """A name under ``llm.providers``."""
    model: str = Field(min_length=1)
    """Provider and model name: ``anthropic/…``, ``openai/…``, ``openrouter/…``, ``ollama/…``."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of an answer. Empty: the provider's limit."""
    max_context_tokens: int | None = Field(default=None, ge=1_000)
    """
    How much the model reads and writes at once; what does not fit is left out, and said so. Empty: what the
    server says; for Ollama 16384, which is also what it is asked for.
    """
    vision: bool = False
    """Whether the model accepts pictures. Other models see only the file names."""
    client: Literal["auto", "litellm", "openai"] = "auto"
    """
    ``auto``: the built-in client for providers that speak OpenAI's protocol (``openai``, ``openrouter``,
    ``groq``, ``mistral``, ``deepseek``, ``xai``, ``together``, ``fireworks``, ``gemini``, ``ollama``,
    ``vllm``, ``lm_studio``) and for ``anthropic``, ``litellm`` for all others. ``litellm`` runs in a second
    process of 270 MB and uses the provider's own protocol. ``ollama`` is asked in its own protocol by the
    built-in client, unless ``openai`` is set.
    """
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Empty: the provider's default."""
    reasoning_effort: Literal["", "none", "minimal", "low", "medium", "high", "xhigh"] = ""
    """
    How much a reasoning model thinks before it answers. Empty: the provider's default. squidbot counts the
    tokens and shows the text to nobody.
    """
    extra: dict[str, Any] = Field(default_factory=dict)
    """Additional request parameters, passed to the provider unchanged."""
    first_token_timeout_s: float | None = Field(default=None, gt=0)
    """
    Timeout until the answer begins. Empty: 55 seconds, or 300 for reasoning models and for servers on your
    own network, which may read long prompts slowly.
    """
    idle_timeout_s: float = Field(default=55.0, gt=0)
    """Timeout between two parts of an answer."""
    total_timeout_s: float = Field(default=600.0, gt=0)
    """Timeout for the whole answer."""
    price: PriceSpec | None = None

    @property
    def is_anthropic(self) -> bool:
        """Return True if the model is called with Anthropic's own protocol."""
        return self.client == "auto" and self.model.startswith("anthropic/")

    def speaks_ollama(self, api_base: str) -> bool:
        """Return True if the model is called with Ollama's own protocol, also where litellm is named."""
        return self.client != "openai" and is_ollama(self.model, api_base)

    @property
    def is_demo(self) -> bool:
        """Return True for the offline demo model."""
        return self.model.startswith("demo/")


class LLMSpec(SettingsSection):
    """The settings under ``llm:``."""

    default_pool: str = "main"
    """The pool that answers unless another pool is set for the purpose."""
    providers: dict[str, ProviderSpec] = Field(default_factory=dict)
    models: dict[str, ModelSpec] = Field(default_factory=dict)
    pools: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Lists of models. If one model fails, the next one is tried."""
    idle_minutes: float = Field(default=60.0, ge=0)
    """
    The litellm process ends after this idle time and frees 200 MB. The next request then waits some seconds
    for a new process. 0: it never ends.
    """

    def is_plain(self, model: ModelSpec) -> bool:
        """Return True if our own client calls the model instead of litellm."""
        return is_plain(model, self.providers.get(model.provider, ProviderSpec()))

    def has_price(self, model: ModelSpec) -> bool:
        """Return True if a model's cost will be known, as far as can be predicted before the first call."""
        if model.price is not None or model.is_demo or not self.is_plain(model):
            return True
        if model.is_anthropic:
            return listed_price(model.model) is not None
        endpoint = endpoint_of(model.model, self.providers.get(model.provider, ProviderSpec()).api_base)
        return endpoint is not None and (
            endpoint.tells_cost or (endpoint.public and listed_price(model.model) is not None)
        )

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is configured; the caller then chooses a default."""
        return not (self.providers or self.models or self.pools)


def is_plain(model: ModelSpec, provider: ProviderSpec) -> bool:
    """Return True if our own client calls the model instead of litellm."""
    if model.speaks_ollama(provider.api_base):
        return True
    speaks = endpoint_of(model.model, provider.api_base) is not None or model.is_anthropic
    return model.client == "openai" or (model.client == "auto" and speaks)


# ── checking ──


def check_references(
    spec: LLMSpec, pool_references: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return (path, problem) of references to missing things; an empty pool name is the default."""
    problems: list[tuple[str, str]] = []
    for name, model in spec.models.items():
        problems += _check_model(f"llm.models.{name}", model, spec.providers)
    for name, members in spec.pools.items():
        problems += _check_pool(f"llm.pools.{name}", members, spec.models)
    references = dict(pool_references or {})
    if not spec.is_empty:
        references["llm.default_pool"] = spec.default_pool
    for path, pool in references.items():
        if pool and pool not in spec.pools:
            problems.append((path, unknown_name("pool", pool, spec.pools)))
    if not spec.is_empty and not spec.default_pool:
        problems.append(("llm.default_pool", "names no pool"))
    return problems


def _check_model(path: str, model: ModelSpec, providers: Mapping[str, ProviderSpec]) -> list[tuple[str, str]]:
    if model.is_demo:
        return []
    if not model.provider:
        return [(f"{path}.provider", "is missing; name one of llm.providers")]
    if model.provider not in providers:
        return [(f"{path}.provider", unknown_name("provider", model.provider, providers))]
    api_base = providers[model.provider].api_base
    if model.client == "openai" and not api_base and endpoint_of(model.model, "") is None:
        where = f"llm.providers.{model.provider}.api_base"
        text = f"'openai' needs the server's address; set {where} or use 'litellm'"
        return [(f"{path}.client", text)]
    if _fixes_temperature(model, api_base) and model.temperature not in (None, 1):
        text = "excludes reasoning_effort: the provider refuses both together; leave one out, or set it to 1"
        return [(f"{path}.temperature", text)]
    return []


def _fixes_temperature(model: ModelSpec, api_base: str) -> bool:
    """Return True if the provider accepts only temperature 1 because the model reasons."""
    thinks = model.reasoning_effort not in ("", "none") or "thinking" in model.extra
    is_openai = model.model.startswith("openai/") and not api_base
    return thinks and (model.model.startswith("anthropic/") or is_openai)


def _check_pool(path: str, members: Sequence[str], models: Mapping[str, ModelSpec]) -> list[tuple[str, str]]:
    problems = [] if members else [(path, "the pool is empty; list at least one model")]
    for number, member in enumerate(members):
        if member not in models:
            problems.append((f"{path}[{number}]", unknown_name("model", member, models)))
        elif member in members[:number]:
            problems.append((f"{path}[{number}]", f"the model {member!r} is in this pool already"))
    return problems


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """A sentence that a name does not exist, with the name that may have been meant."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"there is no {kind} {name!r}; did you mean {near[0]!r}?"
    return f"there is no {kind} {name!r}; known: {', '.join(known) if known else 'none'}"
