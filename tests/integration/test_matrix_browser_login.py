"""Logins without a password at a real homeserver that delegates them, as matrix.org and others do."""

from __future__ import annotations

import json
import re
import secrets
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from channels.base import ChannelAuthFailed, ChannelMisconfigured
from channels.matrix.assembly import connect_by_nio
from channels.matrix.client.browser_login import log_in_by_browser, login_ways, token_store
from channels.matrix.client.matrix_login import MatrixLogin
from channels.matrix.config import MatrixConfig
from devservers import Credentials, MatrixPeer, Synapse
from tests.clock import LoopClock
from tests.integration import init_world
from tests.integration.matrix_bot import call
from tests.integration.matrix_house import open_house
from tests.servers import skipped_without_tools

pytestmark = pytest.mark.integration


@pytest.fixture
def provider(authorization_server):
    return authorization_server


@pytest.fixture
def delegating(delegating_synapse):
    return delegating_synapse


@pytest.fixture
def bot(delegated_bot):
    return delegated_bot


def settings(server, localpart, **more):
    return MatrixConfig.model_validate(
        {
            "homeserver": server.url,
            "user_id": f"@{localpart}:{server.server_name}",
            "login": "browser",
            **more,
        }
    )


class Person:
    """Sees what is shown, and pastes what a function makes of it, or waits."""

    def __init__(self, see=lambda _text: None, paste=None):
        self.shown, self._see, self._paste = [], see, paste

    def show(self, text):
        self.shown.append(text)
        self._see(text)

    async def read_line(self):
        if self._paste is None:
            await anyio.sleep_forever()
        return await anyio.to_thread.run_sync(self._paste, self.shown[-1])


async def log_in(config, provider, folder, localpart, *, deny=False):
    """Log in, with a person who enters the code that is shown; return what was shown."""

    def enter(text):
        code = re.search(r"enter (\w+)", text)[1]
        provider.deny(code) if deny else provider.approve(code, localpart)

    person = Person(enter)
    homeserver = await connect_by_nio(config)
    try:
        await log_in_by_browser(config, homeserver, folder, LoopClock(datetime.now(UTC)), person)
    finally:
        await homeserver.aclose()
    return person.shown


async def test_a_code_that_is_entered_on_the_phone(delegating, provider, bot, tmp_path):
    """Where the server says so: one line with address and code, then a device of the bot's own is logged in."""
    config = settings(delegating, bot, device_name="Squid")
    [shown] = await log_in(config, provider, tmp_path, bot)
    assert f"{provider.url}/link" in shown
    assert provider.registered[-1]["client_name"] == "Squid"

    tokens = token_store(config, tmp_path).load()
    assert tokens.refresh and tokens.device_id in provider.logins(bot)
    assert (tmp_path / "oauth.json").stat().st_mode & 0o777 == 0o600

    homeserver = await connect_by_nio(config)
    login = MatrixLogin(config, homeserver, tmp_path, LoopClock(datetime.now(UTC)))
    await login.enter()
    answer = await homeserver.request("GET", "/_matrix/client/v3/account/whoami")
    await homeserver.aclose()
    assert answer.body["user_id"] == config.user_id
    assert answer.body["device_id"] == tokens.device_id


async def test_a_provider_without_codes_wants_a_browser(delegating, provider, bot, tmp_path):
    """Then the address is shown, and that to which the browser is sent is pasted."""
    provider.device_codes = False
    delegating.restart()  # it keeps what the provider has said
    try:
        config = settings(delegating, bot)
        browser = Person(
            paste=lambda text: provider.browse(re.search(r"http://\S+/authorize\S+", text)[0], bot)
        )
        homeserver = await connect_by_nio(config)
        await log_in_by_browser(config, homeserver, tmp_path, LoopClock(datetime.now(UTC)), browser)
        await homeserver.aclose()
        assert token_store(config, tmp_path).load().device_id in provider.logins(bot)
    finally:
        provider.device_codes = True
        await anyio.to_thread.run_sync(delegating.restart)


