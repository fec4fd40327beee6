"""Tokens and how a person gives them, in virtual time; names of folders; single-mindedness of DNS."""

from __future__ import annotations

import base64
import dataclasses
import itertools
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.oauth import OAuthTokens, ProviderRefused, ProviderUnreachable, RotatingToken
from agent_core.oauth_login import (
    MAX_WAIT_S,
    BrowserLogin,
    LoginFailed,
    run_browser_flow,
    run_device_flow,
    seconds_in,
)
from agent_core.state_folder import DiskFolder
from channels.base import ChannelAuthFailed, ChannelMisconfigured, ChannelUnavailable
from channels.email.config import EmailConfig, OAuth
from channels.email.imap.folders import SENT, WantedFolder
from channels.email.imap.imap_syntax import Folder, folder_name, folder_wire
from channels.email.mail_credentials import (
    MailLogin,
    TokenCredentials,
    client_from_settings,
    credentials_of,
    give_access,
    token_file,
    token_store,
)
from tests.clock import LoopClock, ManualClock
from tests.mail_config import email_config

pytestmark = pytest.mark.virtual_time
OAUTH = OAuth(
    provider="custom",
    client_id="squid",
    scope="mail",
    device_endpoint="https://id.test/device",
    token_endpoint="https://id.test/token",
)
GIVEN = {"access_token": "access-1", "refresh_token": "refresh-1", "expires_in": 3600}
CODE = {"device_code": "d", "user_code": "U-1", "verification_uri": "https://id.test/go", "interval": 5}


