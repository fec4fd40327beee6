"""Logins at servers by OAuth, against a provider and a server on loopback: honest ones, and others."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import pytest
from aiohttp import web

from agent_core import oauth_login
from agent_core.oauth import OAuthTokens, ProviderUnreachable
from agent_core.tools.mcp.config import McpServerSettings
from agent_core.tools.mcp.mcp_logins import LoginFile
from agent_core.tools.mcp.server_connection import ServerUnavailable
from channels.email.mail_credentials import token_store
from gateway.system.clock import SystemClock
from tests.command_line import free_port
from tests.integration.test_mcp_hostile import OWNER, keep
from tests.integration.test_mcp_hostile import servers as running

pytestmark = pytest.mark.integration
_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def oauth(monkeypatch):
    pytest.importorskip("mcp")
    from agent_core.tools.mcp import mcp_oauth as oauth

    monkeypatch.setattr(oauth_login, "_PORT", oauth_login._PORT)
    for module in (oauth, oauth_login):
        monkeypatch.setattr(module, "REDIRECT", module.REDIRECT)
    return oauth


WORDS = '{"error_description": "\x1b]0;owned\x07 access-9 refresh-9\n' + "long " * 500 + '"}'


class Provider:
    """
    A server that wants a login, and its provider. Its refresh tokens rotate: an old one counts until the newer
    was used, and one that is older than that takes everything back.
    """

    def __init__(self, behaviour=""):
        self.behaviour = behaviour
        self.url = ""
        self.life_s = 3600
        self.calls = []
        self.registered = 0
        self.refreshed = 0
        self.elsewhere = 0
        self.revoked = False
        self.access = set()
        self.given = []
        self.challenge = ""

    # ── the server ──

    async def mcp(self, request):
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.access:
            link = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return web.Response(status=401, headers={"WWW-Authenticate": link})
        if request.method != "POST":
            return web.Response(status=405)
        message = await request.json()
        number, method = message.get("id"), message["method"]
        if number is None:
            return web.Response(status=202)
        if method == "initialize":
            result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
                      "serverInfo": {"name": "far", "version": "1"}}  # fmt: skip
        elif method == "tools/list":
            result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        elif method == "tools/call":
            self.calls.append(message["params"])
            result = {"content": [{"type": "text", "text": "hello"}]}
        else:
            error = {"code": -32601, "message": "no such method"}
            return web.json_response({"jsonrpc": "2.0", "id": number, "error": error})
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": result})

    # ── the provider ──

    async def resource(self, _request):
        return web.json_response({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})

    async def metadata(self, _request):
        if self.behaviour == "redirects":
            raise web.HTTPFound(f"{self.url}/elsewhere")
        return web.json_response(
            {
                "issuer": "https://other.example.org" if self.behaviour == "issuer" else self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": self.behaviour == "iss",
            }
        )

    async def register(self, request):
        self.registered += 1
        wish = await request.json()
        if self.behaviour == "registers_not":
            return web.Response(status=400, text=WORDS)
        if self.behaviour == "registers_badly":
            return web.json_response({"client_id": [WORDS]}, status=201)
        return web.json_response({**wish, "client_id": "made-up"}, status=201)

    async def other(self, _request):
        self.elsewhere += 1
        return web.json_response({})

    def consent(self, shown, **changed):
        """What the browser is sent back to, after the person has logged in."""
        address = next(word for word in shown.split() if word.startswith(self.url))
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert asked["code_challenge_method"] == "S256"
        self.challenge = asked["code_challenge"]
        said = {"code": "the-code", "state": asked["state"], **changed}
        return f"{asked['redirect_uri']}?{urlencode(said)}"

    async def token(self, request):
        form = {name: str(value) for name, value in (await request.post()).items()}
        if self.behaviour == "token_redirects":
            raise web.HTTPTemporaryRedirect(f"{self.url}/elsewhere")
        if form["grant_type"] == "refresh_token":
            self.refreshed += 1
            if form["refresh_token"] not in self.given[-2:]:
                self.revoked = True
            elif form["refresh_token"] == self.given[-1]:
                self.given = self.given[-1:]
            if self.revoked:
                return web.json_response({"error": "invalid_grant"}, status=400)
        else:
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == self.challenge
            assert form["client_id"] in ("made-up", "squid")
            if self.behaviour == "no_token":
                return web.Response(status=400, text=WORDS)
            if self.behaviour == "bad_token":
                return web.json_response({"refresh_token": WORDS, "token_type": "Bearer"})
        number = len(self.access)
        self.access.add(f"access-{number}")
        self.given.append(f"refresh-{number}")
        answer = {"access_token": f"access-{number}", "token_type": "Bearer", "expires_in": self.life_s,
                  "refresh_token": f"refresh-{number}"}  # fmt: skip
        if self.behaviour == "huge":
            answer["more"] = "x" * 300_000
        raw = json.dumps(answer).encode()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(raw[:20])
        await anyio.sleep(0.1)
        await response.write(raw[20:])
        await response.write_eof()
        return response


@asynccontextmanager
async def provider(behaviour=""):
    made = Provider(behaviour)
    application = web.Application()
    application.router.add_route("*", "/mcp", made.mcp)
    application.router.add_get("/.well-known/oauth-protected-resource/mcp", made.resource)
    application.router.add_get("/.well-known/oauth-authorization-server", made.metadata)
    application.router.add_post("/register", made.register)
    application.router.add_post("/token", made.token)
    application.router.add_route("*", "/elsewhere", made.other)
    runner = web.AppRunner(application)
    await runner.setup()
    from agent_core.tools.mcp import mcp_oauth as oauth

    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    oauth_login._PORT = free_port()  # another one now
    oauth.REDIRECT = oauth_login.REDIRECT = f"http://127.0.0.1:{oauth_login._PORT}/callback"
    made.url = f"http://127.0.0.1:{port}"
    try:
        yield made
    finally:
        await runner.cleanup()


def settings(one, **more):
    return {"url": f"{one.url}/mcp", "auth": "oauth", "timeout_s": 5, "start_s": 5, **more}


async def logged_in(oauth, one, folder=None, changed=None, public=None, **more):
    shown = []

    async def pasted():
        return one.consent(shown[-1], **(changed or {}))

    server = McpServerSettings.model_validate(settings(one, **more))
    login = await oauth.log_in(server, SystemClock(), show=shown.append, pasted=pasted, public=public)
    if folder is not None:
        LoginFile(folder / "mcp" / "far.login", login.url).save(login)
    return login


@asynccontextmanager
async def servers(folder, **named):
    """With what was told about logins."""
    from agent_core.tools.mcp.config import McpSettings
    from agent_core.tools.mcp.servers import McpServers

    told = []
    found = McpServers(
        McpSettings.model_validate({"servers": named}),
        folder / "mcp",
        SystemClock(),
        on_login=lambda *said: told.append(said),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        with anyio.fail_after(60):
            for each in found.by_name.values():
                while not (each.is_listed or each.connection.trouble):
                    await anyio.sleep(0.02)
                await each.show_changes()
                await each.approve([])
        yield found, told
        tasks.cancel_scope.cancel()


async def test_a_login_by_a_pasted_address_and_what_it_opens(tmp_path, oauth, caplog, capsys):
    """The token is in a file for its owner alone, and in no log; the answer of the provider came in pieces."""
    caplog.set_level(logging.DEBUG)
    async with provider() as one:
        login = await logged_in(oauth, one, tmp_path)
        assert (one.registered, login.public, login.token_endpoint) == (1, False, f"{one.url}/token")
        file = tmp_path / "mcp" / "far.login"
        assert file.stat().st_mode & 0o777 == 0o600
        assert "access-0" not in repr(login)
        async with running(tmp_path, far=settings(one)) as found:
            (tool,) = found.tools(OWNER, keep)
            assert "hello" in (await tool.execute()).content
        assert len(one.calls) == 1
    said = caplog.text + "".join(capsys.readouterr())
    assert "access-0" not in said
    assert "refresh-0" not in said


async def test_a_registered_client_registers_nothing(oauth):
    async with provider() as one:
        login = await logged_in(oauth, one, client_id="squid")
        assert (one.registered, login.client_id) == (0, "squid")


@pytest.mark.parametrize(
    ("behaviour", "changed", "said"),
    [
        ("issuer", {}, "issuer"),
        ("iss", {"iss": "https://other.example.org"}, "iss"),
        ("redirects", {}, "redirects to another address"),
        ("token_redirects", {}, "redirects to another address"),
        ("huge", {}, "sends too much"),
        ("", {"state": "another"}, "not the address at which the login ends"),
        ("", {"error": "access_denied"}, "access_denied"),
    ],
)
async def test_a_login_that_is_refused(oauth, behaviour, changed, said):
    """Nothing is sent to anybody else, and nothing that could be a token is said."""
    async with provider(behaviour) as one:
        with pytest.raises(ServerUnavailable) as error:
            await logged_in(oauth, one, changed=changed)
        assert said in str(error.value)
        assert "access-" not in str(error.value)
        assert "the-code" not in str(error.value)
        assert one.elsewhere == 0


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("registers_not", "Registration failed: 400"),
        ("registers_badly", "Invalid registration response"),
        ("no_token", "Token exchange failed (400)"),
        ("bad_token", "Invalid token response"),
    ],
)
async def test_what_a_provider_writes_is_not_repeated(oauth, behaviour, said):
    """Only what has failed, in our words and the SDK's, and the status."""
    async with provider(behaviour) as one:
        with pytest.raises(ServerUnavailable) as error:
            await logged_in(oauth, one)
        assert str(error.value) == f"the login failed: {said}"


