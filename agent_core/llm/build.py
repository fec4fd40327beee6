"""
From the description of providers, models and pools to pools that answer.

The description is what stands under ``llm:`` in the configuration. `check_references` names every key that
points at something that does not exist, all at once, so that the settings can report them with file and
line; `build_models` is called only with a description that passed.

``client: auto`` takes the plain client for ``openai/…`` models at an address of one's own and litellm for
everything else. Models called ``demo/…`` need no provider: they are the offline demo model (``demo/echo``
only echoes).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from agent_core.llm.demo_model import DemoModel, EchoModel
from agent_core.llm.litellm_client import LiteLLMClient, close_clients, ensure_loaded
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.pools import ModelPool
from agent_core.llm.prices import Price
from agent_core.llm.streaming import AnswerLimits
from agent_core.ports import AttachmentPort, Clock, LLMPort

__all__ = ["LLMSpec", "ModelSpec", "Models", "ProviderSpec", "build_models", "check_references"]


def _address(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("must be an address that begins with http:// or https://")
    return value


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProviderSpec(_Spec):
    """Where models are, and the key that opens the door. Both may be empty."""

    api_base: Annotated[str, AfterValidator(_address)] = ""
    """The server's address for anything that speaks OpenAI's protocol; empty: the provider's own."""
    api_key: SecretStr = SecretStr("")
    """Better a reference: ``${secret:NAME}``, ``${file:/path}`` or ``${NAME}`` of the environment."""


class PriceSpec(_Spec):
    """US dollars for a million tokens."""

    prompt_usd_per_million: float = Field(ge=0)
    """For what is sent."""
    completion_usd_per_million: float = Field(ge=0)
    """For what is answered."""


class ModelSpec(_Spec):
    """One model of one provider."""

    provider: str = ""
    """One of ``llm.providers``."""
    model: str = Field(min_length=1)
    """Its name, as litellm writes it: ``anthropic/…``, ``openai/…``, ``ollama_chat/…``."""
    max_tokens: int | None = Field(default=None, ge=1)
    """The longest answer; empty: as long as the provider lets it be."""
    max_context_tokens: int = Field(default=32_000, ge=1_000)
    """The longest prompt; older messages are left out of a longer one."""
    vision: bool = False
    """Whether it looks at pictures; to others they are only named."""
    client: Literal["auto", "litellm", "openai"] = "auto"
    """
    ``auto`` takes the plain client for ``openai/…`` at an ``api_base``, and litellm for everything else.
    """
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Empty: the provider's own."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the request, as the provider knows them."""
    first_token_limit_s: float = Field(default=90.0, gt=0)
    """How long until an answer begins."""
    idle_limit_s: float = Field(default=60.0, gt=0)
    """How long it may pause."""
    total_limit_s: float = Field(default=600.0, gt=0)
    """How long it may take as a whole."""
    price: PriceSpec | None = None

    @property
    def is_demo(self) -> bool:
        """Whether it is the offline demo model."""
        return self.model.startswith("demo/")


