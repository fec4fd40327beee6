"""
The prices of tokens, from the operator's settings or litellm's table. The table is a file of litellm's
distribution; reading it does not import litellm.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_core.llm.openai_format import TokenCounts

_TABLE = "model_prices_and_context_window_backup.json"


@dataclass(frozen=True, slots=True)
class Price:
    """
    US dollars for a million tokens read and a million tokens written. Cached tokens cost
    ``cached_usd_per_million``, or as much as the rest if that is None.
    """

    prompt_usd_per_million: float
    completion_usd_per_million: float
    cached_usd_per_million: float | None = None

    def cost_of(self, tokens: TokenCounts) -> float:
        """The cost of one answer."""
        cached = self.cached_usd_per_million
        spent = (
            (tokens.prompt - tokens.cached) * self.prompt_usd_per_million
            + tokens.cached * (self.prompt_usd_per_million if cached is None else cached)
            + tokens.completion * self.completion_usd_per_million
        )
        return spent / 1_000_000


@functools.lru_cache(maxsize=64)
def listed_price(model: str) -> Price | None:
    """The price of ``PREFIX/NAME`` in litellm's table; None if it is not listed."""
    for entry in _entries_of(model):
        prompt, completion = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
        if isinstance(prompt, int | float) and isinstance(completion, int | float):
            cached = entry.get("cache_read_input_token_cost")
            kept = cached * 1e6 if isinstance(cached, int | float) else None
            return Price(prompt * 1e6, completion * 1e6, kept)
    return None


@functools.lru_cache(maxsize=8)
def listed_per_minute(model: str) -> float | None:
    """The price of a minute of sound that ``PREFIX/NAME`` transcribes, in US dollars, in the same table."""
    listed = (entry.get("input_cost_per_second") for entry in _entries_of(model))
    return next((per_second * 60 for per_second in listed if isinstance(per_second, int | float)), None)


@functools.lru_cache(maxsize=64)
def listed_thinking(model: str) -> bool:
    """Return True if litellm's table says that ``PREFIX/NAME`` can reason."""
    table = _table()
    entries = (_entry(table, listed) for listed in (model, model.partition("/")[2]))
    return any(entry is not None and entry.get("supports_reasoning") is True for entry in entries)


def _entries_of(model: str) -> Iterator[dict[str, Any]]:
    """Yield what the table says of a model at its own provider."""
    table = _table()
    prefix, _, name = model.partition("/")
    for listed in (model, name):
        entry = _entry(table, listed)
        if entry is not None and entry.get("litellm_provider") == prefix:
            yield entry


def _table() -> str:
    """The text of the table; it is three megabytes, so it is not kept."""
    found = importlib.util.find_spec("litellm")
    try:
        return (Path(found.origin or "").parent / _TABLE).read_text(encoding="utf-8") if found else ""
    except OSError:
        return ""


def _entry(table: str, name: str) -> dict[str, Any] | None:
    """One entry, read without the four thousand others."""
    key = f"\n    {json.dumps(name)}: "
    at = table.find(key)
    if at < 0:
        return None
    try:
        entry, _ = json.JSONDecoder().raw_decode(table, at + len(key))
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