@pytest.mark.parametrize(
    "place",
    [
        "127.0.0.1",
        "localhost",
        "10.0.0.1",
        "169.254.169.254",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
    ],
)
async def test_the_provider_of_a_public_server_is_public(oauth, place):
    """Neither at home nor in a cloud's own network; the control: a server at home may have it there."""
    import httpx2

    async with httpx2.AsyncClient(transport=oauth.CheckedTransport(public=True)) as client:
        with pytest.raises(httpx2.RequestError, match="is not asked"):
            await client.get(f"https://{place}:9/.well-known/oauth-authorization-server")
        with pytest.raises(httpx2.RequestError, match="without encryption"):
            await client.get("http://93.184.215.14/")
    async with provider() as one:
        with pytest.raises(ServerUnavailable, match="without encryption"):
            await logged_in(oauth, one, public=True)
        assert one.registered == 0


class Names:
    """What the owner of a name answers, one after the other; the last one again and again."""

    def __init__(self, monkeypatch, *answers):
        self.answers = list(answers)
        self.asked = 0
        self._real = anyio.getaddrinfo
        monkeypatch.setattr(anyio, "getaddrinfo", self.look_up)

    async def look_up(self, host, port, **more):
        if host != "far.home.test":
            return await self._real(host, port, **more)
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [(None, None, 0, "", (address, port)) for address in answer]


