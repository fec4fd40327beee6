"""A client for servers that speak the OpenAI chat format: most providers, and self-hosted servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_core.errors import ModelError, ModelRefused
from agent_core.llm.http_client import HttpModelClient, Reader
from agent_core.llm.model_client import Request
from agent_core.llm.openai_format import Piece, bare_model_name, parse_piece, request_body
from agent_core.llm.pools import ADDRESSES, window_in
from agent_core.llm.providers import Endpoint, adapt_request, takes_cache_control
from agent_core.ports import Clock


class OpenAIClient(HttpModelClient):
    """
    A client for one model at one OpenAI-compatible server.

    Args:
        model: The reported name; the endpoint's, or the part after ``openai/``, is sent.
        api_base: The address including ``/v1``.
        endpoint: The provider's deviations.
        window: The owner's value; a self-hosted server is asked for its own.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str,
        clock: Clock,
        api_key: str = "",
        endpoint: Endpoint | None = None,
        **common: Any,
    ) -> None:
        self._endpoint = endpoint or Endpoint(api_base, bare_model_name(model), public=False)
        base = api_base.rstrip("/").removesuffix("/chat/completions")
        self._root = base.removesuffix("/v1")
        self._is_wished = common.get("window") is not None
        self._looks_left = 2
        super().__init__(
            model,
            url=base + "/chat/completions",
            clock=clock,
            headers={},
            api_key=api_key,
            tells_cost=self._endpoint.tells_cost,
            **common,
        )

    async def _prepare(self) -> None:
        """Ask a server of one's own for the window; some know it only once the model is loaded."""
        if not self.at_home or self._looks_left <= 0:
            return
        self._looks_left -= 1
        for address in ADDRESSES:
            try:
                told = window_in(await self._server.fetch_json(self._root + address), self._endpoint.model)
            except ModelRefused:
                continue  # it knows no such address
            except ModelError:
                return  # whatever it is, asking the question will say it
            if told is not None:
                self._looks_left = 0
                self._learn_window(told, wished=self._is_wished)

    def _body(self, asked: Request) -> Mapping[str, Any]:
        body = request_body(
            self._endpoint.model,
            **self._common(asked),
            signed=self._endpoint.signs_calls,
            marked=self._endpoint.tells_cost and takes_cache_control(self.model),
        )
        if "stream_options" in self.refusals.parameters:
            body.pop("stream_options", None)
        return adapt_request(body, self._endpoint)

    def _reader(self) -> Reader:
        return _read


def _read(data: Mapping[str, Any]) -> Iterator[Piece]:
    yield parse_piece(data)
