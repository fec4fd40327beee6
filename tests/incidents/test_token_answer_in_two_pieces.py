"""
A provider of tokens whose answer came in two TCP segments was half read. Its refresh tokens rotate, so the next
question had a token that was worth nothing any more, and what was left was deleted: nobody could log in.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import anyio
import pytest
from anyio import to_thread

from agent_core.oauth import OAuthTokens, ProviderUnreachable, TokenStore
from agent_core.oauth_http import MAX_ANSWER_BYTES, HttpProvider
from channels.base import ChannelAuthFailed, ChannelUnavailable
from channels.email.config import OAuth
from channels.email.mail_credentials import TokenCredentials, token_store
from gateway.cli.setup.model_probe import ollama_models
from gateway.operations.control import healthcheck
from gateway.operations.control.control_client import ControlClient
from gateway.system.home import Home
from tests.clock import LoopClock

SayIt = Callable[[asyncio.StreamWriter, bytes, bytes], Awaitable[None]]


class Rotating:
    """A provider over plain TCP: each refresh token is good once. ``say`` decides how an answer travels."""

    def __init__(self, say: SayIt) -> None:
        self.say = say
        self.good = "refresh-0"
        self.asked: list[str] = []
        self.url = ""
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(cast("asyncio.Task[None]", asyncio.current_task()))
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        form = (await reader.readexactly(length)).decode()
        token = parse_qs(form)["refresh_token"][0]
        self.asked.append(token)
        body: dict[str, Any] = {"error": "invalid_grant"}
        if token == self.good:
            self.good = f"refresh-{len(self.asked)}"
            body = {
                "access_token": f"access-{len(self.asked)}",
                "refresh_token": self.good,
                "expires_in": 3600,
            }
        raw = json.dumps(body).encode()
        status = b"400 Bad Request" if "error" in body else b"200 OK"
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        try:
            await self.say(writer, head % (status, len(raw)), raw)
            await asyncio.wait_for(writer.drain(), 5)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), 5)
        except (ConnectionError, TimeoutError):
            writer.transport.abort()


@asynccontextmanager
async def rotating(say: SayIt) -> AsyncIterator[Rotating]:
    made = Rotating(say)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token"
    try:
        yield made
    finally:
        server.close()
        await asyncio.gather(*made.tasks)


async def at_once(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    writer.write(head + body)


async def in_pieces(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    for piece in (head + body[:20], body[20:30], body[30:]):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.1)


async def broken_off(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    writer.write(head + body[:20])


async def without_end(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    writer.write(head + b" " * (MAX_ANSWER_BYTES + 100_000) + body)


def credentials(provider: Rotating, folder: Path) -> TokenCredentials:
    oauth = OAuth(provider="custom", client_id="squid", scope="mail", token_endpoint=provider.url)
    return TokenCredentials(
        "bot", oauth, token_store(folder / "oauth.json"), HttpProvider(), LoopClock(datetime.now(UTC))
    )


def kept(folder: Path) -> str:
    found = token_store(folder / "oauth.json").load()
    return found.refresh if found else "nothing"


@pytest.mark.parametrize("say", [at_once, in_pieces])
async def test_an_answer_is_read_whole(tmp_path: Path, say: SayIt) -> None:
    """In one piece, which is the control, and in three: the new token is used and kept, and asked for once."""
    token_store(tmp_path / "oauth.json").save(OAuthTokens(refresh="refresh-0"))
    async with rotating(say) as provider:
        login = await credentials(provider, tmp_path).get()
    assert login.secret == "access-1"
    assert provider.asked == ["refresh-0"]
    assert kept(tmp_path) == "refresh-1"


@pytest.mark.parametrize("say", [broken_off, without_end])
async def test_an_answer_that_cannot_be_read_is_a_temporary_failure(tmp_path: Path, say: SayIt) -> None:
    """The tokens stay where they are, whatever the provider says of them afterwards."""
    token_store(tmp_path / "oauth.json").save(OAuthTokens(refresh="refresh-0"))
    async with rotating(say) as provider:
        source = credentials(provider, tmp_path)
        with pytest.raises(ChannelUnavailable):
            await source.get()
        assert kept(tmp_path) == "refresh-0"
        provider.say = at_once
        source._token._not_before = 0.0
        for _ in range(3):
            with pytest.raises(ChannelAuthFailed, match="squidbot email login"):
                await source.get()
    assert provider.asked == ["refresh-0", "refresh-0"]  # a token that was taken back is not used again
    assert kept(tmp_path) == "refresh-0"


@pytest.mark.parametrize(
    "nonsense", [b"[" * 100_000, b'{"access_token": "a\\u0000b", "refresh_token": "r"}', b"\xff"]
)
async def test_nonsense_is_a_temporary_failure(nonsense: bytes) -> None:
    """Deep nesting, characters that no token has, no JSON at all."""

    async def say(writer: asyncio.StreamWriter, _head: bytes, _body: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(nonsense), nonsense))

    async with rotating(say) as provider:
        with pytest.raises(ProviderUnreachable):
            OAuthTokens().renew_from(await HttpProvider()(provider.url, {"refresh_token": "x"}), 0)


@pytest.mark.parametrize("life", [10**400, float("nan"), -5, "9" * 5000, [], True])
def test_a_life_without_sense_is_an_hour(life: object) -> None:
    """Whatever number a provider writes there."""
    now = datetime.now(UTC)
    tokens = OAuthTokens().renew_from(
        {"access_token": "a", "refresh_token": "r", "expires_in": life}, now.timestamp()
    )
    assert tokens.ends_at - now.timestamp() == pytest.approx(1 if life is True else 3600, abs=1)


async def test_a_new_token_outlives_a_full_disk(tmp_path: Path) -> None:
    """The provider is not asked while its answer could not be kept; a token that was not kept is, later."""
    file = token_store(tmp_path / "oauth.json")
    file.save(OAuthTokens(refresh="refresh-0"))
    async with rotating(at_once) as provider:
        source = credentials(provider, tmp_path)
        refused = FullDisk(file, refuse=1)
        source._token.store = refused
        with pytest.raises(ChannelUnavailable, match="No space left"):
            await source.get()
        assert provider.asked == []

        source._token._not_before = 0.0
        refused.allowed, refused.refuse = 1, 2
        assert (await source.get()).secret == "access-1"
        assert kept(tmp_path) == "refresh-0"
        assert (await source.get()).secret == "access-1"
        assert (await source.get()).secret == "access-1"
    assert provider.asked == ["refresh-0"]
    assert kept(tmp_path) == "refresh-1"


class FullDisk(TokenStore[OAuthTokens]):
    """Takes ``allowed`` writes, then refuses so many, then takes all."""

    def __init__(self, file: TokenStore[OAuthTokens], refuse: int) -> None:
        super().__init__(file.path, OAuthTokens.decode)
        self.allowed, self.refuse = 0, refuse

    def renew(self, old: OAuthTokens, new: OAuthTokens) -> OAuthTokens | None:
        self._room()
        return super().renew(old, new)

    def claim(self) -> bool:
        self._room()
        return super().claim()

    def _room(self) -> None:
        if self.allowed:
            self.allowed -= 1
        elif self.refuse:
            self.refuse -= 1
            raise OSError(28, "No space left on device")


async def test_whoever_has_asked_hears_the_answer(tmp_path: Path) -> None:
    """A channel that is stopped in the middle of it keeps the new token all the same."""
    token_store(tmp_path / "oauth.json").save(OAuthTokens(refresh="refresh-0"))
    async with rotating(in_pieces) as provider:
        source = credentials(provider, tmp_path)
        with anyio.move_on_after(0.05):
            await source.get()
    assert provider.asked == ["refresh-0"]
    assert kept(tmp_path) == "refresh-1"


@pytest.mark.parametrize("reader", ["control client", "probe", "local models"])
async def test_the_other_readers_read_whole_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """The command line asks the daemon, the container's probe does, and `init` looks for local models."""
    detail = "x" * 60_000

    tasks: list[asyncio.Task[None]] = []

    async def serve(asked: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(cast("asyncio.Task[None]", asyncio.current_task()))
        await asked.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        answer = {"models": [{"name": detail}], "result": {"detail": detail}, "detail": detail}
        body = json.dumps(answer).encode()
        status = b"503 Not Ready" if reader == "probe" else b"200 OK"
        await in_pieces(writer, b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body)), body)
        writer.close()
        await writer.wait_closed()

    home = Home(tmp_path)
    home.control_socket.parent.mkdir(exist_ok=True)
    local = await asyncio.start_unix_server(serve, home.control_socket)
    tcp = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setenv("SQUIDBOT_HOME", str(tmp_path))
    port = tcp.sockets[0].getsockname()[1]
    said = io.StringIO()
    monkeypatch.setattr("sys.stdout", said)
    try:
        match reader:
            case "control client":
                answer = await to_thread.run_sync(ControlClient(home).call, "status")
                assert answer["detail"] == detail
            case "probe":
                assert await to_thread.run_sync(healthcheck.main, []) == 1
                assert detail in said.getvalue()
            case _:
                look = partial(ollama_models, f"http://127.0.0.1:{port}", limit_s=5)
                assert await to_thread.run_sync(look) == [detail]
    finally:
        local.close()
        tcp.close()
        await asyncio.gather(*tasks)
