"""
The client for every provider that litellm knows; litellm itself runs in a process of its own.

Retries, fallback, cool-down and time limits are our own (``pools``, ``streaming``), because litellm's are
hidden, partly ignored, and cannot be journaled. ``child`` contains what litellm does here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agent_core.children.service import CallFailed
from agent_core.errors import Failure, ModelError
from agent_core.llm.litellm.litellm_process import LiteLLMProcess, access
from agent_core.llm.model_client import ModelClient, Request
from agent_core.llm.model_errors import classify
from agent_core.llm.openai_format import Piece, request_body
from agent_core.llm.providers import takes_cache_control
from agent_core.ports import Clock


class LiteLLMClient(ModelClient):
    """A client for one model by litellm's name, such as ``bedrock/…``; ``api_base`` if unusual."""

    def __init__(
        self,
        model: str,
        *,
        clock: Clock,
        process: LiteLLMProcess,
        api_base: str = "",
        api_key: str = "",
        **common: Any,
    ) -> None:
        super().__init__(model, clock=clock, **common)
        self._process = process
        self._api_base = api_base
        self._key = api_key

    async def _prepare(self) -> None:
        try:
            await self._process.start()
        except CallFailed as error:
            raise self._error(error.failure) from error

    async def _pieces(self, asked: Request) -> AsyncGenerator[Piece, None]:
        """Yield litellm's answer in our form; raises only `ModelError`."""
        request = request_body(self.model, **self._common(asked), marked=takes_cache_control(self.model))
        request |= {"max_retries": 0, "num_retries": 0, "timeout": self._limits.total_s}
        request |= access(self._api_base, self._key)
        try:
            async with aclosing(
                self._process.ask(request, stream=asked.stream, cost=self._wants_cost)
            ) as pieces:
                async for piece in pieces:
                    yield self._priced(piece)
        except CallFailed as error:
            raise self._error(error.failure) from error
        except ValueError as error:
            raise self._error(Failure(text=f"the request cannot be sent: {error}", status=413)) from error

    @property
    def _wants_cost(self) -> bool:
        """Return True if litellm's price table applies: no own price, no self-hosted server."""
        return self._price is None and not (self._api_base and self.model.startswith("openai/"))

    def _priced(self, piece: Piece) -> Piece:
        if self._price is None or piece.tokens is None:
            return piece
        return replace(piece, cost_usd=self._price.cost_of(piece.tokens))

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())
