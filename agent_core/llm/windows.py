"""
The context window of a model on a server of one's own, as the server itself says it.

A server that is asked for more than its window may cut the beginning off and say nothing; so nobody's word is
simply believed: of what the owner, the model and the server say the smallest counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_core.models import Message

HOME_TOKENS = 16_384
"""Asked of Ollama where the owner has said nothing: a model of 8 billion parameters then fits into 8 GB."""
ADDRESSES = ("/v1/models", "/props", "/api/v0/models", "/api/ps")
"""Of vLLM and llama.cpp, llama.cpp, LM Studio, and Ollama asked in OpenAI's protocol."""
_SMALLEST = 256
_KEYS = ("max_model_len", "loaded_context_length", "context_length", "n_ctx")


def window_in(answer: object, model: str) -> int | None:
    """The window of a model in what one of `ADDRESSES` gives; None if it does not say. Pure."""
    found: list[int] = []
    for entry in _entries(answer, model):
        nested = (entry.get("meta"), entry.get("default_generation_settings"))
        for fields in (entry, *(each for each in nested if isinstance(each, dict))):
            found += [fields[key] for key in _KEYS if _is_window(fields.get(key))]
    return min(found, default=None)


def _entries(answer: object, model: str) -> Iterable[Mapping[str, Any]]:
    if not isinstance(answer, dict):
        return []
    listed = answer.get("data", answer.get("models"))
    if not isinstance(listed, list):
        return [answer]
    entries = [each for each in listed if isinstance(each, dict)]
    names = ("id", "name", "model")
    named = [each for each in entries if {model, f"{model}:latest"} & {each.get(key) for key in names}]
    return named or (entries if len(entries) == 1 else [])


def model_window(shown: Mapping[str, Any]) -> int | None:
    """The longest window that a model of Ollama can have, by ``/api/show``; None if that says nothing."""
    info = shown.get("model_info")
    found = [
        value
        for key, value in (info.items() if isinstance(info, dict) else ())
        if key.endswith(".context_length") and _is_window(value)
    ]
    return min(found, default=None)


def capabilities(shown: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the capabilities of an Ollama model; None if the server is too old to report them."""
    told = shown.get("capabilities")
    return frozenset(map(str, told)) if isinstance(told, list) else None


def least_tokens(messages: Sequence[Message]) -> int:
    """Return a lower bound of tokens: one per word, and per four characters of scripts without blanks."""
    return sum(
        max(len(text.split()), (len(text.encode(errors="replace")) - len(text)) // 8)
        for text in (message.content for message in messages)
    )


def answer_room(window: int) -> int:
    """Return the tokens of a window that are reserved for the answer."""
    return window // 8


def _is_window(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= _SMALLEST
