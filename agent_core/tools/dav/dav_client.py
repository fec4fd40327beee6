"""
Talks to one CalDAV and CardDAV server (RFC 4791, RFC 6352) through `WebClient`, without redirects and only to
the host of the settings. Everything that the server sends is read in a confined process. A change happens
once: a new object is stored only where there is none, a change only on the version that was read, and where
an answer is lost the object is read again.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any
from unicodedata import normalize
from urllib.parse import urljoin, urlsplit

from agent_core.children.service import CallFailed, ChildProcess
from agent_core.errors import ToolFailed, ToolRetry
from agent_core.ports import Clock
from agent_core.tools.dav.config import DavSettings

if TYPE_CHECKING:
    from agent_core.tools.web.web_client import Received, WebClient  # loads aiohttp

_READ_LIMIT_S = 20.0
_CALENDAR, _CARDS = "urn:ietf:params:xml:ns:caldav", "urn:ietf:params:xml:ns:carddav"
_PROPFIND = (
    f'<propfind xmlns="DAV:" xmlns:c="{_CALENDAR}" xmlns:a="{_CARDS}"><prop><current-user-principal/>'
    "<c:calendar-home-set/><a:addressbook-home-set/><resourcetype/><displayname/>"
    "<c:supported-calendar-component-set/><current-user-privilege-set/></prop></propfind>"
)
_FOLD = re.compile(rb"\r?\n[ \t]")
_WRITES = {"all", "write", "write-content", "bind"}


class OutcomeUnknown(ToolFailed):
    """The server was asked to change something, and nobody knows whether it has."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A calendar or address book: its address, the last part of it, its title, and what it holds."""

    url: str
    name: str
    title: str
    kinds: frozenset[str]
    is_writable: bool


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object on the server, and the version that it has there."""

    content: bytes
    etag: str


class DavClient:
    """One account. ``child`` reads what comes, ``zone`` names the owner's time zone."""

    def __init__(
        self, settings: DavSettings, web: WebClient, child: ChildProcess, clock: Clock, zone: str
    ) -> None:
        self._settings = settings
        self._web = web
        self._child = child
        self._clock = clock
        self._zone = zone
        self._known: tuple[float, list[Collection]] | None = None
        secret = f"{settings.username}:{settings.password.get_secret_value()}"
        self._login = f"Basic {b64encode(secret.encode()).decode()}"

    async def read(self, operation: str, **request: Any) -> Any:
        """Have the confined process do something. Raises ToolFailed, ToolRetry."""
        asked = {"operation": operation, "zone": self._zone, "now": self._clock.now().isoformat(), **request}
        try:
            said = await self._child.ask_text(asked, task="dav", limit_s=_READ_LIMIT_S)
        except (CallFailed, ValueError) as error:
            raise ToolFailed(f"The calendar server sent what cannot be read ({error}).") from error
        if said is None:
            await self._child.aclose()
            raise ToolFailed("What the calendar server sent takes too long to read; ask for a shorter time.")
        answer = json.loads(said)
        if isinstance(answer, dict) and "problem" in answer:
            raise ToolRetry(answer["problem"])
        return answer

    async def collections(self, kind: str) -> list[Collection]:
        """Those that hold ``VEVENT``, ``VTODO`` or ``VCARD``. Raises ToolFailed."""
        now = self._clock.monotonic()
        if self._known is None or now - self._known[0] > 600.0:
            self._known = now, await self._discover()
        return [each for each in self._known[1] if kind in each.kinds][:20]

    async def writable(self, kind: str, wanted: str = "") -> Collection:
        """The collection for new objects of a kind: of that name, else the one of the settings."""
        found = [each for each in await self.collections(kind) if each.is_writable]
        wanted = wanted or self._settings.calendar
        named = [each for each in found if wanted.casefold() in (each.title.casefold(), each.name.casefold())]
        chosen = named if wanted else found
        if not chosen:
            there = ", ".join(each.title for each in found) or "none"
            raise ToolRetry(f"There is no such calendar to write to. There are: {there}.")
        return chosen[0]

    async def query(
        self, kind: str, *, first: datetime | None = None, last: datetime | None = None
    ) -> list[Any]:
        """Ask each collection of a kind; of events those that touch the time. Returns answers for `read`."""
        span = f'<c:time-range start="{_stamp(first)}" end="{_stamp(last)}"/>' if first and last else ""
        return await self._reports(kind, _calendar_query(kind, span))

    async def find(self, uid: str) -> str:
        """The id of the appointment with this UID; empty: there is none. Raises ToolFailed, ToolRetry."""
        match = f'<c:prop-filter name="UID"><c:text-match>{escape(uid)}</c:text-match></c:prop-filter>'
        answers = await self._reports("VEVENT", _calendar_query("VEVENT", match))
        return str((await self.read("find", answers=answers, uid=uid))["id"])

    async def query_cards(self, words: str) -> list[Any]:
        """Ask each address book for cards with the first of the words."""
        word = escape(words.split(maxsplit=1)[0])
        forms = dict.fromkeys((normalize("NFC", word), normalize("NFD", word)))  # "ü" is one letter, or two
        matching = '<a:text-match collation="i;unicode-casemap" match-type="contains">'
        filters = "".join(
            f'<a:prop-filter name="{name}">{matching}{form}</a:text-match></a:prop-filter>'
            for name in ("FN", "EMAIL")
            for form in forms
        )
        report = (
            f'<a:addressbook-query xmlns="DAV:" xmlns:a="{_CARDS}"><prop><a:address-data/></prop>'
            f'<a:filter test="anyof">{filters}</a:filter></a:addressbook-query>'
        )
        return await self._reports("VCARD", report)

    async def get(self, url: str) -> StoredObject | None:
        """Read an object; None: there is none. Raises ToolFailed."""
        received = await self._request("GET", url)
        if received.status in (404, 410):
            return None
        self._check(received)
        return StoredObject(received.body, received.validators[0])

    async def url_of(self, identity: str, kind: str) -> str:
        """The address of an object by its id, ``COLLECTION/NAME``. Raises ToolRetry."""
        name, _, last = identity.partition("/")
        for each in await self.collections(kind):
            if each.name == name and last and not set("/?#\\ ") & set(last) and last not in (".", ".."):
                return f"{each.url}{last}"
        raise ToolRetry("There is no such id; list what there is, and give the id of one line.")

    async def create(self, url: str, data: str, uid: str) -> bool:
        """Store a new object once; returns False if it was there already. Raises ToolFailed."""
        headers = {"Content-Type": "text/calendar; charset=utf-8", "If-None-Match": "*"}

        async def is_done(found: StoredObject | None) -> bool:
            return found is not None and uid.encode() in _FOLD.sub(b"", found.content)

        return await self._settle(
            lambda: self._request("PUT", url, headers=headers, body=data.encode()), url, is_done
        )

    async def replace(
        self, url: str, data: str, etag: str, is_done: Callable[[StoredObject | None], Awaitable[bool]]
    ) -> bool:
        """Store this version (empty: delete) in place of the one with ``etag``; see `create`."""
        headers = {"If-Match": etag} | ({"Content-Type": "text/calendar; charset=utf-8"} if data else {})
        method, body = ("PUT", data.encode()) if data else ("DELETE", None)
        return await self._settle(
            lambda: self._request(method, url, headers=headers, body=body), url, is_done
        )

    async def _settle(
        self,
        send: Callable[[], Awaitable[Received]],
        url: str,
        is_done: Callable[[StoredObject | None], Awaitable[bool]],
    ) -> bool:
        """Send a change, twice at most; where its answer is lost or refused, look whether it is there."""
        for is_again in (False, True):
            try:
                status = await self._sent(send)
            except ToolFailed as error:
                if is_again:
                    raise OutcomeUnknown(f"{_UNKNOWN} {error}") from error
                raise
            if 200 <= status < 300:
                return True
            if status not in (0, 404, 409, 412) and status < 500:
                self._check_status(status)
            try:
                found = await self.get(url)
            except ToolFailed as error:
                raise OutcomeUnknown(f"{_UNKNOWN} {error}") from error
            if await is_done(found):
                return False
            if status in (404, 409, 412):
                raise ToolFailed("Something else is there by now, so nothing was done. Look at it again.")
        raise OutcomeUnknown(_UNKNOWN)

    async def _sent(self, send: Callable[[], Awaitable[Received]]) -> int:
        """The status of a change; 0: its answer was lost. Raises ToolFailed: it was not sent."""
        import aiohttp  # noqa: PLC0415 - loaded by now

        from agent_core.tools.web.web_client import WebFailed  # noqa: PLC0415 - loaded by now

        try:
            return (await send()).status
        except WebFailed as error:
            if isinstance(error.__cause__, aiohttp.ClientConnectorError):
                raise
            return 0

    async def _discover(self) -> list[Collection]:
        """Ask the server where this account has its collections."""
        start, props = await self._properties(self._settings.url)
        if principal := _hrefs(props, "current-user-principal"):
            start, props = await self._properties(self._resolve(start, principal[0]))
        homes = _hrefs(props, "calendar-home-set") + _hrefs(props, "addressbook-home-set")
        found: list[Collection] = []
        for home in dict.fromkeys(self._resolve(start, href) for href in homes or [self._settings.url]):
            received = await self._request("PROPFIND", home, headers={"Depth": "1"}, body=_PROPFIND.encode())
            self._check(received)
            told = [self._collection(home, response) for response in await self._responses(received)]
            found += [each for each in told if each is not None]
        if not found:
            raise ToolFailed(f"There are no calendars at {self._settings.url}; look at tools.dav.url.")
        return found

    async def _properties(self, url: str) -> tuple[str, Mapping[str, Any]]:
        received = await self._request("PROPFIND", url, headers={"Depth": "0"}, body=_PROPFIND.encode())
        self._check(received)
        responses = await self._responses(received)
        return url, responses[0]["props"] if responses else {}

    async def _responses(self, received: Received) -> list[Any]:
        found = await self.read("responses", body=b64encode(received.body).decode())
        return list(found)

    def _collection(self, home: str, response: Mapping[str, Any]) -> Collection | None:
        props = response["props"]
        types = props.get("resourcetype", {}).get("names", [])
        if "calendar" in types:
            kinds = set(props.get("supported-calendar-component-set", {}).get("names") or ["VEVENT", "VTODO"])
        elif "addressbook" in types:
            kinds = {"VCARD"}
        else:
            return None
        url = self._resolve(home, response["href"].rstrip("/") + "/")
        name = url.rstrip("/").rpartition("/")[2]
        title = " ".join(props.get("displayname", {}).get("text", "").split())[:60] or name
        rights = props.get("current-user-privilege-set", {}).get("names")
        return Collection(url, name, title, frozenset(kinds), not rights or bool(_WRITES & set(rights)))

    def _resolve(self, base: str, href: str) -> str:
        """The whole address of an href. Raises ToolFailed: it is on another host, where no password goes."""
        url = urljoin(base, href)
        ours, theirs = urlsplit(self._settings.url), urlsplit(url)
        if (ours.scheme, ours.netloc) != (theirs.scheme, theirs.netloc) or not url.isprintable():
            raise ToolFailed(
                f"The server says that the calendars are at {theirs.scheme}://{theirs.netloc[:100]}/. "
                "If that is right, the owner should write it as tools.dav.url."
            )
        return url

    async def _reports(self, kind: str, report: str) -> list[Any]:
        found: list[Any] = []
        headers = {"Depth": "1"}
        for each in await self.collections(kind):
            try:
                received = await self._request("REPORT", each.url, headers=headers, body=report.encode())
            except ToolFailed as error:
                if isinstance(error.__cause__, TimeoutError):
                    raise ToolFailed(f"{error} Or ask for a shorter time.") from error
                raise
            if received.status == 404:
                self._known = None  # it is gone: look again next time
            self._check(received)
            if received.is_cut:
                raise ToolFailed(f"There is too much in {each.title!r}; ask for a shorter time.")
            body = b64encode(received.body).decode()
            found.append({"name": each.name, "title": each.title, "body": body})
        return found

    async def _request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Received:
        wanted = {
            "Authorization": self._login,
            "Content-Type": "application/xml; charset=utf-8",
            **(headers or {}),
        }
        return await self._web.ask(url, method=method, headers=wanted, body=body, trusted=True)

    def _check(self, received: Received) -> None:
        self._check_status(received.status)

    def _check_status(self, status: int) -> None:
        if status == 401:
            raise ToolFailed("The calendar server does not accept the password; look at tools.dav.")
        if status == 403:
            raise ToolFailed("The calendar server does not allow this.")
        if status in (404, 405):
            raise ToolFailed(f"There are no calendars at {self._settings.url}; look at tools.dav.url.")
        if not 200 <= status < 300:
            raise ToolFailed(
                f"The calendar server answers with an error ({status}). It may help to try later."
            )


_UNKNOWN = (
    "The outcome is unknown: the calendar server was asked, and did not say whether it has done it. Look "
    "whether it is so before you try again."
)


def _hrefs(props: Mapping[str, Any], name: str) -> list[str]:
    return [href for href in props.get(name, {}).get("hrefs", []) if href]


def _calendar_query(kind: str, condition: str) -> str:
    return (
        f'<c:calendar-query xmlns="DAV:" xmlns:c="{_CALENDAR}"><prop><c:calendar-data/></prop><c:filter>'
        f'<c:comp-filter name="VCALENDAR"><c:comp-filter name="{kind}">{condition}</c:comp-filter>'
        "</c:comp-filter></c:filter></c:calendar-query>"
    )


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"
