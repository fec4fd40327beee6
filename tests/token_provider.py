"""
A provider of tokens on loopback, for real: device codes (RFC 8628), browser codes with PKCE, refresh.

It signs access tokens (JWT, HS256) with a key that a mail server can be given, so what it issues is believed there
without asking anybody.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

KEY = b"a key for tests, thirty-two bytes"


def jwt(user: str, *, life_s: float = 3600, key: bytes = KEY) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = int(time.time())
    text = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': user, 'email': user, 'iat': now - 10, 'exp': int(now + life_s)})}"
    signature = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


class Provider:
    """``asked`` has every form that came, by kind; the other fields are what a test turns."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.url = ""
        self.asked: list[dict[str, str]] = []
        self.pending = 1
        self.life_s = 3600.0
        self.revoked = False
        self.away = False
        self.denied = False
        self.refresh = {"refresh-0"}
        self.challenge = ""

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "provider": "custom",
            "client_id": "squid",
            "scope": "mail offline",
            "device_endpoint": f"{self.url}/device",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }

    def kinds(self) -> list[str]:
        return [form.get("grant_type", "device").rpartition(":")[2] for form in self.asked]

    async def device(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        return web.json_response(
            {
                "device_code": "the-device",
                "user_code": "ABCD-EFGH",
                "verification_uri": f"{self.url}/type-it-in",
                "expires_in": 600,
                "interval": 1,
            }
        )

    async def token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        if self.away:
            return web.Response(status=503, text="later")
        status, value = self._answer(form)
        return web.json_response(value, status=status)

    def _answer(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        match form.get("grant_type", ""):
            case "refresh_token":
                if self.revoked or form.get("refresh_token") not in self.refresh:
                    return 400, {"error": "invalid_grant", "error_description": "Token has been revoked."}
            case "authorization_code":
                digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
                proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                if form.get("code") != "the-code" or proof != self.challenge:
                    return 400, {"error": "invalid_grant"}
            case _:
                if self.denied:
                    return 400, {"error": "access_denied"}
                if self.pending:
                    self.pending -= 1
                    return 400, {"error": "authorization_pending"}
        new = f"refresh-{secrets.token_hex(4)}"
        self.refresh.add(new)
        return 200, {
            "access_token": jwt(self.user, life_s=self.life_s),
            "token_type": "Bearer",
            "expires_in": int(self.life_s),
            "refresh_token": new,
        }


@asynccontextmanager
async def provider(user: str) -> AsyncIterator[Provider]:
    """A provider that listens."""
    made = Provider(user)
    application = web.Application()
    application.router.add_post("/device", made.device)
    application.router.add_post("/token", made.token)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        made.url = f"http://{host}:{port}"
        yield made
    finally:
        await runner.cleanup()
