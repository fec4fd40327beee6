"""A calendar server that misbehaves, and a line that breaks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from devservers.calendars import CalendarServer
from tests.calendar_world import Calendars, calendars_at, event, ids_in, started

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServer]:
    yield from started("radicale", tmp_path_factory)


class Line:
    """A proxy before a server. ``lose``: so many answers to changes are lost; ``drop``: so many changes do not arrive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose = 0
        self.drop = 0
        self.changes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
            is_change = head.startswith((b"PUT", b"DELETE"))
            self.changes += is_change
            if is_change and self.drop:
                self.drop -= 1
            else:
                answer = await self._forward(head, body)
                if is_change and self.lose:
                    self.lose -= 1
                else:
                    writer.write(answer)
                    await writer.drain()
        writer.close()

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(head.replace(b"Connection: keep-alive", b"Connection: close") + body)
        found = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in found.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        found += await reader.readexactly(length)
        writer.close()
        return found


@asynccontextmanager
async def at_line(server: CalendarServer) -> AsyncIterator[tuple[Line, Calendars]]:
    for name in server.names():
        server.request("DELETE", f"{server.home}main/{name}")
    line = Line(server.port)
    listening = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with (
        listening,
        calendars_at(f"http://127.0.0.1:{port}/", server.password, turn=secrets.token_hex(4)) as made,
    ):
        yield line, made


NEW = {"action": "create", "summary": "Dentist", "start": "2026-12-03 09:30"}
CHANGE = {"action": "change", "id": "main/old.ics", "summary": "Brunch"}
CANCEL = {"action": "cancel", "id": "main/old.ics"}


@pytest.mark.parametrize("wanted", [NEW, CHANGE, CANCEL], ids=lambda each: str(each["action"]))
@pytest.mark.parametrize(("lose", "drop"), [(0, 0), (1, 0), (0, 1), (0, 99)])
async def test_a_lost_answer_is_found_out(
    server: CalendarServer, wanted: dict[str, str], lose: int, drop: int
) -> None:
    """
    It is sent again only if it is not there; unknown if it never arrives, as far as anybody can tell.

    Nothing else sends it a second time, as aiohttp would by itself.
    """
    async with at_line(server) as (line, calendars):
        old = f"{server.home}main/old.ics"
        server.put(old, event("old", "DTSTART:20261202T120000Z", "DURATION:PT1H", summary="Lunch"))
        line.lose, line.drop = lose, drop
        result = await calendars.use("calendar", **wanted)
        is_lost = drop > 4
        assert result.is_error is result.is_unknown is is_lost, result.content
        assert ("unknown" in result.content) is is_lost
        assert line.changes == (2 if drop else 1)
        happened = {
            "create": any(name.startswith("squidbot-") for name in server.names()),
            "change": "SUMMARY:Brunch" in server.request("GET", old)[1],
            "cancel": "old.ics" not in server.names(),
        }
        assert happened[str(wanted["action"])] is not is_lost


async def test_a_server_that_is_away_was_asked_nothing() -> None:
    """Nothing was sent, so nothing is unknown."""
    async with calendars_at("http://127.0.0.1:9/") as calendars:
        result = await calendars.use("calendar", **NEW)
        assert result.is_error
        assert not result.is_unknown
        assert "127.0.0.1" in result.content


Answer = Callable[[str, str], bytes]


def answered(body: bytes, status: str = "207 Multi-Status", *more: str) -> bytes:
    fields = "".join(f"{each}\r\n" for each in more)
    return (
        f"HTTP/1.1 {status}\r\n{fields}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


@asynccontextmanager
async def hostile(answer: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """A server that always says the same; its address, and what it was asked."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/", asked


def principal(href: str) -> bytes:
    return (
        f'<multistatus xmlns="DAV:"><response><href>/</href><propstat><prop><current-user-principal><href>{href}</href>'
        "</current-user-principal></prop><status>HTTP/1.1 200 OK</status></propstat></response></multistatus>"
    ).encode()


async def test_the_password_goes_to_no_other_host() -> None:
    """Neither by a redirect nor by an address in an answer."""
    async with hostile(answered(b"")) as (other, asked):
        for answer in (
            answered(b"", "302 Found", f"Location: {other}"),
            answered(b"", "301 Moved Permanently", f"Location: {other}"),
            answered(principal(other)),
            answered(principal(f"//{other.removeprefix('http://')}")),
        ):
            async with hostile(answer) as (url, own), calendars_at(url) as calendars:
                said = await calendars.use("calendar", action="list")
                assert said.is_error
                assert len(own) == 1
                assert "authorization: basic" in own[0].lower()
        assert asked == []


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE m [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><multistatus xmlns="DAV:">&b;</multistatus>',
        b"<multistatus>" * 200_000,
        b"\x00" * 1_000_000,
        b"not xml",
        b"",
    ],
    ids=["entities", "deep", "zeros", "text", "empty"],
)
async def test_what_is_no_answer_is_an_error_and_the_next_call_works(
    server: CalendarServer, body: bytes
) -> None:
    async with hostile(answered(body)) as (url, _), calendars_at(url) as calendars:
        assert (await calendars.use("calendar", action="list")).is_error
        reading = calendars.family.client()
        assert await reading.read("span", first="2026-12-01", last="2026-12-02")


async def test_an_endless_answer_is_cut() -> None:
    """At 5 MB, which is no XML then."""
    head = b"HTTP/1.1 207 Multi-Status\r\nConnection: close\r\n\r\n<multistatus>"
    async with hostile(head + b"x" * 20_000_000) as (url, _), calendars_at(url) as calendars:
        assert (await calendars.use("calendar", action="list")).is_error


@pytest.fixture
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalendarServer]:
    """It is busy for long."""
    yield from started("radicale", tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_thousand_appointments(own_server: CalendarServer) -> None:
    """A week of them is listed; what would be too much says so, and is bounded."""
    inner = "".join(
        event(
            f"n{n}",
            f"DTSTART:{2020 + n // 1500}{1 + n % 12:02}{1 + n % 28:02}T100000Z",
            "DURATION:PT1H",
            summary=f"Run {n}",
        )
        .partition("PRODID:-//test\r\n")[2]
        .partition("END:VCALENDAR")[0]
        for n in range(10_000)
    )
    whole = f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//test\r\n{inner}END:VCALENDAR\r\n"
    status, told, _ = own_server.request(
        "PUT", f"{own_server.home}many/", whole, {"Content-Type": "text/calendar"}
    )
    assert status == 201, told
    async with calendars_at(own_server.url, own_server.password) as calendars:
        week = await calendars.use("calendar", action="list", **{"from": "2024-05-01", "to": "2024-05-07"})
        assert 1 <= len(ids_in(week.content)) <= 60
        years = await calendars.use("calendar", action="list", **{"from": "2023-01-01", "to": "2025-12-31"})
        assert years.is_error
        assert "shorter time" in years.content
        found = await calendars.use(
            "calendar", action="search", words="run 6007", **{"from": "2024-01-01", "to": "2024-12-31"}
        )
        assert len(ids_in(found.content)) == 1