HOME, STRANGE = "127.0.0.1", "93.184.215.14"


def renamed(one):
    one.url = one.url.replace("127.0.0.1", "far.home.test")
    return one


async def test_a_server_with_a_name_at_home_is_connected_to_where_its_name_was_looked_up(oauth, monkeypatch):
    """Nobody else knows its name, so what was looked up is what is connected to; the control of what follows."""
    async with provider() as one:
        names = Names(monkeypatch, ["127.0.0.9", HOME])  # nobody listens at the first
        login = await logged_in(oauth, renamed(one), client_id="squid")
        assert (login.public, one.given) == (False, ["refresh-0"])
        await oauth.renew_login(login)
        assert one.refreshed == 1
        assert names.asked > 4


@pytest.mark.parametrize("answer", [[HOME, STRANGE], [STRANGE, HOME]])
async def test_one_address_at_home_does_not_make_a_server_be_at_home(oauth, monkeypatch, answer):
    """For the login, and for each renewal of one that was made at home."""
    async with provider() as one:
        at_home = await logged_in(oauth, one, client_id="squid")
        assert at_home.public is False
        renamed(one)
        Names(monkeypatch, answer)
        assert await oauth.is_public(f"{one.url}/mcp")
        with pytest.raises(ServerUnavailable, match="without encryption"):
            await logged_in(oauth, one, client_id="squid")
        moved = replace(at_home, url=f"{one.url}/mcp")
        with pytest.raises(ProviderUnreachable, match="without encryption"):
            await oauth.renew_login(moved)
        assert (one.refreshed, len(one.given)) == (0, 1)


