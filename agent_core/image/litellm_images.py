"""Image generation by every provider that litellm knows; litellm itself runs in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio

from agent_core.child_process.process import CallFailed
from agent_core.errors import Failure, ModelError
from agent_core.image.openai_images import cost_of, tokens_in
from agent_core.image.pictures import Made, pictures_in
from agent_core.llm.errors import classify
from agent_core.llm.litellm.process import LiteLLMProcess, access
from agent_core.ports import Clock


class LiteLLMImages:
    """
    Implements `MakesPictures` for one model of any provider.

    Args:
        model: litellm's name of it, such as ``gemini/imagen-4.0-generate-001``.
        extra: Further parameters; they win.
        usd_per_image: What one costs, where litellm's table is wrong or silent.
    """

    def __init__(
        self,
        model: str,
        *,
        process: LiteLLMProcess,
        clock: Clock,
        api_base: str = "",
        api_key: str = "",
        extra: Mapping[str, Any],
        max_bytes: int,
        timeout_s: float,
        usd_per_image: float | None = None,
    ) -> None:
        self.model = model
        self._process = process
        self._clock = clock
        self._key = api_key
        self._request: dict[str, Any] = {
            "model": model,
            "max_retries": 0,
            "timeout": timeout_s,
            **access(api_base, api_key),
            **extra,
        }
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._price = usd_per_image

    async def make(self, prompt: str, *, count: int, size: str) -> Made:
        """Pictures, one request for each: an answer with several would be too large for the process."""
        made = Made((), cost_usd=0.0, model=self.model)
        try:
            await self._process.start()
        except CallFailed as error:
            raise self._error(error.failure) from error
        for _ in range(count):
            try:
                with anyio.fail_after(self._timeout_s / count):
                    made = self._with(made, *await self._ask(prompt, size))
            except (CallFailed, TimeoutError, ValueError, RecursionError) as error:
                if made.pictures:  # those are paid
                    return made
                raise self._error(_failure_of(error)) from error
        return made

    async def aclose(self) -> None:
        """The process belongs to the models."""

    async def _ask(self, prompt: str, size: str) -> tuple[str, float | None]:
        request = {**self._request, "prompt": prompt, "n": 1, **({"size": size} if size else {})}
        texts: list[str] = []
        cost: float | None = None
        asked = self._process.ask(request, stream=False, cost=self._price is None, task="image")
        async with aclosing(asked) as pieces:
            async for piece in pieces:
                texts.append(piece.text)
                cost = piece.cost_usd if piece.cost_usd is not None else cost
                if sum(map(len, texts)) > self._max_bytes * 2:
                    raise ValueError("a picture that is too large")
        return "".join(texts), cost

    def _with(self, made: Made, text: str, cost: float | None) -> Made:
        answer = json.loads(text)
        if not isinstance(answer, dict):
            raise ValueError("no object")  # noqa: TRY004 - about content, not about types
        (picture,) = pictures_in(answer, most=1, max_bytes=self._max_bytes)
        cost = cost if self._price is None else cost_of(1, self._price)
        tokens = tokens_in(answer)
        return replace(
            made,
            pictures=(*made.pictures, picture),
            tokens=(made.tokens[0] + tokens[0], made.tokens[1] + tokens[1]),
            cost_usd=None if cost is None or made.cost_usd is None else made.cost_usd + cost,
        )

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, CallFailed):
        return error.failure
    if isinstance(error, TimeoutError):
        return Failure(text="no answer in time", unreadable="slow")
    return Failure(text=str(error), unreadable="malformed")
