"""
The client for every provider that litellm knows. One process, started with the daemon, runs litellm for all
models and holds no key: each request brings its own. Retries, fallback and time limits are our own, because
litellm's are hidden and cannot be journaled. If the process dies in a call, the call is tried once more in a
new one; a second death is final.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import Any

from agent_core.children.frames import list_in, object_in, text_in
from agent_core.children.service import CallFailed, ChildProcess
from agent_core.errors import Failure, ModelError
from agent_core.llm.model_client import ModelClient, Request
from agent_core.llm.model_errors import classify
from agent_core.llm.openai_format import Piece, TokenCounts, ToolFragment, request_body, token_count
from agent_core.llm.providers import takes_cache_control
from agent_core.ports import Clock


def frame_of(piece: Piece) -> dict[str, Any]:
    """A piece as a frame, without empty fields."""
    return {name: value for name, value in asdict(piece).items() if value not in ("", (), None, {})}


def piece_in(frame: object) -> Piece:
    """The piece of a frame. Raises `ValueError`: there is none."""
    data = object_in(frame)
    tokens = data.get("tokens")
    cost = data.get("cost_usd")
    finish = data.get("finish")
    return Piece(
        text=text_in(data.get("text", "")),
        fragments=tuple(_fragment(object_in(one)) for one in list_in(data.get("fragments", []))),
        tokens=None
        if tokens is None
        else TokenCounts(**{n: token_count(v) for n, v in object_in(tokens).items()}),
        thought=token_count(data.get("thought", 0)),
        reasoning=object_in(data.get("reasoning", {})),
        finish=None if finish is None else text_in(finish),
        cost_usd=float(cost) if isinstance(cost, int | float) and 0 <= cost < math.inf else None,
    )


def _fragment(data: Mapping[str, Any]) -> ToolFragment:
    index = data.get("index")
    return ToolFragment(
        index=index if isinstance(index, int) else None,
        **{name: text_in(data.get(name, "")) for name in ("id", "name", "arguments", "signature")},
    )


_CHILD = ("-m", "agent_core.llm.litellm.litellm_child")


class LiteLLMProcess(ChildProcess):
    """The process of litellm for all models."""

    def __init__(self, *, idle_s: float = 3600.0, variables: Collection[str] = ()) -> None:
        super().__init__("litellm", (sys.executable, *_CHILD), idle_s=idle_s, variables=variables)

    def ask(
        self, request: Mapping[str, Any], *, stream: bool, cost: bool, task: str = "chat"
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of one answer to a chat, or with ``task`` to something else; see `ChildProcess.call`."""
        asked = {"request": request, "stream": stream, "cost": cost, "task": task}
        return self.call(asked, piece_in)


def access(api_base: str, api_key: str) -> dict[str, str]:
    """A request's data about its server; litellm's SDK requires a key even if the server does not."""
    key = api_key or ("none" if api_base else "")
    return {name: said for name, said in (("api_base", api_base), ("api_key", key)) if said}


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
