"""Logging in with tokens: a provider over HTTP, a Dovecot that validates them, a submission server that does."""

from __future__ import annotations

import asyncio
import base64
import ssl
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiosmtpd.smtp import SMTP, AuthResult
from anyio.to_thread import run_sync

from agent_core.oauth import OAuthTokens
from agent_core.oauth_http import HttpProvider
from agent_core.oauth_login import BrowserLogin, LoginFailed, run_browser_flow, run_device_flow
from channels.base import ChannelAuthFailed, ChannelMisconfigured, ChannelUnavailable
from channels.email.channel import EmailChannel
from channels.email.config import EmailConfig
from channels.email.imap.mailbox import Mailbox
from channels.email.mail_credentials import client_from_settings, token_file
from tests.clock import LoopClock
from tests.doubles.accounts import email_channel
from tests.doubles.inbox import MemoryInbox, running
from tests.integration.mail_bot import QUICK, Marks, answer_to
from tests.own_dovecot import OwnDovecot, own_dovecot
from tests.token_provider import KEY, Provider, jwt, provider

USER = "bot"
MAIL = b"From: alice@mail.test\r\nTo: bot@mail.test\r\nMessage-ID: <m@p.test>\r\n\r\nhello\r\n"


TOKENS = """
auth_mechanisms = plain xoauth2 oauthbearer
passdb {
  driver = oauth2
  mechanisms = xoauth2 oauthbearer
  args = FOLDER/oauth2.conf
}
"""


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDovecot]:
    """It believes tokens of our provider, which it is told the key of."""
    files = {
        "keys/default/HS256/default": base64.b64encode(KEY).decode(),
        "oauth2.conf": "introspection_mode = local\nusername_attribute = email\n"
        "local_validation_key_dict = fs:posix:prefix=FOLDER/keys/\n",
    }
    with own_dovecot(tmp_path_factory.mktemp("tokens"), TOKENS, files) as started:
        yield started


def logins(post: OwnDovecot) -> int:
    """How many have knocked."""
    return sum("imap-login: Info: " in line for line in post.log().splitlines())


class Submission:
    """A submission server that takes mail for nothing but good tokens."""

    def __init__(self, good: set[str]) -> None:
        self.good = good
        self.port = 0
        self.mails: list[bytes] = []
        self.logins: list[str] = []

    async def auth_XOAUTH2(self, server: Any, args: list[str]) -> AuthResult:
        return await self._token(server, "xoauth2", args)

    async def auth_OAUTHBEARER(self, server: Any, args: list[str]) -> AuthResult:
        return await self._token(server, "oauthbearer", args)

    async def _token(self, server: Any, kind: str, args: list[str]) -> AuthResult:
        text = base64.b64decode(args[1]).decode()
        self.logins.append(kind)
        token = text.partition("auth=Bearer ")[2].partition("\x01")[0]
        name = (
            f"user={USER}\x01" if kind == "xoauth2" else f"n,a={USER},\x01host=127.0.0.1\x01port={self.port}"
        )
        if text.startswith(name) and text.endswith("\x01\x01") and token in self.good:
            return AuthResult(success=True)
        answer = await server.challenge_auth('{"status":"401"}')
        assert answer in {b"", b"\x01"}
        return AuthResult(success=False, handled=False)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        self.mails.append(envelope.content)
        return "250 taken"


class _Tokens(set[str]):
    """Any token that our key has signed."""

    def __contains__(self, token: object) -> bool:
        return isinstance(token, str) and token.count(".") == 2


@asynccontextmanager
async def submission(folder: Path) -> AsyncIterator[Submission]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    taken = Submission(_Tokens())
    loop = asyncio.get_running_loop()

    def protocol() -> SMTP:
        with warnings.catch_warnings():
            # It does not see that the connection began with TLS.
            warnings.simplefilter("ignore", UserWarning)
            return SMTP(taken, auth_required=True, auth_require_tls=False, hostname="mail.test", loop=loop)

    server = await loop.create_server(protocol, "127.0.0.1", 0, ssl=context)
    taken.port = server.sockets[0].getsockname()[1]
    try:
        yield taken
    finally:
        server.close()


def config(post: OwnDovecot, given: Provider, smtp_port: int = 1, **oauth: Any) -> EmailConfig:
    smtp = {"host": "127.0.0.1", "port": smtp_port, "security": "tls"}
    return post.config(password=None, oauth=given.settings | oauth, smtp=smtp)


def channel(settings: EmailConfig, state: Path) -> EmailChannel:
    return email_channel("email", settings, state_dir=state, clock=LoopClock(datetime.now(UTC)), timing=QUICK)


def keep(state: Path, **tokens: Any) -> None:
    token_file(state).save(OAuthTokens(**{"refresh": "refresh-0", "access": "", "ends_at": 0.0} | tokens))


@pytest.mark.parametrize("mechanism", ["xoauth2", "oauthbearer"])
async def test_from_the_code_to_the_answer(post: OwnDovecot, tmp_path: Path, mechanism: str) -> None:
    """A code typed in elsewhere is enough: tokens 0600, then mail is read and answered with them."""
    async with provider(USER) as given, submission(post.folder) as outside:
        settings = config(post, given, outside.port, mechanism=mechanism)
        assert settings.oauth is not None
        said: list[str] = []
        tokens = await run_device_flow(
            client_from_settings(settings.oauth), HttpProvider(), LoopClock(datetime.now(UTC)), said.append
        )
        token_file(tmp_path).save(tokens)
        bot, inbox = channel(settings, tmp_path), MemoryInbox()
        async with running(bot, inbox) as run:
            await inbox.until_up()
            await run_sync(post.inject, MAIL)
            message = (await inbox.until_accepted(1))[0]
            await bot.deliver(answer_to(message), uncertain=Marks())
        assert run.error is None
        kinds = given.kinds()

    assert "ABCD-EFGH" in said[0]
    assert kinds == ["device", "device_code", "device_code"]
    assert (tmp_path / "oauth.json").stat().st_mode & 0o777 == 0o600
    assert outside.logins == [mechanism]
    assert b"fine" in outside.mails[0]


