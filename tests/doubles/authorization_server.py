"""
An OAuth 2.0 authorization server that a real Synapse delegates its logins to.

It behaves as the Matrix specification (v1.15, "OAuth 2.0 API"), RFC 8628 and RFC 7591 say, with what the
Matrix Authentication Service adds: a client needs a home page of its own by HTTPS, refresh tokens work once;
one that comes again ends the whole login, unless nothing of the answer to it has been used yet (it was lost). It makes accounts and devices in Synapse as that
service does (``/_synapse/mas``). The person in front of the browser is `approve`, `deny` or `browse`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import Request, urlopen

_DEVICE_SCOPE = "urn:matrix:client:device:"
_CODE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class _Session:
    """A login: what was asked for, by whom it was approved, and its tokens."""

    client_id: str
    scope: str
    localpart: str = ""
    denied: bool = False
    ended: bool = False
    challenge: str = ""
    refresh: str = ""
    used_refresh: list[str] = field(default_factory=list)
    newest_access: str = ""
    newest_is_used: bool = False

    @property
    def device_id(self) -> str:
        return next(part.removeprefix(_DEVICE_SCOPE) for part in self.scope.split() if _DEVICE_SCOPE in part)


class AuthorizationServer:
    """On a free port until closed. ``lifetime_s`` is that of an access token."""

    def __init__(self, *, device_codes: bool = True) -> None:
        self.secret = secrets.token_hex(16)
        self.synapse = ""
        self.lifetime_s = 300
        self.device_codes = device_codes
        self.registered: list[Mapping[str, Any]] = []
        self.renewals = 0
        self._clients: set[str] = set()
        self._by_device_code: dict[str, _Session] = {}
        self._by_user_code: dict[str, _Session] = {}
        self._by_code: dict[str, _Session] = {}
        self._sessions: list[_Session] = []
        self._access: dict[str, tuple[_Session, float]] = {}
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()

    # ── the person, and whoever runs the server ──

    def register(self, localpart: str, *, device_id: str | None = None) -> tuple[str, str]:
        """Make an account with a login that does not end; return its access token and device."""
        self._in_synapse("provision_user", localpart=localpart)
        session = _Session("", f"urn:matrix:client:api:* {_DEVICE_SCOPE}{device_id or secrets.token_hex(5)}")
        self._grant(session, localpart)
        access = secrets.token_urlsafe(24)
        self._access[access] = session, time.time() + 86_400
        return access, session.device_id

    def approve(self, user_code: str, localpart: str) -> None:
        """Enter a code and agree, logged in as somebody."""
        self._grant(self._by_user_code[user_code], localpart)

    def deny(self, user_code: str) -> None:
        """Enter a code and refuse."""
        self._by_user_code[user_code].denied = True

    def browse(self, address: str, localpart: str) -> str:
        """Open the address of a login and agree; return where the browser is sent."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        assert asked["client_id"] in self._clients
        session = _Session(asked["client_id"], asked["scope"], challenge=asked["code_challenge"])
        self._grant(session, localpart)
        code = secrets.token_urlsafe(12)
        self._by_code[code] = session
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def allow_reset(self, localpart: str) -> None:
        """Agree in the account's pages that its cross-signing identity may be replaced."""
        self._in_synapse("allow_cross_signing_reset", localpart=localpart)

    def end_logins(self, localpart: str) -> None:
        """End all logins of an account, as its owner can in the account's pages."""
        with self._lock:
            for session in self._sessions:
                if session.localpart == localpart:
                    self._end(session)

    def logins(self, localpart: str) -> list[str]:
        """The devices with a login that has not ended."""
        return [one.device_id for one in self._sessions if one.localpart == localpart and not one.ended]

    # ── HTTP ──

    def metadata(self) -> Mapping[str, Any]:
        """RFC 8414, with what the Matrix specification adds."""
        codes = {"device_authorization_endpoint": f"{self.url}/device"} if self.device_codes else {}
        return {
            "issuer": f"{self.url}/",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/registration",
            "revocation_endpoint": f"{self.url}/revoke",
            "account_management_uri": f"{self.url}/account",
            "account_management_actions_supported": ["org.matrix.cross_signing_reset"],
            "response_types_supported": ["code"],
            "response_modes_supported": ["query", "fragment"],
            "grant_types_supported": ["authorization_code", "refresh_token", _CODE_GRANT],
            "code_challenge_methods_supported": ["S256"],
            **codes,
        }

    def registration(self, asked: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        """RFC 7591."""
        page = str(asked.get("client_uri", ""))
        grants = asked.get("grant_types", [])
        is_refused = (
            not page.startswith("https://")
            or urlsplit(page).port is not None
            or asked.get("token_endpoint_auth_method") != "none"
            or ("authorization_code" in grants and not asked.get("redirect_uris"))
        )
        if is_refused:
            return 400, {"error": "invalid_client_metadata"}
        self.registered.append(asked)
        client_id = secrets.token_hex(8)
        self._clients.add(client_id)
        return 201, {**asked, "client_id": client_id}

    def device(self, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """RFC 8628, section 3.1."""
        if form["client_id"] not in self._clients:
            return 401, {"error": "invalid_client"}
        session = _Session(form["client_id"], form["scope"])
        code, user_code = secrets.token_urlsafe(12), secrets.token_hex(3).upper()
        self._by_device_code[code] = self._by_user_code[user_code] = session
        return 200, {
            "device_code": code,
            "user_code": user_code,
            "verification_uri": f"{self.url}/link",
            "verification_uri_complete": f"{self.url}/link?code={user_code}",
            "expires_in": 1200,
            "interval": 1,
        }

    def token(self, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """RFC 6749, section 5; RFC 8628, section 3.5; RFC 7636, section 4.6."""
        grant = form["grant_type"]
        if grant == "refresh_token":
            return self._renew(form)
        if grant == _CODE_GRANT:
            session = self._by_device_code.get(form["device_code"])
        else:
            session = self._by_code.pop(form["code"], None)
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            if session and session.challenge != base64.urlsafe_b64encode(digest).rstrip(b"=").decode():
                session = None
        if session is None or session.client_id != form["client_id"]:
            return 400, {"error": "invalid_grant"}
        if session.denied:
            return 403, {"error": "access_denied"}
        if not session.localpart:
            return 403, {"error": "authorization_pending"}
        self._by_device_code.pop(form.get("device_code", ""), None)
        return 200, self._tokens(session)

    def _renew(self, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        for session in self._sessions:
            is_lost = form["refresh_token"] in session.used_refresh[-1:] and not session.newest_is_used
            if form["refresh_token"] in session.used_refresh and not is_lost:
                self._end(session)  # somebody has a copy
            if (is_lost or form["refresh_token"] == session.refresh) and not session.ended:
                assert form["client_id"] == session.client_id
                self.renewals += 1
                return 200, self._tokens(session, form["refresh_token"])
        return 400, {"error": "invalid_grant"}

    def revoke(self, form: Mapping[str, str]) -> tuple[int, None]:
        """RFC 7009: whatever comes, the answer is good and empty."""
        for session in self._sessions:
            if form["token"] == session.refresh and form["client_id"] == session.client_id:
                self._end(session)
        return 200, None

    def introspect(self, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        """RFC 7662, for Synapse."""
        session, ends_at = self._access.get(form["token"], (None, 0.0))
        if session is None or session.ended or ends_at <= time.time():
            return 200, {"active": False}
        session.newest_is_used = session.newest_is_used or form["token"] == session.newest_access
        left_s = max(1, int(ends_at - time.time()))
        return 200, {
            "active": True,
            "scope": session.scope,
            "username": session.localpart,
            "sub": session.localpart,
            "expires_in": left_s,
        }

    def _tokens(self, session: _Session, consumed: str = "") -> Mapping[str, Any]:
        if consumed and consumed not in session.used_refresh:
            session.used_refresh.append(consumed)
        session.refresh, access = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        session.newest_access, session.newest_is_used = access, False
        self._access[access] = session, time.time() + self.lifetime_s
        return {
            "access_token": access,
            "refresh_token": session.refresh,
            "token_type": "Bearer",
            "expires_in": self.lifetime_s,
            "scope": session.scope,
        }

    def _grant(self, session: _Session, localpart: str) -> None:
        self._in_synapse("upsert_device", localpart=localpart, device_id=session.device_id)
        session.localpart = localpart
        self._sessions.append(session)

    def _end(self, session: _Session) -> None:
        if not session.ended:
            session.ended = True
            self._in_synapse("delete_device", localpart=session.localpart, device_id=session.device_id)

    def _in_synapse(self, what: str, **body: str) -> None:
        headers = {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json"}
        request = Request(f"{self.synapse}/_synapse/mas/{what}", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=120) as answer:
            answer.read()

    def _handler(owner) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                assert self.path == "/.well-known/openid-configuration", self.path
                self._say(200, owner.metadata())

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"])).decode()
                name = self.path.strip("/").removeprefix("oauth2/")
                if name == "registration":
                    asked = json.loads(raw)
                else:
                    asked = {key: values[0] for key, values in parse_qs(raw).items()}
                if name == "introspect":
                    assert self.headers["Authorization"] == f"Bearer {owner.secret}"
                with owner._lock:
                    status, body = getattr(owner, name)(asked)
                self._say(status, body)

            def _say(self, status: int, body: Mapping[str, Any] | None) -> None:
                content = b"" if body is None else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        return Handler
