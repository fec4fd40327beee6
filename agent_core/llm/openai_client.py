"""A client for servers that speak the OpenAI chat format: most providers, and self-hosted servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_core.llm.http_client import HttpModelClient, Reader
from agent_core.llm.model_client import Request
from agent_core.llm.openai_format import Piece, bare_model_name, parse_piece, request_body
from agent_core.llm.providers import Endpoint, adapted, takes_cache_control
from agent_core.ports import Clock


class OpenAIClient(HttpModelClient):
    """
    A client for one model at one OpenAI-compatible server.

    Args:
        model: The model's name, as it is reported; sent is the endpoint's, or what follows ``openai/``.
        api_base: The server's address up to and with ``/v1``.
        api_key: Sent as bearer token if it is not empty.
        endpoint: What its provider wants otherwise than others.
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
        base = api_base.rstrip("/")
        super().__init__(
            model,
            url=base if base.endswith("/chat/completions") else base + "/chat/completions",
            clock=clock,
            headers={},
            api_key=api_key,
            tells_cost=self._endpoint.tells_cost,
            **common,
        )

    def _body(self, asked: Request) -> Mapping[str, Any]:
        body = request_body(
            self._endpoint.model,
            asked.messages,
            asked.tools,
            stream=asked.stream,
            max_tokens=self.refusals.max_tokens,
            extra=self._extra,
            pictures=asked.pictures,
            own_name=self.model,
            signed=self._endpoint.signs_calls,
            marked=self._endpoint.tells_cost and takes_cache_control(self.model),
        )
        return adapted(body, self._endpoint)

    def _reader(self) -> Reader:
        return _read


def _read(data: Mapping[str, Any]) -> Iterator[Piece]:
    yield parse_piece(data)