async def test_somebody_else_in_the_browser(delegating, provider, bot, tmp_path):
    """The login of another account is refused with both names, and ended; a refusal is told as such."""
    other = f"other-{secrets.token_hex(4)}"
    provider.register(other)
    before = provider.logins(other)
    with pytest.raises(ChannelMisconfigured, match=rf"you are @{other}:.*user_id is @{bot}:"):
        await log_in(settings(delegating, bot), provider, tmp_path, other)
    assert not (tmp_path / "oauth.json").exists()
    with pytest.raises(ChannelAuthFailed, match="access was denied"):
        await log_in(settings(delegating, bot), provider, tmp_path, bot, deny=True)
    assert provider.logins(other) == before


async def test_what_a_server_offers(delegating, synapse):
    """A delegating one offers the browser alone, the usual one a password."""
    for server, ways in ((delegating, ["browser"]), (synapse, ["password"])):
        config = MatrixConfig.model_validate(
            {"homeserver": server.url, "user_id": "@a:hs.test", "login": "browser"}
        )
        homeserver = await connect_by_nio(config)
        assert await login_ways(homeserver) == ways
        await homeserver.aclose()


def peer(server, provider, name):
    """Somebody with a client of their own."""
    localpart = f"{name}-{secrets.token_hex(4)}"
    access, device = provider.register(localpart)
    return MatrixPeer.of(
        server.url, Credentials(f"@{localpart}:{server.server_name}", access, device, password="")
    )


def house(server, bot, folder, *answers, **more):
    """A gateway whose account has no password; its login is in the folder."""
    who = Credentials(f"@{bot}:{server.server_name}", "", "", password="")
    return open_house(server.url, who, folder, *answers, password=None, login="browser", **more)


async def test_a_gateway_whose_tokens_last_for_seconds(delegating, provider, bot, tmp_path):
    """Questions are answered in an encrypted house while the token is renewed again and again, in one device."""
    alice = peer(delegating, provider, "alice")
    provider.lifetime_s = 4
    await log_in(settings(delegating, bot), provider, tmp_path / "state" / "matrix", bot)
    before = provider.renewals
    async with house(delegating, bot, tmp_path, "one", "two", "three", allow=[alice]) as there:
        room = await there.room(alice)
        for number, said in enumerate(("first", "second", "third"), 1):
            await call(alice.send, room, said)
            await there.answers(alice, room, number)
            await anyio.sleep(2.5)
        assert await there.seen(alice, room) == ["one", "two", "three"]
    assert provider.renewals - before >= 2
    assert len(provider.logins(bot)) == 2  # the account was made with one


async def test_a_login_that_its_owner_has_ended(delegating, provider, bot, tmp_path):
    """The channel says what to do, waits, and goes on after the command, with what was said meanwhile."""
    alice = peer(delegating, provider, "alice")
    folder = tmp_path / "state" / "matrix"
    await log_in(settings(delegating, bot), provider, folder, bot)
    async with house(delegating, bot, tmp_path, "one", "two", allow=[alice]) as there:
        room = await there.room(alice)
        await call(alice.send, room, "first")
        await there.answers(alice, room, 1)
        provider.end_logins(bot)
        with anyio.fail_after(60):
            while "squidbot matrix login" not in str(there.built.supervisor.statuses()):
                await anyio.sleep(0.1)
        await call(alice.send, room, "second")
        await log_in(settings(delegating, bot), provider, folder, bot)
        there.built.supervisor.retry("matrix")  # as the command does
        await there.answers(alice, room, 2)
        assert await there.seen(alice, room) == ["one", "two"]