async def _open(bot: EmailChannel) -> None:
    async with bot._connections.open_mailbox() as mailbox:
        assert isinstance(mailbox, Mailbox)


async def test_an_old_token_is_renewed_once_for_all_who_wait(post: OwnDovecot, tmp_path: Path) -> None:
    """Two connections at the same moment ask the provider once, and the new refresh token is kept."""
    async with provider(USER) as given:
        keep(tmp_path, access=jwt(USER, life_s=-5), ends_at=datetime.now(UTC).timestamp() - 5)
        bot = channel(config(post, given), tmp_path)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_open, bot)
            tasks.start_soon(_open, bot)
        assert given.kinds() == ["refresh_token"]
        kept = token_file(tmp_path).load()
        assert kept is not None
        assert kept.refresh in given.refresh - {"refresh-0"}


async def test_a_token_that_the_server_refuses_is_renewed_the_next_time(
    post: OwnDovecot, tmp_path: Path
) -> None:
    """A wrongly signed one is told in plain words; the next login has a new one, and it works."""
    async with provider(USER) as given:
        keep(tmp_path, access=jwt(USER, key=b"x" * 32), ends_at=datetime.now(UTC).timestamp() + 3000)
        bot = channel(config(post, given), tmp_path)
        with pytest.raises(ChannelAuthFailed, match="does not accept the token of bot"):
            await _open(bot)
        await _open(bot)
        assert given.kinds() == ["refresh_token"]


async def test_an_access_that_was_taken_back(post: OwnDovecot, tmp_path: Path) -> None:
    """The operator is told what to do, and neither side is asked again; the tokens stay until there are others."""
    async with provider(USER) as given:
        given.revoked = True
        keep(tmp_path)
        before = logins(post)
        bot = channel(config(post, given), tmp_path)
        for _ in range(3):
            with pytest.raises(ChannelAuthFailed, match="squidbot email login"):
                await _open(bot)
        assert given.kinds() == ["refresh_token"]
        assert logins(post) == before
        assert token_file(tmp_path).load() == OAuthTokens(refresh="refresh-0")


async def test_a_provider_that_is_away(post: OwnDovecot, tmp_path: Path) -> None:
    """What is left of a token is used; without any it is a temporary failure, with pauses between questions."""
    async with provider(USER) as given:
        given.away = True
        keep(tmp_path, access=jwt(USER), ends_at=datetime.now(UTC).timestamp() + 100)
        await _open(channel(config(post, given), tmp_path))
        keep(tmp_path)
        bot = channel(config(post, given), tmp_path)
        before = len(given.asked)
        for _ in range(3):
            with pytest.raises(ChannelUnavailable) as caught:
                await _open(bot)
            assert caught.value.retry_after_s
        assert len(given.asked) == before + 1


async def test_with_a_browser(post: OwnDovecot, tmp_path: Path) -> None:
    """The pasted address has the code; another one, or one with a wrong state, is refused."""
    async with provider(USER) as given:
        oauth = config(post, given).oauth
        assert oauth is not None
        clock, shown = LoopClock(datetime.now(UTC)), []

        async def paste(change: str = "") -> str:
            from urllib.parse import parse_qs, urlsplit

            url = next(word for word in shown[-1].split() if "/authorize?" in word)
            asked = parse_qs(urlsplit(url).query)
            given.challenge = asked["code_challenge"][0]
            return f"http://127.0.0.1:8913/callback?code=the-code&state={change or asked['state'][0]}"

        client = client_from_settings(oauth)
        tokens = await run_browser_flow(client, HttpProvider(), clock, BrowserLogin(shown.append, paste))
        assert tokens.refresh in given.refresh
        with pytest.raises(LoginFailed, match="not the address"):
            browser = BrowserLogin(shown.append, lambda: paste("wrong"))
            await run_browser_flow(client, HttpProvider(), clock, browser)


async def test_a_person_who_says_no(post: OwnDovecot, tmp_path: Path) -> None:
    """It is over at once, in plain words."""
    async with provider(USER) as given:
        given.denied = True
        oauth = config(post, given).oauth
        assert oauth is not None
        with pytest.raises(LoginFailed, match="access was denied"):
            await run_device_flow(
                client_from_settings(oauth), HttpProvider(), LoopClock(datetime.now(UTC)), print
            )


async def test_a_server_that_knows_no_tokens(post: OwnDovecot, tmp_path: Path) -> None:
    """It is a mistake in the settings, not a refusal."""
    async with provider(USER) as given:
        keep(tmp_path, access=jwt(USER), ends_at=datetime.now(UTC).timestamp() + 3000)
        bot = channel(config(post, given), tmp_path)
        async with bot._connections.open_mailbox() as mailbox:
            from channels.email.imap.imap_connect import log_in
            from channels.email.mail_credentials import MailLogin

            mailbox._protocol.capabilities.discard("AUTH=XOAUTH2")
            with pytest.raises(ChannelMisconfigured, match="does not support XOAUTH2"):
                await log_in(mailbox._protocol, MailLogin(USER, "x", "xoauth2"), bot._config.imap, 5)
