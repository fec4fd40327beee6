"""
Serves the console: who is let in, and what a form may do. Nobody is let in without a session
(`gateway.system.console_logins`). The name by which a browser asks must be one of this machine, or that of
the address in the settings, so that no other web page can point a name of its own here. A form counts only
with the ``Origin`` of the console itself and the secret of its session. The content security policy allows
nothing but the console's own style and script. What changes something, and what shows the words of others, is
logged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import anyio
import anyio.to_thread
import structlog
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from channels.markup import to_html
from gateway.errors import GatewayError, describe
from gateway.operations.configuration_operations import CHECK_LIMIT_S
from gateway.operations.http.console.console_views import ACTIONS, RESULT_PAGES, VIEWS
from gateway.operations.http.console.streams import ChangeStreams
from gateway.operations.http.samples import DayHistory
from gateway.operations.operation_context import OperationContext
from gateway.operations.operation_views import session_key_of
from gateway.routing.conversations import place_name
from gateway.settings.problems import is_loopback
from gateway.store.lease import LeaseTaken
from gateway.store.shared import SHARED
from gateway.system.console_logins import SESSION_S, ConsoleLogins, ConsoleSession
from gateway.turns.questions.question_text import visible

_HERE = Path(__file__).parent
_COOKIE = "squidbot_console"
_ARGUMENT = "argument "
"""The prefix of fields that are the arguments of a tool call."""
_LIMIT_S = 30.0
_NOTHING_CHANGED = "Nothing was changed: this was decided or done before."
_log = structlog.get_logger(__name__)


class Console:
    """
    The routes of the console.

    Args:
        standby_notice: Why another process is the daemon of this home; empty if it is this one.
        day: The samples of the charts.
        streams: Tell the browser when to renew a page.
    """

    def __init__(
        self,
        operations: OperationContext,
        logins: ConsoleLogins,
        standby_notice: Callable[[], Awaitable[str]],
        day: DayHistory,
        streams: ChangeStreams,
    ) -> None:
        self._operations = operations
        self._not_here = standby_notice
        self._streams = streams
        self._logins = logins
        address = urlsplit(logins.address)
        self._host, self._scheme = address.hostname or "", address.scheme
        files = {
            name: (_HERE / "templates" / name).read_text(encoding="utf-8")
            for name in ("style.css", "live.js")
        }
        self._page = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._page.globals.update(style=files["style.css"], script=files["live.js"], views=VIEWS)
        self._page.globals["day"] = day.samples
        self._page.filters.update(when=_when, place=_place, visible=visible, markdown=_formatted)
        self._headers = {
            "Content-Security-Policy": (
                f"default-src 'none'; style-src {_hash_of(files['style.css'])}; "
                f"script-src {_hash_of(files['live.js'])}; "
                "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
            ),
            "Cache-Control": "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }

    def routes(self) -> list[web.AbstractRouteDef]:
        """All routes of the console, below ``/console``."""
        return [
            web.get("/console", self._start),
            web.get("/console/enter", self._door),
            web.post("/console/enter", self._enter),
            web.post("/console/leave", self._leave),
            web.get("/console/changes", self._changes),
            web.get("/console/export", self._export),
            web.get("/console/{view}", self._show),
            web.post("/console/do/{operation}", self._do),
        ]

    # ── who ──

    async def _start(self, _request: web.Request) -> web.StreamResponse:
        raise web.HTTPSeeOther("/console/now")

    async def _door(self, request: web.Request) -> web.Response:
        """Show the button that uses the link up."""
        self._check_host(request)
        token = request.query.get("token", "")
        valid = self._logins.is_valid(token)
        return self._render("enter.html", status=200 if valid else 403, token=token, valid=valid)

    async def _enter(self, request: web.Request) -> web.Response:
        self._check_origin(request)
        secret = self._logins.log_in(str((await request.post()).get("token", "")))
        if secret is None:
            _log.warning("console.refused", why="the link does not count")
            return self._render("enter.html", status=403, token="", valid=False)
        _log.info("console.entered")
        answer = web.Response(status=303, headers={"Location": "/console/now"})
        answer.set_cookie(
            _COOKIE,
            secret,
            max_age=SESSION_S,
            path="/console",
            httponly=True,
            samesite="Strict",
            secure=self._scheme == "https",
        )
        return answer

    async def _leave(self, request: web.Request) -> web.Response:
        await self._form_of(request)
        self._logins.log_out(request.cookies.get(_COOKIE, ""))
        _log.info("console.left")
        answer = self._render("enter.html", token="", valid=False)
        answer.del_cookie(_COOKIE, path="/console")
        return answer

    def _session_of(self, request: web.Request) -> ConsoleSession:
        self._check_host(request)
        session = self._logins.find(request.cookies.get(_COOKIE, ""))
        if session is None:
            raise _Refused(
                401, "Nobody is signed in here. `squidbot console` or `!console` gives you a link."
            )
        return session

    def _check_host(self, request: web.Request) -> None:
        name = request.url.host or ""
        if name != self._host and not (is_loopback(self._host) and is_loopback(name)):
            raise _Refused(403, "This name is not the console's.")

    def _check_origin(self, request: web.Request) -> None:
        self._check_host(request)
        if request.headers.get("Origin") != f"{self._scheme}://{request.host}":
            _log.warning("console.refused", why="a form of another page")
            raise _Refused(403, "This form comes from another page; nothing was done.")

    async def _form_of(self, request: web.Request) -> tuple[ConsoleSession, dict[str, str]]:
        session = self._session_of(request)
        self._check_origin(request)
        posted = (await request.post()).items()
        form = {name: value.replace("\r\n", "\n") for name, value in posted if isinstance(value, str)}
        if not secrets.compare_digest(form.pop("csrf", "").encode(), session.csrf.encode()):
            _log.warning("console.refused", why="a form without the secret of its session")
            raise _Refused(403, "This form is not of your session; nothing was done.")
        return session, form

    # ── what ──

    async def _show(self, request: web.Request) -> web.Response:
        session = self._session_of(request)
        name = request.match_info["view"]
        if name not in VIEWS:
            raise _Refused(404, "There is no such page.")
        if VIEWS[name].shows_words:
            shown_keys = ("id", "session", "scope")
            _log.info(
                "console.shown",
                view=name,
                of={key: request.query[key] for key in shown_keys if key in request.query},
            )
        said = ACTIONS.get(request.query.get("said", ""), "")
        said = _NOTHING_CHANGED if said and "unchanged" in request.query else said
        try:
            with anyio.fail_after(_LIMIT_S):
                shown = await VIEWS[name].load(self._call, request.query)
        except Exception as error:  # noqa: BLE001 - the page says so
            return self._render(
                "problem.html", status=_status_of(error), session=session, name=name, text=_text_of(error)
            )
        render = partial(self._render, f"{name}.html", session=session, name=name, said=said, **shown)
        return await anyio.to_thread.run_sync(render)

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        self._session_of(request)
        secret = request.cookies.get(_COOKIE, "")
        return await self._streams.serve(
            request, self._headers, lambda: self._logins.find(secret) is not None
        )

    async def _export(self, request: web.Request) -> web.StreamResponse:
        """Send a whole conversation as JSON lines, page by page, as `squidbot sessions export` writes it."""
        self._session_of(request)
        wanted = request.query.get("session", "")
        _log.info("console.shown", view="export", of={"session": wanted})
        try:
            page = await self._call("sessions_page", session=wanted, start=0)
        except GatewayError as error:
            raise _Refused(400, str(error)) from error
        answer = web.StreamResponse(
            headers={
                **self._headers,
                "Content-Type": "application/jsonl",
                "Content-Disposition": 'attachment; filename="conversation.jsonl"',
            }
        )
        await answer.prepare(request)
        while True:
            lines = "".join(json.dumps(message) + "\n" for message in page["messages"])
            await answer.write(lines.encode())
            if page["next"] is None:
                return answer
            page = await self._call("sessions_page", session=wanted, start=page["next"])

    async def _do(self, request: web.Request) -> web.Response:
        session, form = await self._form_of(request)
        name, back = request.match_info["operation"], form.pop("back", "now")
        edited = {key: form.pop(key) for key in list(form) if key.startswith(_ARGUMENT)}
        more = {"arguments": {key.removeprefix(_ARGUMENT): text for key, text in edited.items()}}
        if name not in ACTIONS:
            raise _Refused(404, "There is no such action; nothing was done.")
        try:
            with anyio.fail_after(_LIMIT_S + (CHECK_LIMIT_S if name == "check_run" else 0)):
                done = await self._call(name, **form, **(more if edited else {}))
                page = RESULT_PAGES.get(name)
                shown = await VIEWS[page].load(self._call, {}) if page else {}
        except Exception as error:  # noqa: BLE001 - the page says so
            return self._render(
                "problem.html", status=_status_of(error), session=session, name="", text=_text_of(error)
            )
        _log.info(
            "console.done",
            operation=name,
            of={key: form[key] for key in ("id", "call", "address") if key in form},
        )
        if page:
            return self._render(f"{page}.html", session=session, name=page, **{**shown, "result": done})
        view = back if back in VIEWS else "now"
        query = {"said": name} | ({"unchanged": ""} if done.get("changed") is False else {})
        query |= {"scope": form["scope"]} if view == "memory" and "scope" in form else {}
        place = "#end" if view == "chat" else ""
        return web.Response(status=303, headers={"Location": f"/console/{view}?{urlencode(query)}{place}"})

    async def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation != "status" and (refusal := await self._not_here()):
            raise LeaseTaken(refusal)
        return await self._operations.call(
            operation, {key: one for key, one in arguments.items() if one is not None}
        )

    def _render(self, template: str, *, status: int = 200, **values: Any) -> web.Response:
        text = self._page.get_template(template).render({"session": None, "name": "", "said": "", **values})
        return web.Response(text=text, status=status, content_type="text/html", headers=self._headers)


class _Refused(web.HTTPException):
    """An answer in plain words, without a page."""

    def __init__(self, status: int, text: str) -> None:
        self.status_code = status
        super().__init__(
            text=text, headers={"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        )


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@lru_cache(maxsize=100)
def _formatted(markdown: str) -> str:
    """An answer as HTML; it takes milliseconds, and an open chat is renewed often."""
    return to_html(markdown)


def _status_of(error: Exception) -> int:
    return 400 if isinstance(error, (GatewayError, ValueError)) else 503


def _text_of(error: Exception) -> str:
    """Return what a person may read of an error; a defect is in the log."""
    if isinstance(error, TimeoutError):
        return "This took too long; try again later."
    if isinstance(error, GatewayError) or hasattr(error, "public"):
        return str(error)
    _log.error("console.failed", **describe(error).fields, exc_info=error)
    return "This did not work; squidbot's log says why."


def _when(at: str | None) -> str:
    """A time of the operations as people read it."""
    if not at:
        return ""
    try:
        return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return at[:16]


def _place(row: Mapping[str, Any]) -> str:
    """The room or the person of a row, by name where that is known."""
    key = session_key_of(row.get("session"))
    if key is None:
        return str(row.get("session") or "")
    name = row.get("room") or row.get("called") or key.conversation
    return place_name(key) if key == SHARED else f"{name} ({key.channel})"
