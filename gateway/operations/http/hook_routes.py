"""
``POST /hooks/NAME``: what other programs report, for the jobs that wait for it (``cron add --hook NAME``). A
request counts only with the secret of its hook, compared in constant time, or signed with it. It is answered
with 202 once it is stored; one that comes again with the same delivery id is not stored twice. Its words are
those of anybody, whoever has signed them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import anyio
import structlog
from aiohttp import web

from agent_core.text import field_at
from gateway.operations.http.health import MAX_CONNECTIONS, json_answer
from gateway.settings.settings import HookSettings
from gateway.store.stores import StoreUnavailable

PATH = "/hooks/"
_BODY_BYTES = 1_048_576
_BODY_LIMIT_S = 10.0
_ACCEPT_LIMIT_S = 20.0
_TEXT_CHARS = 4_000
_MINUTE_S = 60.0
_FIELD = re.compile(r"\{([\w.-]{1,100})\}")
_DELIVERY = ("Idempotency-Key", "X-GitHub-Delivery", "webhook-id", "X-Delivery-Id")
_CHAIN = "X-Gitlab-Event-UUID"
"""Older versions of GitLab send it alone; all events that one event has led to share it."""
_log = structlog.get_logger(__name__)

Deliver = Callable[[str, str, str], Awaitable[int]]
"""Stores a report of a hook, by name, delivery id and text; returns how many jobs wait for it."""


class Hooks:
    """
    The route of the hooks.

    Args:
        standby_notice: Why another process is the daemon of this home; empty if it is this one.
        monotonic: Seconds of a clock that is never set.
    """

    def __init__(
        self,
        settings: Mapping[str, HookSettings],
        deliver: Deliver,
        standby_notice: Callable[[], Awaitable[str]],
        monotonic: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._deliver = deliver
        self._not_here = standby_notice
        self._monotonic = monotonic
        self._minute: dict[str, tuple[float, int]] = {}
        self._reading: list[anyio.CancelScope] = []

    def routes(self) -> list[web.AbstractRouteDef]:
        """The route."""
        return [web.post(f"{PATH}{{name}}", self._take)]

    async def _take(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        settings = self._settings.get(name)
        if settings is None:
            return json_answer({"error": "there is no such hook"}, status=404)
        body: bytes | web.Response = b""
        # Where the secret is no key of the body, nobody waits for one that somebody else sends.
        if settings.signs_body or is_authentic(settings, request.headers, b""):
            body = await self._body_of(request)
        if isinstance(body, web.Response):
            return body
        if not is_authentic(settings, request.headers, body):
            _log.warning("hook.refused", hook=name)
            return json_answer({"error": "the secret or the signature is wrong"}, status=401)
        if (wait_s := self._wait_s(name, settings.per_minute)) > 0:
            return _later(429, "too many requests", wait_s)
        return await self._stored(name, settings, request, body)

    async def _body_of(self, request: web.Request) -> bytes | web.Response:
        """Return the body, or why it is refused. Of many that are slow, the oldest have to go."""
        body = bytearray()
        try:
            with anyio.fail_after(_BODY_LIMIT_S) as limit:
                self._reading.append(limit)
                if len(self._reading) > MAX_CONNECTIONS // 2:
                    self._reading[0].deadline = anyio.current_time()
                try:
                    async for piece in request.content.iter_any():
                        body += piece
                        if len(body) > _BODY_BYTES:
                            text = f"the body is longer than {_BODY_BYTES} bytes"
                            return json_answer({"error": text}, status=413)
                finally:
                    self._reading.remove(limit)
        except TimeoutError:
            return json_answer({"error": "the body did not come in time"}, status=408)
        except web.RequestPayloadError:
            return json_answer({"error": "the body cannot be unpacked"}, status=400)
        return bytes(body)

    async def _stored(
        self, name: str, settings: HookSettings, request: web.Request, body: bytes
    ) -> web.Response:
        delivery = delivery_of(request.headers, body)
        text = text_of(body, request.content_type, settings.text)
        try:
            with anyio.fail_after(_ACCEPT_LIMIT_S):
                if why := await self._not_here():
                    return _later(503, why, _MINUTE_S)
                jobs = await self._deliver(name, delivery, text)
        except (StoreUnavailable, TimeoutError):
            return _later(503, "it cannot be stored now", _MINUTE_S)
        if jobs == 0:
            return json_answer(
                {"error": f"no job waits for this hook: squidbot cron add --hook {name} TEXT"}, status=503
            )
        return json_answer({"accepted": True, "jobs": jobs}, status=202)

    def _wait_s(self, name: str, most: int) -> float:
        """Count a request; return the seconds until the next may come, or 0."""
        now = self._monotonic()
        began, count = self._minute.get(name, (now, 0))
        if now - began >= _MINUTE_S:
            began, count = now, 0
        self._minute[name] = began, count + 1
        return _MINUTE_S - (now - began) if count >= most else 0.0


def delivery_of(headers: Mapping[str, str], body: bytes) -> str:
    """Return the name of a delivery, the same for each repetition of it; a new one if it has none."""
    given = next((value for key in _DELIVERY if (value := headers.get(key))), "")
    if not given and (chain := headers.get(_CHAIN)):
        given = f"{chain} {hashlib.sha256(body).hexdigest()}"
    return given.encode("utf-8", "backslashreplace").decode() or secrets.token_urlsafe(16)


def is_authentic(settings: HookSettings, headers: Mapping[str, str], body: bytes) -> bool:
    """Return True if a request has the secret of its hook, or is signed with it."""
    [(name, wanted)] = headers_of(settings, body).items()
    given, begins = headers.get(name, "").strip(), wanted.partition(" ")[0].lower()
    if settings.signature == "bearer":  # names of schemes have no case
        given = f"{'Bearer' if given[: len(begins)].lower() == begins else ''}{given[len(begins) :]}"
    elif settings.signature != "gitlab":
        given = f"sha256={given.removeprefix('sha256=').lower()}"
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def headers_of(settings: HookSettings, body: bytes) -> Mapping[str, str]:
    """Return the header by which a hook's program proves that it has the secret."""
    secret = settings.secret.get_secret_value()
    if settings.signature == "bearer":
        return {"Authorization": f"Bearer {secret}"}
    if settings.signature == "gitlab":
        return {"X-Gitlab-Token": secret}
    name = "X-Hub-Signature-256" if settings.signature == "github" else settings.header
    return {name: f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"}


def text_of(body: bytes, content_type: str, template: str) -> str:
    """Return what is said of a request: the template with its fields, or all of it if that is nothing."""
    text = body.decode("utf-8", "replace")
    if content_type == "application/x-www-form-urlencoded":
        with suppress(ValueError):  # more fields than any form has
            text = parse_qs(text, max_num_fields=100).get("payload", [text])[0]  # as GitHub sends forms
    try:
        said = _said_of(json.loads(text), template)
    except (ValueError, RecursionError):  # no JSON, or nested deeper than it can be written
        said = "" if _FIELD.search(template) else template
    text = said if said.strip() else text
    text = "".join(char for char in text if char.isprintable() or char in "\n\t").strip()
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]}…"


def _said_of(data: Any, template: str) -> str:
    said = _FIELD.sub(lambda match: _shown(field_at(data, match[1])), template)
    if not said.strip() and isinstance(data, (dict, list)):
        return json.dumps(data, ensure_ascii=False, indent=1)
    return said


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _later(status: int, why: str, wait_s: float) -> web.Response:
    answer = json_answer({"error": why}, status=status)
    answer.headers["Retry-After"] = str(max(1, round(wait_s)))
    return answer
