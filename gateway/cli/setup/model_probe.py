"""
Finds models in the environment and on this machine, and tests one with a tiny question. A key that is found
in the environment is copied into a file of secrets, because a service has another environment than a
terminal.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import ValidationError

from agent_core.errors import AgentError
from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec, ModelSpec, ProviderSpec, check_references, is_plain
from agent_core.llm.providers import endpoint_of, key_variables
from agent_core.models import Message
from channels.setup import complaint
from gateway.system.clock import SystemClock

DEMO = "demo/demo"
_LIMIT_S = 60.0
_QUESTION = Message(role="user", content="Say OK.")
OLLAMA_URL = "http://127.0.0.1:11434"
_KEYS = (
    ("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5"),
    ("OPENAI_API_KEY", "openai/gpt-5-mini"),
    ("MISTRAL_API_KEY", "mistral/mistral-small-latest"),
    ("GEMINI_API_KEY", "gemini/gemini-2.5-flash"),
    ("OPENROUTER_API_KEY", "openrouter/openai/gpt-5-mini"),
)


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """A model, its access, and where it was found; ``provider`` is "" for the demo model."""

    model: str
    provider: str = ""
    api_base: str = ""
    api_key: str = field(default="", repr=False)
    told: str = ""

    @property
    def name(self) -> str:
        """Return the name for people: a local server speaks OpenAI's protocol, but is not OpenAI."""
        if self.api_base and self.provider != "server" and self.model.startswith("openai/"):
            return f"{self.provider}/{self.model.removeprefix('openai/')}"
        return self.model

    @property
    def secret_name(self) -> str:
        """The name of the file that holds its key."""
        return f"{self.provider}-api-key"

    @property
    def needs_litellm(self) -> bool:
        """Return True if only litellm speaks the protocol of its provider."""
        return bool(self.provider) and not is_plain(
            ModelSpec(model=self.model), ProviderSpec(api_base=self.api_base)
        )

    @property
    def is_own_server(self) -> bool:
        """Return True if its key is no secret, because the server does not require one."""
        return bool(self.api_base) and self.api_key in ("", "ollama")


def offers(environ: Mapping[str, str], ollama: Sequence[str]) -> list[ModelOffer]:
    """The available models, the likeliest first; the built-in demo model always is one. Pure."""
    found = [
        ModelOffer(model, _prefix(model), api_key=environ[variable], told=f"{model} (the key in {variable})")
        for variable, model in found_keys(environ)
    ]
    found += [_of_ollama(name) for name in ollama]
    return [*found, ModelOffer(DEMO, told="the built-in demo model (small, offline, needs no key)")]


def find_offer(model: str, *, api_base: str, api_key: str, environ: Mapping[str, str]) -> ModelOffer:
    """
    The model that a person names. Pure.

    Args:
        model: ``provider/model``; ``ollama/NAME`` for the local Ollama, likewise ``vllm`` and ``lm_studio``;
            ``demo``.
        api_base: Of a server that speaks OpenAI's format, if it is one of one's own.
        api_key: Its key; empty to look for the provider's usual variable.
        environ: Where that is.
    """
    if model in ("demo", DEMO, "demo/echo"):
        return ModelOffer(DEMO if model == "demo" else model, told="the built-in demo model")
    if model.startswith("ollama/"):
        return _of_ollama(model.removeprefix("ollama/"), api_base, api_key)
    if api_base:
        whole = model if model.startswith("openai/") else f"openai/{model}"
        return ModelOffer(whole, "server", api_base, api_key, f"{whole} at {api_base}")
    endpoint = endpoint_of(model, "")
    if endpoint is not None and not endpoint.public:
        told = f"{model} at {endpoint.api_base}"
        return ModelOffer(f"openai/{endpoint.model}", _prefix(model), endpoint.api_base, api_key, told)
    key = api_key or next((environ[name] for name in key_variables(model) if environ.get(name)), "")
    return ModelOffer(model, _prefix(model), "", key, model)


def key_variable(model: str) -> str:
    """The environment variable that usually has the key for this model."""
    return key_variables(f"{_prefix(model)}/")[0]


