"""A client for Anthropic's own protocol, which needs no litellm and keeps thoughts within a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_core.llm.anthropic_format import DEFAULT_MAX_TOKENS, AnswerReader, request_body
from agent_core.llm.http_client import HttpModelClient, Reader
from agent_core.llm.model_client import Request
from agent_core.ports import Clock

API_BASE = "https://api.anthropic.com"
_VERSION = "2023-06-01"


class AnthropicClient(HttpModelClient):
    """
    A client for one model ``anthropic/NAME``, or of a compatible server.

    ``api_base`` is with or without ``/v1``, "" the provider's; ``api_key`` is sent as ``x-api-key``.
    """

    def __init__(
        self, model: str, *, clock: Clock, api_base: str = "", api_key: str = "", **common: Any
    ) -> None:
        base = (api_base or API_BASE).rstrip("/").removesuffix("/messages").removesuffix("/v1")
        super().__init__(
            model,
            url=f"{base}/v1/messages",
            clock=clock,
            headers={"anthropic-version": _VERSION, **({"x-api-key": api_key} if api_key else {})},
            api_key=api_key,
            **{**common, "max_tokens": common.get("max_tokens") or DEFAULT_MAX_TOKENS},
        )

    def _body(self, asked: Request) -> Mapping[str, Any]:
        return request_body(
            self.model.partition("/")[2],
            **self._common(asked),
            adaptive=self.refusals.budget,
        )

    def _reader(self) -> Reader:
        return AnswerReader()
