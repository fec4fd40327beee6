"""
The connection to a server that speaks OpenAI's protocol, and the meaning of its failures. Traps: an idle
connection is closed after four seconds, before servers close theirs (five is usual) and a request is lost on
it. Compressed answers are neither requested nor read: some kilobytes of them can be gigabytes. An unreadable
answer (too large, compressed in spite of ``identity``, not JSON, not HTTP, a redirect) is not confused with a
server that is away: see `ModelUnreadable`.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio

from agent_core.errors import Failure, ModelError
from agent_core.http_guards import BoundedResponse
from agent_core.llm.model_errors import classify, transport_text
from agent_core.llm.streaming import EventTooLarge
from agent_core.ports import Clock

_WAIT = re.compile(r'"retryDelay": "[\d.]{1,20}s"')
_MAX_ERROR_BYTES = 64 * 1024
_MAX_DESCRIPTION_BYTES = 16 * 1024 * 1024
"""Ollama's description of a model may hold its vocabulary."""


class OpenAIConnection:
    """One address of a server, for one model; ``api_key`` is the bearer token unless in ``headers``."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        clock: Clock,
        api_key: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._url = url
        self._model = model
        self._clock = clock
        self._key = api_key
        self._headers = {**(headers or {}), "Accept-Encoding": "identity"}
        if api_key and "x-api-key" not in self._headers:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None

    def post(self, data: Any) -> Any:
        """Send a request; returns aiohttp's context of the response."""
        return self._opened().post(self._url, data=data, allow_redirects=False)

    async def fetch_json(self, url: str, data: Any = None) -> Any:
        """Return the JSON answer of another URL; with ``data`` it is a POST. Raises `ModelError`."""
        method, content = "GET" if data is None else "POST", bytearray()
        with self.translate_errors(), anyio.fail_after(2.0):
            session = self._opened()
            sent = None if data is None else json.dumps(data)
            async with session.request(method, url, data=sent, allow_redirects=False) as response:
                await self.check(response)
                async for block in response.content.iter_any():
                    content += block
                    if len(content) > _MAX_DESCRIPTION_BYTES:
                        response.close()
                        raise EventTooLarge("a description of models without end")
            return json.loads(content)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(keepalive_timeout=4.0),
                headers=self._headers,
                response_class=BoundedResponse,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
                trust_env=not is_loopback(self._url),
            )
        return self._session

    async def read_whole(self, data: Any, *, limit_s: float, most_bytes: int, too_large: str) -> bytes:
        """
        Send a request and read its whole answer. Raises ModelError.

        A timeout (``limit_s``) is ``slow``, not unavailable: the request was probably done and paid.
        ``too_large`` is the text for more than ``most_bytes``.
        """
        with self.translate_errors(), anyio.move_on_after(limit_s):
            async with self.post(data) as response:
                await self.check(response)
                content = bytearray()
                async for block in response.content.iter_any():
                    content += block
                    if len(content) > most_bytes:
                        response.close()
                        raise EventTooLarge(too_large)
                return bytes(content)
        raise self.error(Failure(text=f"no answer within {limit_s:g} s", unreadable="slow"))

    async def check(self, response: aiohttp.ClientResponse) -> None:
        """Check the head of a response. Raises `ModelError`: the server refuses, or compresses the body."""
        if response.status != 200:
            refusal = await self._refusal(response)
            response.close()  # not asked again on a connection whose server errs
            raise refusal
        packing = response.headers.get("Content-Encoding", "identity").strip().lower()
        if packing not in ("", "identity"):
            raise self.error(Failure(text=f"compressed as {packing}", unreadable="packed"))

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate every exception inside the block into one of ours."""
        try:
            yield
        except aiohttp.ClientResponseError as error:
            raise self.error(Failure(text=_described(error), unreadable="malformed")) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self.error(Failure(text=transport_text(error), transport=True)) from error
        except EventTooLarge as error:
            raise self.error(Failure(text=str(error), unreadable="large")) from error
        except (ValueError, RecursionError) as error:
            raise self.error(Failure(text=str(error), unreadable="malformed")) from error

    def error(self, failure: Failure) -> ModelError:
        """The error for a failure of this model, without the key in its text."""
        return classify(replace(failure, secret=self._key), model=self._model, now=self._clock.now())

    async def aclose(self) -> None:
        """Close the connections. A later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _refusal(self, response: aiohttp.ClientResponse) -> ModelError:
        data = bytearray()
        with anyio.move_on_after(5.0):
            while len(data) < _MAX_ERROR_BYTES and (block := await response.content.read(_MAX_ERROR_BYTES)):
                data += block
        raw = data[:_MAX_ERROR_BYTES].decode(errors="replace")
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            body = raw
        return self.error(failure_in(body, status=response.status, headers=dict(response.headers)))


_STATUS_OF_MINIMAX = {
    **dict.fromkeys(("1026", "1027", "2013"), 400),
    **dict.fromkeys(("1004", "2049"), 401),
    "1008": 402,
    **dict.fromkeys(("1002", "1039", "1041", "2045", "2056"), 429),
}
"""The status that others would give, for the codes in its ``base_resp``."""


def failure_in(body: object, *, status: int | None, headers: Mapping[str, str] | None = None) -> Failure:
    """
    Read an error object in any form: ``{"error": {...}}``, ``{"error": "text"}``, or anything else.

    OpenRouter's has the words of the provider behind it, Gemini's the time to wait.
    """
    if isinstance(body, list) and len(body) == 1:  # Gemini's
        (body,) = body
    error = body.get("error") or body.get("base_resp") or body if isinstance(body, dict) else body
    text, code = str(error), ""
    if isinstance(error, dict):
        said = (error.get(key) for key in ("message", "detail", "msg", "status_msg"))
        text = str(next(filter(None, said), error))
        more = error.get("metadata")
        raw = more.get("raw") if isinstance(more, dict) else None
        wait = _WAIT.search(json.dumps(error.get("details")))
        text = " ".join(filter(None, (text, raw if isinstance(raw, str) else "", wait[0] if wait else "")))
        code = " ".join(str(error[key]) for key in ("type", "code") if error.get(key))
        given = str(error.get("code") or _STATUS_OF_MINIMAX.get(str(error.get("status_code")), ""))
        if status is None and re.fullmatch(r"[45]\d\d", given, re.ASCII):
            status = int(given)
    return Failure(status=status, text=text, code=code, headers=headers or {})


def is_failure(body: Mapping[str, Any]) -> bool:
    """Return True if what came with status 200 is an error, as most, vLLM, Z.AI and MiniMax write it."""
    base = body.get("base_resp")
    return bool(
        body.get("error")
        or body.get("object") == "error"
        or body.get("success") is False
        or (isinstance(base, dict) and base.get("status_code"))
    )


def is_loopback(url: str) -> bool:
    """Return True if a URL is on this machine, so that no proxy is used."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
