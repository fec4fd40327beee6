"""
The client for every provider that litellm knows; litellm itself runs in a process of its own.

Retries, fallback, cool-down and time limits are our own (``pools``, ``streaming``), because litellm's are
hidden, partly ignored, and cannot be journaled. ``child`` contains what litellm does here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agent_core.child_process.process import CallFailed
from agent_core.errors import Failure
from agent_core.llm.errors import classify
from agent_core.llm.images import pictures_of
from agent_core.llm.litellm.process import LiteLLMProcess, access
from agent_core.llm.openai_format import Piece, request_body
from agent_core.llm.prices import Price
from agent_core.llm.providers import takes_cache_control
from agent_core.llm.reasoning import Habit
from agent_core.llm.streaming import AnswerLimits, answer
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.ports import AttachmentPort, Clock


class LiteLLMClient:
    """
    An `LLMPort` for one model of any provider that litellm knows.

    Args:
        model: litellm's name of it, such as ``anthropic/claude-…`` or ``openai/…``.
        api_base: Where the provider is, if not at its usual address.
        extra: Further parameters, such as ``temperature``.
        price: What tokens cost, where litellm's own table is wrong or silent.
        pictures: Where pictures are read, for a model that looks at them.
    """

    def __init__(
        self,
        model: str,
        *,
        clock: Clock,
        process: LiteLLMProcess,
        api_base: str = "",
        api_key: str = "",
        max_tokens: int | None = None,
        extra: Mapping[str, Any] | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008 - a frozen value
        price: Price | None = None,
        pictures: AttachmentPort | None = None,
    ) -> None:
        self.model = model
        self._clock = clock
        self._process = process
        self._api_base = api_base
        self._key = api_key
        self._max_tokens = max_tokens
        self._extra = dict(extra or {})
        self._limits = limits
        self._price = price
        self._pictures = pictures
        self._habit = Habit()

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Ask for one answer; see `LLMPort`. Starting the process does not count for the limits."""
        request = request_body(
            self.model,
            messages,
            tools,
            stream=stream,
            max_tokens=self._max_tokens,
            extra=self._extra,
            pictures=await pictures_of(messages, self._pictures),
            marked=takes_cache_control(self.model),
        )
        request |= {"max_retries": 0, "num_retries": 0, "timeout": self._limits.total_s}
        request |= access(self._api_base, self._key)
        try:
            await self._process.start()
        except CallFailed as error:
            raise self._error(error.failure) from error
        return answer(
            self._pieces(request, stream=stream),
            limits=self._limits,
            model=self.model,
            stream=stream,
            habit=self._habit,
        )

    async def _pieces(self, request: Mapping[str, Any], *, stream: bool) -> AsyncGenerator[Piece, None]:
        """What litellm gives, in our form; every exception is one of ours."""
        try:
            async with aclosing(self._process.ask(request, stream=stream, cost=self._wants_cost)) as pieces:
                async for piece in pieces:
                    yield self._priced(piece)
        except CallFailed as error:
            raise self._error(error.failure) from error
        except ValueError as error:
            raise self._error(Failure(text=f"the request cannot be sent: {error}", status=413)) from error

    @property
    def _wants_cost(self) -> bool:
        """Whether litellm's table is asked: not for a model on a server of one's own."""
        return self._price is None and not (self._api_base and self.model.startswith("openai/"))

    def _priced(self, piece: Piece) -> Piece:
        if self._price is None or piece.tokens is None:
            return piece
        return replace(piece, cost_usd=self._price.of(piece.tokens))

    def _error(self, failure: Failure) -> Exception:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())
