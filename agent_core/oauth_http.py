"""Requests to an OAuth provider over HTTP: its certificate is checked, and its answers are bounded."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio.to_thread

from agent_core.http_guards import BoundedResponse
from agent_core.oauth import ProviderUnreachable, read_answer

MAX_ANSWER_BYTES = 200_000


class HttpProvider:
    """Asks a provider, see `agent_core.oauth_login.Post`; ``tls`` makes the context, and may block."""

    def __init__(self, tls: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        self._tls = tls

    async def __call__(self, url: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        """Send a form; return the JSON object that comes back."""
        return await self._ask(url, data=form)

    async def register(self, url: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Register a client (RFC 7591); return what the provider made of it."""
        return await self._ask(url, json=metadata)

    async def _ask(self, url: str, **body: Any) -> Mapping[str, Any]:
        context = await anyio.to_thread.run_sync(self._tls)
        limit = aiohttp.ClientTimeout(total=30.0)
        headers = {"Accept": "application/json"}
        read = bytearray()
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=limit, trust_env=True, response_class=BoundedResponse
                ) as session,
                session.post(url, ssl=context, allow_redirects=False, headers=headers, **body) as answer,
            ):
                async for piece in answer.content.iter_any():
                    read += piece
                    if len(read) > MAX_ANSWER_BYTES:
                        raise aiohttp.ClientPayloadError("the answer is too long")
            return read_answer(answer.status, bytes(read))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProviderUnreachable(f"{urlsplit(url).hostname}: {type(error).__name__}") from error
        except ProviderUnreachable as error:
            raise ProviderUnreachable(f"{urlsplit(url).hostname}: {error}") from error