class LLMSpec(_Spec):
    """What stands under ``llm:``."""

    default_pool: str = "main"
    """Which pool answers where no other is named."""
    providers: dict[str, ProviderSpec] = Field(default_factory=dict)
    models: dict[str, ModelSpec] = Field(default_factory=dict)
    pools: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Lists of models; the next one is tried when one fails."""

    def is_plain(self, model: ModelSpec) -> bool:
        """Whether a model is asked by our own client, which knows no prices, and not by litellm."""
        return _is_plain(model, self.providers.get(model.provider, ProviderSpec()))

    @property
    def is_empty(self) -> bool:
        """Whether nothing is configured at all; then the caller decides what takes its place."""
        return not (self.providers or self.models or self.pools)


def _is_plain(model: ModelSpec, provider: ProviderSpec) -> bool:
    """Whether a model is asked by our own client and not by litellm."""
    at_home = bool(provider.api_base) and model.model.startswith("openai/")
    return model.client == "openai" or (model.client == "auto" and at_home)


# ── checking ──


def check_references(
    spec: LLMSpec, pool_references: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """
    Every reference to something that does not exist, as (path of the key, what is wrong with it).

    Args:
        spec: The description.
        pool_references: Keys elsewhere that name a pool, such as ``agents.consolidation_pool``, and their
            values; an empty value means the default pool and is fine.
    """
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
            problems.append((path, _unknown("pool", pool, spec.pools)))
    if not spec.is_empty and not spec.default_pool:
        problems.append(("llm.default_pool", "names no pool"))
    return problems


def _check_model(path: str, model: ModelSpec, providers: Mapping[str, ProviderSpec]) -> list[tuple[str, str]]:
    if model.is_demo:
        return []
    if not model.provider:
        return [(f"{path}.provider", "is missing; name one of llm.providers")]
    if model.provider not in providers:
        return [(f"{path}.provider", _unknown("provider", model.provider, providers))]
    if model.client == "openai" and not providers[model.provider].api_base:
        where = f"llm.providers.{model.provider}.api_base"
        text = f"'openai' needs the server's address; set {where} or use 'litellm'"
        return [(f"{path}.client", text)]
    return []


def _check_pool(path: str, members: Sequence[str], models: Mapping[str, ModelSpec]) -> list[tuple[str, str]]:
    problems = [] if members else [(path, "the pool is empty; list at least one model")]
    for number, member in enumerate(members):
        if member not in models:
            problems.append((f"{path}[{number}]", _unknown("model", member, models)))
        elif member in members[:number]:
            problems.append((f"{path}[{number}]", f"the model {member!r} is in this pool already"))
    return problems


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"there is no {kind} {name!r}; did you mean {near[0]!r}?"
    return f"there is no {kind} {name!r}; known: {', '.join(known) if known else 'none'}"


# ── building ──


@dataclass(frozen=True, slots=True)
class Models:
    """
    All pools, and what they are made of. `aclose` lets go of every connection.

    ``context_tokens`` says for each pool how much its first model can read: fallbacks with a smaller window
    answer "too long", and the turn is then shortened.
    """

    default_pool: str
    pools: Mapping[str, ModelPool]
    context_tokens: Mapping[str, int]
    uses_litellm: bool
    vision: bool = False
    """Whether any model in use looks at pictures."""
    _clients: tuple[LLMPort, ...] = field(default=(), repr=False)

    def pool(self, name: str = "") -> ModelPool:
        """The pool of that name; the default pool for an empty one."""
        return self.pools[name or self.default_pool]

    async def warm_up(self) -> None:
        """Load litellm now if any model needs it, so that the first message does not wait for it."""
        if self.uses_litellm:
            await ensure_loaded()

    async def aclose(self) -> None:
        """Close all connections, also litellm's."""
        for client in self._clients:
            if isinstance(client, OpenAIClient):
                await client.aclose()
        await close_clients()


def build_models(
    spec: LLMSpec,
    clock: Clock,
    *,
    given: Mapping[str, LLMPort] | None = None,
    attachments: AttachmentPort | None = None,
) -> Models:
    """
    Build the pools of a description that `check_references` has no complaint about. Nothing is loaded yet.

    Args:
        spec: The description. An empty one gives the demo model as the only member of the default pool.
        clock: For cool-downs and dates.
        given: Models by the name of their key, taken instead of what the description says; for tests.
        attachments: Where pictures are read; without it nobody looks at any.

    Raises:
        ValueError: The description does not hold together.
    """
    if spec.is_empty:
        pool = spec.default_pool or "main"
        spec = LLMSpec(
            default_pool=pool, models={"demo": ModelSpec(model="demo/demo")}, pools={pool: ("demo",)}
        )
    if problems := check_references(spec):
        raise ValueError("; ".join(f"{path}: {text}" for path, text in problems))
    used = {member for members in spec.pools.values() for member in members}
    clients = {
        name: (given or {}).get(name)
        or _client(
            model, spec.providers.get(model.provider), clock, pictures=attachments if model.vision else None
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
        context_tokens={
            name: spec.models[members[0]].max_context_tokens for name, members in spec.pools.items()
        },
        uses_litellm=any(isinstance(client, LiteLLMClient) for client in clients.values()),
        vision=attachments is not None and any(spec.models[name].vision for name in used),
        _clients=tuple(clients.values()),
    )


def _client(
    model: ModelSpec, provider: ProviderSpec | None, clock: Clock, *, pictures: AttachmentPort | None
) -> LLMPort:
    if model.is_demo:
        return EchoModel() if model.model == "demo/echo" else DemoModel()
    provider = provider or ProviderSpec()
    extra = dict(model.extra)
    if model.temperature is not None:
        extra.setdefault("temperature", model.temperature)
    common: dict[str, Any] = {
        "clock": clock,
        "api_base": provider.api_base,
        "api_key": provider.api_key.get_secret_value(),
        "max_tokens": model.max_tokens,
        "extra": extra,
        "limits": AnswerLimits(
            first_token_s=model.first_token_limit_s, idle_s=model.idle_limit_s, total_s=model.total_limit_s
        ),
        "price": None if model.price is None else Price(**model.price.model_dump()),
        "pictures": pictures,
    }
    plain = _is_plain(model, provider)
    client = OpenAIClient(model.model, **common) if plain else LiteLLMClient(model.model, **common)
    return cast("LLMPort", client)