async def test_a_name_that_was_at_home_and_is_elsewhere_now_is_not_asked(oauth, monkeypatch):
    """Its owner would answer from elsewhere and name addresses at home. At the next request, and at the renewal."""
    import httpx2

    async with provider() as one:
        names = Names(monkeypatch, [HOME], [STRANGE])
        with pytest.raises(ServerUnavailable, match="on the local network a moment ago"):
            await logged_in(oauth, renamed(one), client_id="squid")
        assert (names.asked, one.given) == (2, [])
        names.answers = [[HOME], [HOME, STRANGE]]
        with pytest.raises(ServerUnavailable, match="on the local network a moment ago"):
            await logged_in(oauth, one, client_id="squid")
    transport = oauth.CheckedTransport(public=False, server="http://127.0.0.1/")
    async with httpx2.AsyncClient(transport=transport) as client:
        for place, why in {"93.184.215.14": "without encryption", "169.254.169.254": "cloud gives"}.items():
            with pytest.raises(httpx2.RequestError, match=why):
                await client.get(f"http://{place}/")


async def test_the_browser_of_this_machine_ends_the_login(oauth):
    """Its request may come in pieces; what another page sends there ends nothing."""
    async with provider() as one:
        shown = []

        async def nobody():
            raise EOFError

        async def browse():
            while not shown:
                await anyio.sleep(0.01)
            wrong = await visit(one.consent(shown[-1], state="guessed"))
            assert b"400" in wrong
            assert b"200 OK" in await visit(one.consent(shown[-1]))

        async def visit(address):
            parts = urlsplit(address)
            while True:  # it listens as soon as the address is shown, or a moment later
                try:
                    stream = await anyio.connect_tcp("127.0.0.1", parts.port)
                    break
                except OSError:
                    await anyio.sleep(0.02)
            async with stream:
                raw = f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
                await stream.send(raw[:12])
                await anyio.sleep(0.05)
                await stream.send(raw[12:])
                return await stream.receive()

        server = McpServerSettings.model_validate(settings(one))
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(browse)
                login = await oauth.log_in(server, SystemClock(), show=shown.append, pasted=nobody)
        assert login.access == "access-0"


async def test_without_a_login_the_owner_is_told_once(tmp_path, oauth):
    """The tool says what to do; it is the same need after a restart, and after a login it works at once."""
    async with provider() as one:
        await logged_in(oauth, one, tmp_path)
        async with running(tmp_path, far=settings(one)):
            pass
        LoginFile(tmp_path / "mcp" / "far.login", "").forget()
        needs = set()
        for _ in range(2):
            async with servers(tmp_path, far=settings(one)) as (found, told):
                (tool,) = found.tools(OWNER, keep)
                result = await tool.execute()
                assert "Nothing was done" in result.content
                assert "squidbot mcp login far" in result.content
                ((name, need),) = told
                assert name == "far"
                needs.add(need)
        assert len(needs) == 1
        await logged_in(oauth, one, tmp_path)
        async with servers(tmp_path, far=settings(one)) as (found, told):
            assert "hello" in (await found.tools(OWNER, keep)[0].execute()).content
            assert told == []
        LoginFile(tmp_path / "mcp" / "far.login", "").forget()
        async with servers(tmp_path, far=settings(one)) as (found, told):
            assert "squidbot mcp login far" in (await found.tools(OWNER, keep)[0].execute()).content
            assert told[0][1] not in needs
        assert len(one.calls) == 1


