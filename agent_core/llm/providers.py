"""
The providers whose servers speak OpenAI's protocol, by the prefix of the model's name. Pure. Our own client
asks the models of these providers, without litellm. The table lists the differences: the address, and the few
request fields that a provider refuses or expects under another name.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

_SELLS_CLAUDE = frozenset({"bedrock", "vertex_ai", "azure_ai", "openrouter"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    The address and the key for one model.

    ``public``: a provider's own address, with known prices. ``signs_calls``: tool calls carry a signature to
    send back (Gemini).
    """

    api_base: str
    model: str = ""
    public: bool = True
    max_tokens_name: str = "max_tokens"
    asks_for_usage: bool = True
    short_call_ids: bool = False
    signs_calls: bool = False
    tells_cost: bool = False
    nested_effort: bool = False


@dataclass(frozen=True, slots=True)
class _Provider:
    """A provider: its own ``server``, as an endpoint without a model."""

    server: Endpoint
    at_home: bool = False
    """A server on this machine: ``api_base`` may be given without its path."""
    protocol_elsewhere: bool = True
    """Whether another ``api_base`` speaks OpenAI's protocol as well."""
    keys: tuple[str, ...] = ()


_OLLAMA_PORT = 11434
_OLLAMA = _Provider(Endpoint(f"http://127.0.0.1:{_OLLAMA_PORT}/v1"), at_home=True)
_VLLM = _Provider(Endpoint("http://127.0.0.1:8000/v1"), at_home=True)
_LM_STUDIO = _Provider(Endpoint("http://127.0.0.1:1234/v1"), at_home=True)
_TOGETHER = _Provider(
    Endpoint("https://api.together.xyz/v1"), keys=("TOGETHERAI_API_KEY", "TOGETHER_API_KEY")
)
_FIREWORKS = _Provider(
    Endpoint("https://api.fireworks.ai/inference/v1"), keys=("FIREWORKS_AI_API_KEY", "FIREWORKS_API_KEY")
)
_PROVIDERS: Mapping[str, _Provider] = {
    "openai": _Provider(Endpoint("https://api.openai.com/v1", max_tokens_name="max_completion_tokens")),
    "openrouter": _Provider(Endpoint("https://openrouter.ai/api/v1", tells_cost=True, nested_effort=True)),
    "groq": _Provider(Endpoint("https://api.groq.com/openai/v1")),
    "mistral": _Provider(Endpoint("https://api.mistral.ai/v1", asks_for_usage=False, short_call_ids=True)),
    "deepseek": _Provider(Endpoint("https://api.deepseek.com/v1")),
    "xai": _Provider(Endpoint("https://api.x.ai/v1")),
    "together": _TOGETHER,
    "together_ai": _TOGETHER,
    "fireworks": _FIREWORKS,
    "fireworks_ai": _FIREWORKS,
    "gemini": _Provider(
        Endpoint("https://generativelanguage.googleapis.com/v1beta/openai", signs_calls=True),
        protocol_elsewhere=False,
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    "ollama": _OLLAMA,
    "ollama_chat": _OLLAMA,
    "vllm": _VLLM,
    "hosted_vllm": _VLLM,
    "lm_studio": _LM_STUDIO,
}


def endpoint_of(model: str, api_base: str) -> Endpoint | None:
    """Return the OpenAI-compatible endpoint of a model ``PREFIX/NAME``, or None."""
    prefix, _, name = model.partition("/")
    provider = _PROVIDERS.get(prefix)
    if provider is None or not name or (api_base and not provider.protocol_elsewhere):
        return None
    server = provider.server
    if provider.at_home:
        bare = bool(api_base) and urlsplit(api_base).path in ("", "/")
        address = api_base.rstrip("/") + "/v1" if bare else api_base or server.api_base
        return Endpoint(address, name, public=False)
    if prefix == "openai" and api_base:
        return Endpoint(api_base, name, public=False)
    return replace(server, api_base=api_base or server.api_base, model=name, public=not api_base)


def is_ollama(model: str, api_base: str) -> bool:
    """Return True for Ollama: by provider, or by its port in an "openai/" entry of an old ``init``."""
    prefix, _, name = model.partition("/")
    if prefix == "openai":
        return bool(api_base) and urlsplit(api_base).port == _OLLAMA_PORT
    return prefix in ("ollama", "ollama_chat") and bool(name)


def is_self_hosted(model: str, api_base: str) -> bool:
    """Return True if a model runs on a self-hosted server: by its provider, or by a private address."""
    provider = _PROVIDERS.get(model.partition("/")[0])
    if not api_base:
        return provider is not None and provider.at_home
    host = (urlsplit(api_base).hostname or "").lower()
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".lan", ".home.arpa", ".internal"))


def takes_cache_control(model: str) -> bool:
    """Return True if a model caches prompts only up to explicit marks, as Anthropic's do."""
    prefix, _, name = model.partition("/")
    return prefix == "anthropic" or (prefix in _SELLS_CLAUDE and "claude" in name)


def adapt_request(body: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """The request in the form that this provider accepts."""
    out = dict(body)
    if "max_tokens" in out and endpoint.max_tokens_name != "max_tokens":
        out[endpoint.max_tokens_name] = out.pop("max_tokens")
    if "reasoning_effort" in out and endpoint.nested_effort:
        out.setdefault("reasoning", {"effort": out.pop("reasoning_effort")})
    if not endpoint.asks_for_usage:
        out.pop("stream_options", None)
    if endpoint.short_call_ids:
        out["messages"] = [_with_short_ids(message) for message in out["messages"]]
    return out


def _with_short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of tool calls as nine letters and digits, whoever made them."""
    out = dict(message)
    if "tool_calls" in out:
        out["tool_calls"] = [call | {"id": _short_id(call["id"])} for call in out["tool_calls"]]
    if "tool_call_id" in out:
        out["tool_call_id"] = _short_id(out["tool_call_id"])
    return out


def _short_id(name: str) -> str:
    fits = len(name) == 9 and name.isascii() and name.isalnum()
    return name if fits else hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:9]


def key_variables(model: str) -> tuple[str, ...]:
    """The usual environment variables for this model's key; none for a server at home."""
    prefix = model.partition("/")[0]
    provider = _PROVIDERS.get(prefix)
    if provider is not None and provider.at_home:
        return ()
    usual = f"{prefix.upper().replace('-', '_')}_API_KEY"
    return (provider.keys if provider else ()) or (usual,)


def key_of_environment(model: str, endpoint: Endpoint) -> str:
    """The key in the provider's usual variable; only the provider's own address gets it."""
    return key_in_environment(model) if endpoint.public else ""


def key_in_environment(model: str) -> str:
    """The key in the provider's usual variable; empty: there is none."""
    return next((key for name in key_variables(model) if (key := os.environ.get(name, ""))), "")
