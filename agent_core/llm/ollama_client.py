"""
A client for Ollama in its own protocol: only there the window of a request can be set.

Ollama reads 4,096 tokens unless it is told otherwise, and cuts off the beginning of what is longer without a
word. So the model is looked up once (``/api/show``), every request names its window, and nothing longer is
sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from agent_core.errors import ModelError, ModelRefused
from agent_core.llm.http_client import HttpModelClient, Reader
from agent_core.llm.model_client import Request
from agent_core.llm.ollama_format import read, request_body
from agent_core.llm.openai_format import Piece
from agent_core.llm.windows import HOME_TOKENS, capabilities, model_window
from agent_core.ports import Clock

API_BASE = "http://127.0.0.1:11434"


class OllamaClient(HttpModelClient):
    """
    A client for one model ``ollama/NAME``.

    ``api_base`` is with or without ``/v1``, "" this machine; ``window`` is the owner's, else the smaller of
    `HOME_TOKENS` and the model's.
    """

    def __init__(
        self,
        model: str,
        *,
        clock: Clock,
        api_base: str = "",
        api_key: str = "",
        window: int | None = None,
        **common: Any,
    ) -> None:
        base = (api_base or API_BASE).rstrip("/").removesuffix("/api").removesuffix("/v1")
        extra = dict(common.pop("extra", None) or {})
        options = extra.get("options")
        told = (window, extra.pop("num_ctx", None), options.get("num_ctx") if options else None)
        wished = [int(each) for each in told if each]
        super().__init__(
            model,
            url=f"{base}/api/chat",
            clock=clock,
            headers={},
            api_key=api_key,
            window=min(wished, default=HOME_TOKENS),
            at_home=True,
            extra=extra,
            **common,
        )
        self._base = base
        self._is_wished = bool(wished)
        self._name = model.partition("/")[2]
        self._known = False
        self._thinks = True

    async def _prepare(self) -> None:
        """Look the model up, until the server has said what it is."""
        if self._known:
            return
        try:
            shown = await self._server.fetch_json(f"{self._base}/api/show", {"model": self._name})
        except ModelError as error:
            if (missing := self._missing(error)) is not None:
                raise missing from error
            return  # whatever it is, asking the question will say it
        if not isinstance(shown, Mapping):
            return
        self._known = True
        self._learn_window(model_window(shown), wished=self._is_wished)
        able = capabilities(shown)
        if able is None:
            return
        self._thinks = "thinking" in able
        if "tools" not in able:
            self.refusals.all_tools = True
            self._note(
                f"{self._name} cannot use tools: it only talks; those at ollama.com/search?c=tools can"
            )
        if "vision" not in able and self._pictures is not None:
            self._pictures = None
            self._note(
                f"{self._name} cannot look at pictures, whatever the configuration says; set vision: false"
            )

    def _body(self, asked: Request) -> Mapping[str, Any]:
        return request_body(
            self._name,
            **self._common(asked),
            window=self.window,
            thinks=self._thinks,
        )

    def _reader(self) -> Reader:
        return read

    async def _pieces(self, asked: Request) -> AsyncGenerator[Piece, None]:
        try:
            async with aclosing(super()._pieces(asked)) as pieces:
                async for piece in pieces:
                    yield piece
        except ModelRefused as error:
            self._known = self._known and error.fields.get("status") != 404
            raise self._missing(error) or error from error

    def _missing(self, error: ModelError) -> ModelError | None:
        """The error for a model that is not there, with the command that loads it; it cools nothing."""
        if error.fields.get("status") != 404 or "not found" not in str(error) or self._name not in str(error):
            return None
        load = f"ollama pull {self._name}"
        return ModelRefused(
            f"{error}; load it with: {load}",
            public=f"The language model is not on its server. My operator can load it with: {load}",
            **{**error.fields, "cool_s": 0.0},
        )