async def test_a_login_is_renewed_and_what_was_taken_back_is_not_used_again(tmp_path, oauth):
    async with provider() as one:
        one.life_s = 30
        await logged_in(oauth, one, tmp_path)
        for _ in range(2):
            async with running(tmp_path, far=settings(one)) as found:
                (tool,) = found.tools(OWNER, keep)
                assert "hello" in (await tool.execute()).content
        assert one.refreshed >= 2
        assert not one.revoked
        kept = json.loads((tmp_path / "mcp" / "far.login").read_text())
        assert kept["refresh"] == one.given[-1]
        one.revoked, before = True, one.refreshed
        async with servers(tmp_path, far=settings(one)) as (found, told):
            (tool,) = found.tools(OWNER, keep)
            for _ in range(2):
                while found.by_name["far"].connection.wait_s:
                    await anyio.sleep(0.05)
                assert "squidbot mcp login far" in (await tool.execute()).content
            assert [name for name, _ in told] == ["far"]
        assert one.refreshed == before + 1


async def test_a_token_that_ends_early_costs_nothing(tmp_path, oauth):
    """The server takes it back in the middle: the call is made with a new one, once."""
    async with provider() as one:
        await logged_in(oauth, one, tmp_path)
        async with running(tmp_path, far=settings(one)) as found:
            (tool,) = found.tools(OWNER, keep)
            assert "hello" in (await tool.execute()).content
            one.access.clear()
            one.access.update({"x", "y"})
            assert "hello" in (await tool.execute()).content
            assert (len(one.calls), one.refreshed) == (2, 1)


_RENEWING = {
    "server": """
import json, sys, urllib.parse, urllib.request
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import anyio
from agent_core.tools.mcp.mcp_logins import Bearer, LoginFile
from gateway.system.clock import SystemClock
async def main():
    async def ask(login):
        form = {"grant_type": "refresh_token", "refresh_token": login.refresh, "client_id": login.client_id}
        read = lambda: urllib.request.urlopen(login.token_endpoint, urllib.parse.urlencode(form).encode()).read()
        return json.loads(await anyio.to_thread.run_sync(read))
    bearer = Bearer("far", LoginFile(Path(sys.argv[2]), sys.argv[3] + "/mcp"), SystemClock(), ask)
    while True:
        print(await bearer.token(), flush=True)
anyio.run(main)
""",
    "mailbox": """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import anyio
from agent_core.oauth_http import HttpProvider
from channels.email.mail_credentials import TokenCredentials, token_store
from channels.email.config import OAuth
from gateway.system.clock import SystemClock
async def main():
    oauth = OAuth(provider="custom", client_id="squid", scope="mail", token_endpoint=sys.argv[3] + "/token")
    store = token_store(Path(sys.argv[2]))
    credentials = TokenCredentials("bot", oauth, store, HttpProvider(), SystemClock())
    while True:
        print((await credentials.get()).secret, flush=True)
anyio.run(main)
""",
}


@pytest.mark.parametrize("of", ["server", "mailbox"])
async def test_rotating_tokens_over_kills(tmp_path, oauth, of):
    """Whenever the process dies, what is on disk is the newest token or the one before it, never an older."""
    async with provider() as one:
        one.life_s = 30
        login = await logged_in(oauth, one, tmp_path)
        file = tmp_path / "mcp" / "far.login"
        if of == "mailbox":
            file = tmp_path / "email" / "oauth.json"
            token_store(file).save(OAuthTokens(refresh=login.refresh))
        for number in range(6):
            child = await anyio.open_process(
                [sys.executable, "-c", _RENEWING[of], str(_ROOT), str(file), one.url],
                stderr=subprocess.DEVNULL,
            )
            async with child:
                with anyio.fail_after(60):
                    await child.stdout.receive()
                    await anyio.sleep(0.03 * number)
                child.send_signal(signal.SIGKILL)
            assert json.loads(file.read_text())["refresh"] in one.given[-2:]
        assert not one.revoked
        assert one.refreshed >= 6


async def test_the_provider_is_not_asked_while_its_answer_could_not_be_kept(tmp_path, oauth, monkeypatch):
    async with provider() as one:
        one.life_s = 30
        await logged_in(oauth, one, tmp_path)

        def full(_self):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(LoginFile, "claim", full)
        one.access.clear()
        async with servers(tmp_path, far=settings(one)) as (found, told):
            assert "No space left" in found.by_name["far"].connection.trouble
        assert one.refreshed == 0
        assert told == []