def prove(offer: ModelOffer, say: Callable[[str], None] = lambda _: None) -> str:
    """Ask one tiny question; return the error or "". ``say`` gets notes for the owner."""
    provider: dict[str, Any] = {"api_base": offer.api_base, "api_key": offer.api_key}
    described = {
        "default_pool": "main",
        "providers": {offer.provider: provider} if offer.provider else {},
        "models": {"one": {"provider": offer.provider, "model": offer.model}},
        "pools": {"main": ["one"]},
    }
    try:
        spec = LLMSpec.model_validate(described)
    except ValidationError as error:
        return complaint(error)
    problems = check_references(spec)
    return "; ".join(text for _, text in problems) or anyio.run(_ask, spec, say)


async def _ask(spec: LLMSpec, say: Callable[[str], None]) -> str:
    models = build_models(spec, SystemClock())
    try:
        with anyio.fail_after(_LIMIT_S):
            async for _chunk in await models.pool().chat([_QUESTION], [], stream=False):
                pass
        for note in models.notes():
            say(f"  {note}")
    except TimeoutError:
        return f"no answer within {_LIMIT_S:.0f} s"
    except AgentError as error:
        return str(error) or type(error).__name__
    finally:
        with anyio.move_on_after(5, shield=True):
            await models.aclose()
    return ""


def _of_ollama(name: str, api_base: str = "", api_key: str = "") -> ModelOffer:
    told = f"{name} (the Ollama {f'at {api_base}' if api_base else 'on this machine'})"
    return ModelOffer(f"ollama/{name}", "ollama", api_base or f"{OLLAMA_URL}/v1", api_key or "ollama", told)


def _prefix(model: str) -> str:
    name = model.partition("/")[0].lower()
    return (
        "".join(char if char.isascii() and char.isalnum() else "-" for char in name).strip("-") or "provider"
    )


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A model and the words for its origin; ``llm`` is its part of a configuration."""

    told: str
    llm: dict[str, Any]


def choose_model(environ: Mapping[str, str], ollama: list[str]) -> ProbedModel:
    """
    Choose; pure.

    Args:
        environ: The environment; ``SQUIDBOT_MODEL`` overrides the model that goes with a key.
        ollama: Names of the models that a local Ollama has.
    """
    wanted = environ.get("SQUIDBOT_MODEL", "")
    for variable, usual in _KEYS:
        if environ.get(variable):
            model = wanted or usual
            provider = {"api_key": f"${{{variable}}}"}
            return ProbedModel(f"{model}, with the key in {variable}", _llm(provider, model))
    if ollama:
        name = wanted.removeprefix("openai/").removeprefix("ollama/") or ollama[0]
        provider = {"api_base": f"{OLLAMA_URL}/v1", "api_key": "ollama"}
        return ProbedModel(f"{name}, from the Ollama on this machine", _llm(provider, f"ollama/{name}"))
    return ProbedModel("the built-in demo model (no key and no Ollama found)", {})


def found_keys(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The keys of providers that the environment has: the variable, and the usual model for it."""
    return [(variable, usual) for variable, usual in _KEYS if environ.get(variable)]


def _llm(provider: dict[str, str], model: str) -> dict[str, Any]:
    return {
        "default_pool": "main",
        "providers": {"found": provider},
        "models": {"found": {"provider": "found", "model": model}},
        "pools": {"main": ["found"]},
    }


def ollama_models(url: str = OLLAMA_URL, *, limit_s: float = 0.5) -> list[str]:
    """Names of the models of a local Ollama; none if there is no Ollama."""
    return _ollama_tags(url, limit_s) or []


def ollama_problem(offer: ModelOffer, url: str = OLLAMA_URL, *, limit_s: float = 5) -> str:
    """Return why the local Ollama cannot answer with this model, or ""."""
    if offer.provider != "ollama" or not offer.api_base.startswith(url):
        return ""
    name, found = offer.model.partition("/")[2], _ollama_tags(url, limit_s)
    if found is None:
        return f"no Ollama answers at {url}; start it with: ollama serve"
    if name not in found and f"{name}:latest" not in found:
        return f"Ollama does not have this model; load it with: ollama pull {name}"
    return ""


def _ollama_tags(url: str, limit_s: float) -> list[str] | None:
    try:
        with urllib.request.urlopen(f"{url}/api/tags", timeout=limit_s) as answer:  # noqa: S310 - loopback
            tags = json.loads(answer.read(1_000_000))
        return [str(model["name"]) for model in tags["models"]]
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError):
        return None