async def test_an_identity_that_was_made_elsewhere(delegating, provider, bot, tmp_path):
    """It stays until the account's owner has agreed in the browser; the log says where that is."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        await log_in(settings(delegating, bot), provider, folder / "state" / "matrix", bot)
    kept = first / "state" / "matrix" / "cross_signing.json"
    foreign = second / "state" / "matrix" / "cross_signing.json"
    async with house(delegating, bot, first):
        await until(kept.exists)
    with capture_logs() as logs:
        async with house(delegating, bot, second) as there:
            await until(lambda: there.built.supervisor.is_up("matrix"))
        [hint] = [one["hint"] for one in logs if one["event"] == "matrix.identity_foreign"]
        assert f"{provider.url}/account?action=org.matrix.cross_signing_reset" in hint
        assert not foreign.exists()
        provider.allow_reset(bot)
        async with house(delegating, bot, second):
            await until(lambda: any(one["event"] == "matrix.device_signed" for one in logs))
    assert foreign.exists()


async def until(there, within_s=60):
    with anyio.fail_after(within_s):
        while not there():
            await anyio.sleep(0.05)


def test_init_where_no_passwords_are_given(delegating, provider, bot, tmp_path):
    """Nobody is asked for one; the code is shown, and the login that was made is the daemon's."""
    home = tmp_path / "home"
    user_id = f"@{bot}:{delegating.server_name}"
    person = init_world.Person("init", "--home", home, "--no-email", "--model", "demo", "--no-hello")
    person.sees(r"Connect it to Matrix\? \[Y/n\]: ").types("")
    person.sees("Matrix id.*: ").types(user_id)
    person.sees("The homeserver .*: ").types(delegating.url)
    person.sees(r"enter (\w+) ")
    provider.approve(re.search(r"enter (\w+) ", person.seen)[1], bot)
    person.sees("Logged in as").sees("Your own Matrix id.*: ").types(f"@owner:{delegating.server_name}")
    person.sees("anyway.*: ").types("y").sees("Your time zone .*: ").types("")
    person.sees(r"Write this\? \[Y/n\]: ").types("y").sees("name and manner.*: ").types("").types("n")
    assert person.ends() == 0, person.seen
    assert "send it `!persona" in person.seen
    assert "password" not in person.seen.partition("Logged in as")[0].lower()
    assert "login: browser" in (home / "squidbot.yaml").read_text()
    with init_world.Daemon(home):
        kept = json.loads((home / "state" / "matrix" / "oauth.json").read_text())
    assert kept["device_id"] in provider.logins(bot)
    checked = init_world.squidbot("check", "--home", str(home))
    assert checked.returncode == 0, checked.stdout


@pytest.fixture
def single_sign_on(tmp_path_factory):
    """A Synapse with single sign-on of the older kind (CAS) and no passwords; whoever comes is "sso-bot"."""

    class Cas(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            assert "/proxyValidate?" in self.path, self.path
            content = (
                b"<cas:serviceResponse xmlns:cas='http://www.yale.edu/tp/cas'><cas:authenticationSuccess>"
                b"<cas:user>sso-bot</cas:user></cas:authenticationSuccess></cas:serviceResponse>"
            )
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    cas = ThreadingHTTPServer(("127.0.0.1", 0), Cas)
    threading.Thread(target=cas.serve_forever, daemon=True).start()
    overrides = {
        "cas_config": {"enabled": True, "server_url": f"http://127.0.0.1:{cas.server_port}"},
        "sso": {"client_whitelist": ["http://127.0.0.1:8913/"]},
        "password_config": {"enabled": False},
    }
    with skipped_without_tools():
        server = Synapse.start(tmp_path_factory.mktemp("sso"), overrides=overrides)
    with server:
        yield server
    cas.shutdown()
    cas.server_close()


async def test_single_sign_on_of_the_older_kind(single_sign_on, tmp_path):
    """The browser comes back with a token that is used once; what it gives does not expire."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_):
            return None

    def follow(address):
        opener = urllib.request.build_opener(Stay, urllib.request.HTTPCookieProcessor())
        with pytest.raises(urllib.error.HTTPError) as sent:
            opener.open(address)
        sent.value.close()
        service = parse_qs(urlsplit(sent.value.headers["Location"]).query)["service"][0]
        with pytest.raises(urllib.error.HTTPError) as back:
            opener.open(f"{service}&ticket=once")
        back.value.close()
        return back.value.headers["Location"]

    config = settings(single_sign_on, "sso-bot")
    person = Person(paste=lambda text: follow(re.search(r"http://\S+/sso/redirect\S+", text)[0]))
    homeserver = await connect_by_nio(config)
    try:
        assert await login_ways(homeserver) == ["browser"]
        await log_in_by_browser(config, homeserver, tmp_path, LoopClock(datetime.now(UTC)), person)
        login = MatrixLogin(config, homeserver, tmp_path, LoopClock(datetime.now(UTC)))
        await login.enter()
        answer = await homeserver.request("GET", "/_matrix/client/v3/account/whoami")
        assert answer.body["user_id"] == config.user_id
        await homeserver.request("POST", "/_matrix/client/v3/logout", {})
        refused = await homeserver.request("GET", "/_matrix/client/v3/account/whoami")
        with pytest.raises(ChannelAuthFailed, match="squidbot matrix login"):
            await login.renew(homeserver.credentials, refused)
    finally:
        await homeserver.aclose()
