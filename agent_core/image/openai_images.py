"""
Pictures from servers that have ``/images/generations`` of OpenAI's protocol, over aiohttp alone.

A picture comes inside of the answer. An address in its place is not followed: it would be the server's choice
what this machine fetches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import anyio

from agent_core.errors import ModelError
from agent_core.image.pictures import Made, pictures_in
from agent_core.llm.errors import Failure, classify
from agent_core.llm.openai_client import describe, failure_in, is_loopback
from agent_core.llm.openai_format import token_count
from agent_core.llm.providers import Endpoint
from agent_core.ports import Clock

__all__ = ["OpenAIImages", "cost_of", "tokens_in"]

_CONNECT_LIMIT_S = 10.0
_MAX_ERROR_BYTES = 64 * 1024
_ROOM_BYTES = 64 * 1024


class OpenAIImages:
    """
    Implements `MakesPictures` for one model at one server.

    Args:
        model: The model's name, as it is reported.
        endpoint: Where it is, and its name there.
        extra: Further fields of a request; they win.
        max_bytes: Of one picture.
        usd_per_image: What one costs, if that is known.
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
        self._url = endpoint.api_base.rstrip("/") + "/images/generations"
        self._clock = clock
        self._key = api_key
        # Those of OpenAI that can do nothing else refuse to be told so.
        only_inside = endpoint.model.startswith("gpt-image")
        inside = {} if only_inside else {"response_format": "b64_json"}
        self._body = {"model": endpoint.model, **inside, **extra}
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._price = usd_per_image
        self._session: aiohttp.ClientSession | None = None

    async def make(self, prompt: str, *, count: int, size: str) -> Made:
        """Pictures; see `MakesPictures`."""
        try:
            with anyio.fail_after(self._timeout_s):
                content = await self._ask(prompt, count, size)
            answer = json.loads(content)
            if not isinstance(answer, dict):
                raise ValueError("no object")  # noqa: TRY004, TRY301 - about content, not about types
            pictures = pictures_in(answer, most=count, max_bytes=self._max_bytes)
        except aiohttp.ClientResponseError as error:
            raise self._error(Failure(text=describe(error), unreadable="malformed")) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._error(Failure(text=describe(error), transport=True)) from error
        except (ValueError, RecursionError) as error:
            raise self._error(Failure(text=str(error), unreadable="malformed")) from error
        return Made(pictures, tokens_in(answer), cost_of(len(pictures), self._price), self.model)

    async def aclose(self) -> None:
        """Let go of the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, prompt: str, count: int, size: str) -> bytes:
        body = {**self._body, "prompt": prompt, "n": count, **({"size": size} if size else {})}
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        async with self._opened().post(self._url, data=data, allow_redirects=False) as response:
            whole = count * (self._max_bytes * 4 // 3 + _ROOM_BYTES)
            most = whole if response.status == 200 else _MAX_ERROR_BYTES
            content = bytearray()
            async for block in response.content.iter_any():
                content += block
                if len(content) > most:
                    response.close()
                    break
            if response.status != 200:
                told = _json_or_text(bytes(content[:_MAX_ERROR_BYTES]))
                raise self._error(failure_in(told, status=response.status, headers=dict(response.headers)))
            if len(content) > most:
                raise self._error(Failure(text="pictures that are too large", unreadable="large"))
            return bytes(content)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S),
                trust_env=not is_loopback(self._url),
            )
        return self._session

    def _error(self, failure: Failure) -> ModelError:
        return classify(replace(failure, secret=self._key), model=self.model, now=self._clock.now())


def tokens_in(answer: Mapping[str, Any]) -> tuple[int, int]:
    """The tokens that an answer tells of, of the prompt and of the pictures."""
    usage = answer.get("usage")
    if not isinstance(usage, Mapping):
        return (0, 0)
    return token_count(usage.get("input_tokens")), token_count(usage.get("output_tokens"))


def cost_of(count: int, usd_per_image: float | None) -> float | None:
    """What so many pictures have cost."""
    return None if usd_per_image is None else count * usd_per_image


def _json_or_text(content: bytes) -> object:
    text = content.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
