"""What tokens cost, where the operator or litellm's table knows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from agent_core.llm.wire import Tokens

__all__ = ["Price"]


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens read and a million tokens written."""

    prompt_usd_per_million: float
    completion_usd_per_million: float

    def of(self, tokens: Tokens) -> float:
        """The cost of one answer."""
        spent = (
            tokens.prompt * self.prompt_usd_per_million + tokens.completion * self.completion_usd_per_million
        )
        return spent / 1_000_000