class Script:
    """A provider that gives its answers in order; the last one again and again."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, Mapping[str, str]]] = []

    async def __call__(self, url: str, form: Mapping[str, str]) -> dict[str, Any]:
        self.asked.append((anyio.current_time(), form))
        await anyio.sleep(0.1)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pauses(self) -> list[int]:
        times = [at for at, _ in self.asked]
        return [round(after - before) for before, after in itertools.pairwise(times)]


async def test_the_provider_sets_the_pace() -> None:
    """Not sooner than it says, slower when it asks for that, and slower when it is away."""
    pending = ProviderRefused("authorization_pending")
    script = Script(CODE, pending, ProviderRefused("slow_down"), pending, ProviderUnreachable("x"), GIVEN)
    said: list[str] = []
    tokens = await run_device_flow(client_from_settings(OAUTH), script, LoopClock(), said.append)

    assert tokens.refresh == "refresh-1"
    assert script.pauses() == [5, 5, 10, 10, 15]
    assert "U-1" in said[0]
    assert "https://id.test/go" in said[0]


async def test_a_code_that_nobody_types_in() -> None:
    """It ends, with a word about what to do."""
    script = Script(CODE | {"expires_in": 60}, ProviderRefused("authorization_pending"))
    with pytest.raises(LoginFailed, match="begin again"):
        await run_device_flow(client_from_settings(OAUTH), script, LoopClock(), print)
    assert len(script.asked) < 15


def credentials(folder: Path, script: Script) -> TokenCredentials:
    return TokenCredentials("bot", OAUTH, token_store(folder / "oauth.json"), script, LoopClock())


async def test_a_token_is_renewed_before_it_ends_and_not_sooner(tmp_path: Path) -> None:
    """Two minutes ahead; forty logins in an hour cost one question."""
    script = Script(GIVEN, GIVEN | {"access_token": "access-2"})
    token_store(tmp_path / "oauth.json").save(OAuthTokens(refresh="refresh-0"))
    source = credentials(tmp_path, script)
    for _ in range(40):
        assert (await source.get()).secret == "access-1"
        await anyio.sleep(80)
    await anyio.sleep(300)
    assert (await source.get()).secret == "access-2"
    assert len(script.asked) == 2
    assert script.asked[1][1]["refresh_token"] == "refresh-1"


@pytest.mark.parametrize("years", [-50, 25])
async def test_a_wrong_clock_costs_a_renewal_and_no_login(tmp_path: Path, years: int) -> None:
    """A token that was got then is over at once, or seems to last for years: until the server refuses it."""
    script = Script(GIVEN, GIVEN | {"access_token": "access-2", "refresh_token": "refresh-2"})
    store = token_store(tmp_path / "oauth.json")
    store.save(OAuthTokens(refresh="refresh-0"))
    clock, right = ManualClock(), ManualClock().now()

    async def ask(tokens: OAuthTokens) -> dict[str, Any]:
        return await script("", {"refresh_token": tokens.refresh})

    source = RotatingToken(store, clock, ask)
    clock._now = right + timedelta(days=365 * years)
    assert (await source.get()).access == "access-1"
    clock._now = right
    clock.advance(3600)
    if years > 0:
        assert (await source.get()).access == "access-1"
        assert source.note_refused_token("access-1")
    assert [(await source.get()).access for _ in range(3)] == ["access-2"] * 3
    assert [form["refresh_token"] for _, form in script.asked] == ["refresh-0", "refresh-1"]


async def test_a_provider_that_is_away_is_asked_more_and_more_rarely(tmp_path: Path) -> None:
    """A login every ten seconds for an hour, and no more than a handful of questions."""
    script = Script(ProviderUnreachable("503"))
    token_store(tmp_path / "oauth.json").save(OAuthTokens(refresh="refresh-0"))
    source = credentials(tmp_path, script)
    for _ in range(360):
        with pytest.raises(ChannelUnavailable):
            await source.get()
        await anyio.sleep(10)
    assert len(script.asked) <= 12


async def test_a_new_login_is_taken_up_without_a_restart(tmp_path: Path) -> None:
    """What was taken back is gone for good until a person has logged in again."""
    script = Script(ProviderRefused("invalid_grant"), GIVEN)
    file = token_store(tmp_path / "oauth.json")
    file.save(OAuthTokens(refresh="refresh-0"))
    source = credentials(tmp_path, script)
    for _ in range(3):
        with pytest.raises(ChannelAuthFailed):
            await source.get()
    file.save(OAuthTokens(refresh="refresh-9"))
    assert (await source.get()).secret == "access-1"
    assert [form["refresh_token"] for _, form in script.asked] == ["refresh-0", "refresh-9"]


@pytest.mark.parametrize("new", [None, OAuthTokens(refresh="refresh-9", access="access-9", ends_at=2e9)])
@pytest.mark.parametrize("full", [False, True])
async def test_a_login_that_came_or_went_during_a_renewal_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: OAuthTokens | None, *, full: bool
) -> None:
    """Whether what was renewed could be saved at once, or is tried again later; nothing of it is ever used."""
    file = token_store(tmp_path / "oauth.json")
    file.save(OAuthTokens(refresh="refresh-0"))
    write, left = DiskFolder.write, [1 if full else 0]

    def unsure(self: DiskFolder, name: str, content: bytes) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(28, "No space left on device")
        write(self, name, content)

    monkeypatch.setattr(DiskFolder, "write", unsure)

    def change() -> None:
        file.path.unlink() if new is None else file.save(new)

    class Slow(Script):
        async def __call__(self, url: str, form: Mapping[str, str]) -> dict[str, Any]:
            if not full:
                change()
            return await super().__call__(url, form)

    source = credentials(tmp_path, Slow(GIVEN))
    if full:
        assert (await source.get()).secret == "access-1"
        change()
    for _ in range(2):
        if new is None:
            with pytest.raises(ChannelAuthFailed, match="no token"):
                await source.get()
        else:
            assert (await source.get()).secret == "access-9"
        assert file.load() == new


async def test_a_mailbox_with_a_password_needs_no_login(tmp_path: Path) -> None:
    """It is said what that means, and where to read on; nothing is shown or stored."""
    shown: list[str] = []

    async def pasted() -> str:
        raise AssertionError

    with pytest.raises(
        ChannelMisconfigured, match=r"uses its password and needs no login here; docs/email\.md"
    ):
        await give_access(email_config(), tmp_path, LoopClock(), show=shown.append, pasted=pasted)
    assert shown == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "{}", '{"refresh": 1}', "[]", "\x00", '{"refresh":"r","access":"a","ends_at":"x"}']
)
async def test_a_damaged_file_is_like_none(tmp_path: Path, text: str) -> None:
    """The operator is told to log in again."""
    (tmp_path / "oauth.json").write_text(text)
    if text == '{"refresh": 1}':
        assert token_store(tmp_path / "oauth.json").load() is None
    with pytest.raises(ChannelAuthFailed, match="squidbot email login"):
        await credentials(tmp_path, Script(GIVEN)).get()


@pytest.mark.parametrize("device", [True, False])
async def test_a_person_is_led_the_way_that_the_provider_knows(tmp_path: Path, device: bool) -> None:
    """A code where there are codes, else the browser; what comes of it is kept for the daemon, 0600."""
    config = EmailConfig.model_validate(
        {
            "address": "bot@mail.test",
            "username": "bot",
            "imap": {"host": "h"},
            "smtp": {"host": "h"},
            "sender_verification": "off",
            "oauth": {
                "provider": "custom" if device else "google",
                "client_id": "squid",
                "scope": "mail",
                "token_endpoint": "https://id.test/token",
                **({"device_endpoint": "https://id.test/device"} if device else {}),
            },
        }
    )
    shown: list[str] = []

    async def pasted() -> str:
        state = parse_qs(urlsplit(next(word for word in shown[-1].split() if "state=" in word)).query)[
            "state"
        ][0]
        return f"http://127.0.0.1:8913/callback?code=c&state={state}"

    script = Script(*([CODE] if device else []), GIVEN)
    await give_access(config, tmp_path, LoopClock(), show=shown.append, pasted=pasted, post=script)
    kept = token_file(tmp_path).load()
    assert kept is not None
    assert kept.refresh == "refresh-1"
    assert token_file(tmp_path).path.stat().st_mode & 0o777 == 0o600
    assert (await credentials_of(config, tmp_path, LoopClock(), script).get()).secret == "access-1"


@pytest.mark.parametrize(
    ("issuer", "told", "is_taken"),
    [
        ("https://id.test", "https://id.test", True),
        ("https://id.test", "", True),
        ("", "https://other.test", True),
        ("https://id.test", "https://other.test", False),
        ("https://id.test", "https://id.test/", False),
    ],
)
async def test_a_code_of_another_provider_is_shown_to_nobody(issuer: str, told: str, is_taken: bool) -> None:
    """A hostile server names the login page of an honest provider, and itself for the code (RFC 9207)."""
    client = dataclasses.replace(
        client_from_settings(OAUTH), authorization_endpoint="https://id.test/login", issuer=issuer
    )
    shown: list[str] = []

    async def pasted() -> str:
        address = next(word for word in shown[-1].split() if "state=" in word)
        state = parse_qs(urlsplit(address).query)["state"][0]
        return f"http://127.0.0.1:8913/callback?{urlencode({'code': 'c', 'state': state, 'iss': told})}"

    script = Script(GIVEN)
    login = run_browser_flow(client, script, LoopClock(), BrowserLogin(shown.append, pasted))
    if is_taken:
        assert (await login).access == "access-1"
        return
    with pytest.raises(LoginFailed, match="another provider"):
        await login
    assert script.asked == []


def test_secrets_are_in_no_text() -> None:
    """Not of tokens, not of logins."""
    assert "sss" not in repr(OAuthTokens(refresh="sss", access="sss")) + repr(
        MailLogin("bot", "sss", "xoauth2")
    )


def test_the_two_wrappings() -> None:
    """As Google wrote it down, and as RFC 7628 does."""
    assert base64.b64decode(MailLogin("bot", "tok", "xoauth2").first_words("h", 993)) == (
        b"user=bot\x01auth=Bearer tok\x01\x01"
    )
    assert base64.b64decode(MailLogin("b,o=t", "tok", "oauthbearer").first_words("mx.test", 993)) == (
        b"n,a=b=2Co=3Dt,\x01host=mx.test\x01port=993\x01auth=Bearer tok\x01\x01"
    )


def test_what_is_known_of_providers() -> None:
    """Google has no device codes for mail; Microsoft has a directory in its addresses."""
    google = client_from_settings(OAuth(provider="google", client_id="x"))
    microsoft = client_from_settings(OAuth(provider="microsoft", client_id="x", tenant="my.test"))
    assert not google.device_endpoint
    assert "/my.test/" in microsoft.device_endpoint
    assert "offline_access" in microsoft.scope


@given(st.text(max_size=40))
def test_names_of_folders_come_back(name: str) -> None:
    """Whatever people call a folder: ASCII on the wire, and the same name again."""
    name = name.encode("utf-16-be", "replace").decode("utf-16-be")
    wire = folder_wire(name)
    assert wire.isascii()
    assert folder_name(wire) == name


@given(st.text(alphabet="&+,-AaPw/= ", max_size=20))
def test_names_of_servers_are_total(wire: str) -> None:
    """What is no such encoding stays as it is."""
    assert isinstance(folder_name(wire), str)


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        ("Entw&APw-rfe", "Entwürfe"),
        ("&ZeVnLIqe-", "日本語"),
        ("a&-b", "a&b"),
        ("&bad", "&bad"),
        ("&2D0-", "&2D0-"),
    ],
)
def test_names_of_folders(wire: str, name: str) -> None:
    """The examples of RFC 3501, and two that are none."""
    assert folder_name(wire) == name


def folder(name: str, *marks: str, delimiter: str = ".") -> Folder:
    return Folder(name, frozenset(marks), folder_wire(name), delimiter)


@pytest.mark.parametrize(
    ("folders", "found", "made"),
    [
        ([folder("INBOX"), folder("Sent")], "Sent", "Sent"),
        ([folder("INBOX"), folder("INBOX.Sent")], "INBOX.Sent", "INBOX.Sent"),
        ([folder("INBOX"), folder("Gesendet", "\\sent"), folder("Sent")], "Gesendet", "Sent"),
        ([folder("INBOX"), folder("sent items")], "sent items", "Sent"),
        ([folder("INBOX")], None, "Sent"),
        ([folder("INBOX"), folder("INBOX.Drafts")], None, "INBOX.Sent"),
        ([folder("INBOX", delimiter=""), folder("x", delimiter="")], None, "Sent"),
    ],
)
def test_where_sent_mail_is(folders: list[Folder], found: str | None, made: str) -> None:
    """A mark is better than a name, and new folders lie where the others do."""
    assert SENT.find_or_none(folders) == found
    assert SENT.new_name(folders) == made


def test_levels_are_written_with_a_slash() -> None:
    """And told to the server with its own delimiter."""
    folders = [folder("INBOX"), folder("Bot.Done")]
    assert WantedFolder(("Bot/Done",)).find_or_none(folders) == "Bot.Done"
    assert WantedFolder(("Bot/Über",)).new_name(folders) == "Bot.&ANw-ber"


@pytest.mark.parametrize(
    ("told", "wait_s"), [(float("nan"), 5.0), ("NaN", 5.0), (float("inf"), None), (None, 5.0), (7, 7.0)]
)
def test_a_pause_that_is_no_number_is_the_usual_one(told: object, wait_s: float | None) -> None:
    """A provider's ``interval: NaN`` made a wait without end."""
    assert seconds_in(told, 5.0) == (wait_s or MAX_WAIT_S)
