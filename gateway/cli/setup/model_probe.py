"""
Which model answers: what the environment and this machine offer, and one tiny question to prove it.

A key that is found in the environment is copied into a file of secrets, because a service has another
environment than a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic import ValidationError

from agent_core.errors import AgentError
from agent_core.llm.config import LLMSpec, check_references
from agent_core.llm.factory import build_models
from agent_core.llm.providers import endpoint_of, key_variables
from agent_core.models import Message
from gateway.cli.setup.matrix_probe import complaint
from gateway.cli.setup.model_options import OLLAMA_URL, found_keys
from gateway.system.clock import SystemClock

__all__ = ["DEMO", "ModelOffer", "key_variable", "named", "offers", "prove"]

DEMO = "demo/demo"
_LIMIT_S = 60.0
_QUESTION = Message(role="user", content="Say OK.")


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """
    A model, how it is reached, and where it was found.

    ``provider`` is the name under ``llm.providers``; empty for the built-in demo model.
    """

    model: str
    provider: str = ""
    api_base: str = ""
    api_key: str = field(default="", repr=False)
    told: str = ""

    @property
    def secret_name(self) -> str:
        """Under which name its key is kept."""
        return f"{self.provider}-api-key"

    @property
    def needs_litellm(self) -> bool:
        """Whether its provider speaks a protocol of its own."""
        return bool(self.provider) and endpoint_of(self.model, self.api_base) is None

    @property
    def is_own_server(self) -> bool:
        """Whether its key is no secret, because nobody asks for it."""
        return bool(self.api_base) and self.api_key in ("", "ollama")


def offers(environ: Mapping[str, str], ollama: Sequence[str]) -> list[ModelOffer]:
    """What there is, the likeliest first; the built-in demo model always is. Pure."""
    found = [
        ModelOffer(model, _prefix(model), api_key=environ[variable], told=f"{model} (the key in {variable})")
        for variable, model in found_keys(environ)
    ]
    found += [_of_ollama(name) for name in ollama]
    return [*found, ModelOffer(DEMO, told="the built-in demo model (small, offline, needs no key)")]


def named(model: str, *, api_base: str, api_key: str, environ: Mapping[str, str]) -> ModelOffer:
    """
    The model that somebody names. Pure.

    Args:
        model: ``provider/model``; ``ollama/NAME`` for the local Ollama, likewise ``vllm`` and ``lm_studio``;
            ``demo``.
        api_base: Of a server that speaks OpenAI's format, if it is one of one's own.
        api_key: Its key; empty to look for the provider's usual variable.
        environ: Where that is.
    """
    if model in ("demo", DEMO, "demo/echo"):
        return ModelOffer(DEMO if model == "demo" else model, told="the built-in demo model")
    if api_base:
        whole = model if model.startswith("openai/") else f"openai/{model}"
        return ModelOffer(whole, "server", api_base, api_key, f"{whole} at {api_base}")
    if model.startswith("ollama/"):
        return _of_ollama(model.removeprefix("ollama/"))
    endpoint = endpoint_of(model, "")
    if endpoint is not None and not endpoint.public:
        told = f"{model} at {endpoint.api_base}"
        return ModelOffer(f"openai/{endpoint.model}", _prefix(model), endpoint.api_base, api_key, told)
    key = api_key or next((environ[name] for name in key_variables(model) if environ.get(name)), "")
    return ModelOffer(model, _prefix(model), "", key, model)


def key_variable(model: str) -> str:
    """The variable in which people have the key for this model."""
    return key_variables(f"{_prefix(model)}/")[0]


def prove(offer: ModelOffer) -> str:
    """Ask one tiny question. Returns what is wrong, in plain words; empty if it has answered."""
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
    return "; ".join(text for _, text in problems) or anyio.run(_ask, spec)


async def _ask(spec: LLMSpec) -> str:
    models = build_models(spec, SystemClock())
    try:
        with anyio.fail_after(_LIMIT_S):
            async for _chunk in await models.pool().chat([_QUESTION], [], stream=False):
                pass
    except TimeoutError:
        return f"no answer within {_LIMIT_S:.0f} s"
    except AgentError as error:
        return str(error) or type(error).__name__
    finally:
        with anyio.move_on_after(5, shield=True):
            await models.aclose()
    return ""


def _of_ollama(name: str) -> ModelOffer:
    told = f"{name} (the Ollama on this machine)"
    return ModelOffer(f"openai/{name}", "ollama", f"{OLLAMA_URL}/v1", "ollama", told)


def _prefix(model: str) -> str:
    name = model.partition("/")[0].lower()
    return (
        "".join(char if char.isascii() and char.isalnum() else "-" for char in name).strip("-") or "provider"
    )
