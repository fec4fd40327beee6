"""
Image generation by servers that have ``/images/generations`` of OpenAI's protocol, over aiohttp alone.

A picture comes inside the answer. An address instead of a picture is not followed, because the server would
then choose what this machine fetches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_core.image.pictures import Made, pictures_in
from agent_core.llm.openai_connection import OpenAIConnection
from agent_core.llm.openai_format import token_count
from agent_core.llm.providers import Endpoint
from agent_core.ports import Clock

_ROOM_BYTES = 64 * 1024


class OpenAIImages:
    """
    Implements `MakesPictures` for one model at one server.

    Args:
        extra: Further fields of a request; they win.
        max_bytes: Of one picture.
    """

    def __init__(
        self,
        model: str,
        *,
        endpoint: Endpoint,
        clock: Clock,
        api_key: str = "",
        extra: Mapping[str, Any],
        max_bytes: int,
        timeout_s: float,
        usd_per_image: float | None = None,
    ) -> None:
        self.model = model
        self._server = OpenAIConnection(
            endpoint.api_base.rstrip("/") + "/images/generations",
            model=model,
            clock=clock,
            api_key=api_key,
            headers={"Content-Type": "application/json"},
        )
        # Those of OpenAI that can do nothing else refuse to be told so.
        only_inside = endpoint.model.startswith("gpt-image")
        inside = {} if only_inside else {"response_format": "b64_json"}
        self._body = {"model": endpoint.model, **inside, **extra}
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._price = usd_per_image

    async def make(self, prompt: str, *, count: int, size: str) -> Made:
        """Pictures; see `MakesPictures`."""
        body = {**self._body, "prompt": prompt, "n": count, **({"size": size} if size else {})}
        content = await self._server.whole(
            json.dumps(body, ensure_ascii=False).encode("utf-8", "replace"),
            limit_s=self._timeout_s,
            most_bytes=count * (self._max_bytes * 4 // 3 + _ROOM_BYTES),
            too_large="pictures that are too large",
        )
        with self._server.judged():
            answer = json.loads(content)
            if not isinstance(answer, dict):
                raise ValueError("no object")  # noqa: TRY004 - about content, not about types
            pictures = pictures_in(answer, most=count, max_bytes=self._max_bytes)
        return Made(pictures, tokens_in(answer), cost_of(len(pictures), self._price), self.model)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._server.aclose()


def tokens_in(answer: Mapping[str, Any]) -> tuple[int, int]:
    """The tokens that an answer reports for the prompt and for the pictures."""
    usage = answer.get("usage")
    if not isinstance(usage, Mapping):
        return (0, 0)
    return token_count(usage.get("input_tokens")), token_count(usage.get("output_tokens"))


def cost_of(count: int, usd_per_image: float | None) -> float | None:
    """The cost of so many pictures."""
    return None if usd_per_image is None else count * usd_per_image
