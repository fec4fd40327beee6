"""JSON over HTTP to a loopback server, with the standard library only.

Proxies from the environment are ignored: the servers are on this machine. An error answer becomes
`RequestFailed` with the Matrix error code, a broken connection stays an `OSError`.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, TypeAlias

from devservers.errors import RequestFailed

#: A decoded JSON object. Its values are what the server says they are.
JsonObject: TypeAlias = dict[str, Any]


def request_json(
    method: str,
    url: str,
    body: JsonObject | None = None,
    *,
    token: str | None = None,
    timeout_s: float = 30.0,
) -> JsonObject:
    """Make one request and give the decoded answer."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            raw = response.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _failure(error.code, error.read()) from None
    except http.client.HTTPException as error:
        raise ConnectionError(f"broken answer: {error!r}") from error
    return _object(raw)


def answers_ok(url: str, *, timeout_s: float = 5.0) -> bool:
    """Whether a GET of this address says 2xx."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as response:
            response.read()
            return bool(200 <= response.status < 300)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, http.client.HTTPException):
        return False


def _object(raw: bytes) -> JsonObject:
    try:
        decoded = json.loads(raw or b"{}")
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _failure(status: int, raw: bytes) -> RequestFailed:
    answer = _object(raw)
    text = str(answer.get("error", "")) or raw[:200].decode(errors="replace")
    return RequestFailed(status, str(answer.get("errcode", "")), text)
