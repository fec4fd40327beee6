"""
Builds pools that answer from the settings of providers, models and pools (``config.py``). `build_models` is
called only with a description that `check_references` has passed. ``client: auto`` takes a client of our own
for providers that speak OpenAI's protocol (``providers.py``), for Anthropic and for Ollama, and litellm for
the others. Models called ``demo/…`` need no provider: they are the offline demo model (``demo/echo`` only
echoes).
"""

# ruff: noqa: PLC0415 - a daemon loads the clients of its models, not all

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import structlog

from agent_core.children.service import CallFailed
from agent_core.llm.http_client import HttpModelClient
from agent_core.llm.litellm.litellm_client import LiteLLMClient, LiteLLMProcess
from agent_core.llm.model_config import LLMSpec, ModelSpec, ProviderSpec, check_references, is_plain
from agent_core.llm.pools import ModelPool
from agent_core.llm.prices import Price, listed_price, listed_thinking
from agent_core.llm.prompt_pictures import ScaledPictures, can_scale
from agent_core.llm.providers import (
    endpoint_of,
    is_self_hosted,
    key_in_environment,
    key_of_environment,
    takes_cache_control,
)
from agent_core.llm.streaming import AnswerLimits
from agent_core.ports import AttachmentPort, Clock, LLMPort, PicturePort
from agent_core.prompt_budget import TokenEstimate

_MORE_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "bedrock": ("AWS_",),
    "sagemaker": ("AWS_",),
    "vertex_ai": ("GOOGLE_", "VERTEXAI_"),
    "gemini": ("GOOGLE_API_KEY",),
    "cohere": ("CO_API_KEY",),
    "huggingface": ("HF_TOKEN",),
    "watsonx": ("WX_",),
}
"""Where the variables of a provider do not begin with its name."""
_SLOW_FIRST_TOKEN_S = 300.0
_USUAL_TOKENS = 32_000
"""What a model can read of which nobody has said it."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Models:
    """All pools and their clients. `aclose` closes every connection."""

    default_pool: str
    pools: Mapping[str, ModelPool]
    uses_litellm: bool
    vision: bool = False
    """Whether any model in use looks at pictures."""
    litellm: LiteLLMProcess = field(default_factory=LiteLLMProcess, repr=False)
    scaling: ScaledPictures | None = field(default=None, repr=False)
    _clients: tuple[LLMPort, ...] = field(default=(), repr=False)

    def pool(self, name: str = "") -> ModelPool:
        """The pool with this name; the default pool for an empty name."""
        return self.pools[name or self.default_pool]

    def context_tokens(self, name: str = "") -> int:
        """
        Return the context window of a pool's first model, as far as it is known now.

        Fallbacks with a smaller window answer "too long", and the turn is then shortened.
        """
        return getattr(self.pool(name).models[0], "window", None) or _USUAL_TOKENS

    def estimate(self, name: str = "") -> TokenEstimate:
        """Return the token estimate of a pool's first model, corrected by its answers so far."""
        return getattr(self.pool(name).models[0], "estimate", None) or TokenEstimate()

    def notes(self, name: str = "") -> list[str]:
        """Return notes for the owner about the models of a pool that have been called."""
        return [note for model in self.pool(name).models for note in getattr(model, "notes", ())]

    async def warm_up(self) -> None:
        """Start litellm if any model needs it, so that the first message need not wait. Never fails."""
        if not self.uses_litellm:
            return
        try:
            await self.litellm.start()
        except CallFailed as error:
            _log.error("litellm.not_started", error=str(error))

    async def aclose(self) -> None:
        """Close all connections, and end litellm's process."""
        for client in self._clients:
            if isinstance(client, HttpModelClient):
                await client.aclose()
        await self.litellm.aclose()
        if self.scaling is not None:
            await self.scaling.process.aclose()


def build_models(
    spec: LLMSpec,
    clock: Clock,
    *,
    given: Mapping[str, LLMPort] | None = None,
    attachments: AttachmentPort | None = None,
    besides: Mapping[str, str] | None = None,
) -> Models:
    """
    Build the pools of checked settings; nothing is loaded yet. Raises ValueError.

    Args:
        spec: The settings; empty ones give the demo model in the default pool.
        given: Models by key that replace configured ones, for tests.
        attachments: The source of pictures; without it no model sees any.
        besides: Further models, with their providers, for litellm's process.
    """
    if spec.is_empty:
        pool = spec.default_pool or "main"
        spec = LLMSpec(
            default_pool=pool, models={"demo": ModelSpec(model="demo/demo")}, pools={pool: ("demo",)}
        )
    if problems := check_references(spec):
        raise ValueError("; ".join(f"{path}: {text}" for path, text in problems))
    used = {member for members in spec.pools.values() for member in members}
    scaling = None if attachments is None or not can_scale() else ScaledPictures(attachments)
    process = LiteLLMProcess(idle_s=spec.idle_minutes * 60, variables=_variables(spec, used, besides or {}))
    clients = {
        name: (given or {}).get(name)
        or _client(
            model,
            spec.providers.get(model.provider),
            clock,
            process,
            pictures=(scaling or attachments) if model.vision else None,
        )
        for name, model in spec.models.items()
        if name in used
    }
    return Models(
        default_pool=spec.default_pool,
        pools={
            name: ModelPool(name, [(member, clients[member]) for member in members], clock)
            for name, members in spec.pools.items()
        },
        uses_litellm=any(isinstance(client, LiteLLMClient) for client in clients.values()),
        litellm=process,
        scaling=scaling,
        vision=attachments is not None and any(spec.models[name].vision for name in used),
        _clients=tuple(clients.values()),
    )


