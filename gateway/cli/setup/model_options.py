"""
Which model to use when nobody has configured one: a key in the environment, a local Ollama, else the demo
model, which needs neither.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["OLLAMA_URL", "ModelChoice", "choose_model", "found_keys", "ollama_models"]

OLLAMA_URL = "http://127.0.0.1:11434"
_KEYS = (
    ("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5"),
    ("OPENAI_API_KEY", "openai/gpt-5-mini"),
    ("MISTRAL_API_KEY", "mistral/mistral-small-latest"),
    ("GEMINI_API_KEY", "gemini/gemini-2.5-flash"),
    ("OPENROUTER_API_KEY", "openrouter/openai/gpt-5-mini"),
)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """
    A model and how to say where it came from.

    ``llm`` is the ``llm:`` part of a configuration; empty for the demo model.
    """

    told: str
    llm: dict[str, Any]


def choose_model(environ: Mapping[str, str], ollama: list[str]) -> ModelChoice:
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
            return ModelChoice(f"{model}, with the key in {variable}", _llm(provider, model))
    if ollama:
        name = wanted.removeprefix("openai/") or ollama[0]
        provider = {"api_base": f"{OLLAMA_URL}/v1", "api_key": "ollama"}
        return ModelChoice(f"{name}, from the Ollama on this machine", _llm(provider, f"openai/{name}"))
    return ModelChoice("the built-in demo model (no key and no Ollama found)", {})


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
    try:
        with urllib.request.urlopen(f"{url}/api/tags", timeout=limit_s) as answer:  # noqa: S310 - loopback
            tags = json.loads(answer.read(1_000_000))
        return [str(model["name"]) for model in tags["models"]]
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError):
        return []