def _client(
    model: ModelSpec,
    provider: ProviderSpec | None,
    clock: Clock,
    process: LiteLLMProcess,
    *,
    pictures: PicturePort | None,
) -> LLMPort:
    if model.is_demo:
        from agent_core.llm.demo.demo_model import DemoModel, EchoModel

        return EchoModel() if model.model == "demo/echo" else DemoModel()
    provider = provider or ProviderSpec()
    extra = dict(model.extra)
    if model.temperature is not None:
        extra.setdefault("temperature", model.temperature)
    if model.reasoning_effort:
        extra.setdefault("reasoning_effort", model.reasoning_effort)
    common: dict[str, Any] = {
        "clock": clock,
        "api_base": provider.api_base,
        "api_key": provider.api_key.get_secret_value(),
        "max_tokens": model.max_tokens,
        "extra": extra,
        "limits": AnswerLimits(
            first_token_s=model.first_token_timeout_s or _first_token_s(model, provider),
            idle_s=model.idle_timeout_s,
            total_s=model.total_timeout_s,
        ),
        "price": None if model.price is None else Price(**model.price.model_dump()),
        "pictures": pictures,
        "window": model.max_context_tokens,
    }
    if not is_plain(model, provider):
        return cast("LLMPort", LiteLLMClient(model.model, process=process, **common))
    if model.speaks_ollama(provider.api_base):
        from agent_core.llm.ollama_client import OllamaClient

        return cast("LLMPort", OllamaClient(model.model, **common))
    if model.is_anthropic:
        from agent_core.llm.anthropic_client import AnthropicClient

        common["api_key"] = common["api_key"] or (
            "" if provider.api_base else key_in_environment(model.model)
        )
        common["price"] = common["price"] or listed_price(model.model)
        return cast("LLMPort", AnthropicClient(model.model, **common))
    return _openai_client(model, provider, common)


def _openai_client(model: ModelSpec, provider: ProviderSpec, common: dict[str, Any]) -> LLMPort:
    from agent_core.llm.openai_client import OpenAIClient

    endpoint = (
        endpoint_of(model.model, provider.api_base)
        if model.client == "auto" or not provider.api_base
        else None
    )
    if endpoint is not None:
        common |= {"endpoint": endpoint, "api_base": endpoint.api_base}
        common["api_key"] = common["api_key"] or (key_of_environment(model.model, endpoint))
        if common["price"] is None and endpoint.public:
            common["price"] = listed_price(model.model)
    client = OpenAIClient(model.model, **common)
    client.at_home = is_self_hosted(model.model, provider.api_base)
    return cast("LLMPort", client)


def _first_token_s(model: ModelSpec, provider: ProviderSpec) -> float:
    """Return the default limit for the first token: longer for self-hosted and for reasoning models."""
    effort = model.reasoning_effort
    if is_self_hosted(model.model, provider.api_base) or effort not in ("", "none", "minimal"):
        return _SLOW_FIRST_TOKEN_S
    # Models of Anthropic think only where they are told to.
    thinks = not effort and not takes_cache_control(model.model) and not provider.api_base
    return _SLOW_FIRST_TOKEN_S if thinks and listed_thinking(model.model) else AnswerLimits().first_token_s


def _variables(spec: LLMSpec, used: Collection[str], besides: Mapping[str, str]) -> set[str]:
    """Beginnings of the variables in which litellm looks for keys: of providers that have none here."""
    asked = {model.model: model.provider for name, model in spec.models.items() if name in used}
    prefixes = {
        model.partition("/")[0].lower()
        for model, provider in (*asked.items(), *besides.items())
        if not spec.providers.get(provider, ProviderSpec()).api_key.get_secret_value()
    }
    return {
        begins for prefix in prefixes for begins in (f"{prefix.upper()}_", *_MORE_VARIABLES.get(prefix, ()))
    }
