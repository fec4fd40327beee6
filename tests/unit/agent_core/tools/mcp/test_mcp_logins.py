"""Renewing a login at a server, in virtual time: whose word counts, and when the provider is asked again."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from agent_core.oauth import ProviderRefused
from agent_core.state_folder import DiskFolder
from agent_core.tools.mcp.mcp_logins import Bearer, Login, LoginFile, LoginNeeded
from agent_core.tools.mcp.server_connection import ServerUnavailable
from tests.clock import EPOCH, LoopClock

pytestmark = pytest.mark.virtual_time
URL = "https://far.test/mcp"
OLD = Login(
    url=URL,
    token_endpoint="https://id.test/token",
    client_id="squid",
    access="access-0",
    refresh="refresh-0",
)
NEW = replace(OLD, access="access-9", refresh="refresh-9", ends_at=EPOCH.timestamp() + 9000)
GIVEN = {"access_token": "access-1", "refresh_token": "refresh-1", "expires_in": 3600}


@pytest.fixture
def file(tmp_path):
    made = LoginFile(tmp_path / "far.login", URL)
    made.save(OLD)
    return made


def bearer(file, ask):
    return Bearer("far", file, LoopClock(), ask)


def change(file, new):
    file.forget() if new is None else file.save(new)


class Provider:
    """Gives its answers in order; the last one again and again."""

    def __init__(self, *answers, meanwhile=lambda: None):
        self.answers = list(answers)
        self.asked = []
        self.meanwhile = meanwhile

    async def __call__(self, login):
        self.asked.append(login.refresh)
        self.meanwhile()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def fill_the_disk(monkeypatch):
    """Gives what empties it again."""
    real = DiskFolder.write

    def full(_self, _name, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DiskFolder, "write", full)
    return lambda: monkeypatch.setattr(DiskFolder, "write", real)


@pytest.mark.parametrize("new", [None, NEW])
@pytest.mark.parametrize("full", [False, True])
async def test_a_login_or_logout_during_a_renewal_counts(file, monkeypatch, new, full):
    """Whether what was renewed could be kept at once, or is tried again later; nothing of it is ever used."""
    ask = Provider(GIVEN, meanwhile=lambda: full or change(file, new))
    source = bearer(file, ask)
    if full:
        empty = fill_the_disk(monkeypatch)
        assert await source.token() == "access-1"
        empty()
        change(file, new)
    for _ in range(2):
        if new is None:
            with pytest.raises(LoginNeeded):
                await source.token()
        else:
            assert await source.token() == "access-9"
        assert file.load() == new
    assert ask.asked == ["refresh-0"]


async def test_what_could_not_be_kept_is_kept_later(file, monkeypatch):
    """Over two renewals: the file holds the oldest until the newest is there."""
    ask = Provider(GIVEN, {**GIVEN, "access_token": "access-2", "refresh_token": "refresh-2"})
    source = bearer(file, ask)
    empty = fill_the_disk(monkeypatch)
    assert await source.token() == "access-1"
    await anyio.sleep(3600)
    assert await source.token() == "access-2"
    assert file.load() == OLD
    empty()
    assert await source.token() == "access-2"
    assert file.load().refresh == "refresh-2"
    assert ask.asked == ["refresh-0", "refresh-1"]


@pytest.mark.parametrize("code", ["invalid_grant", "invalid_client", "unauthorized_client"])
async def test_a_final_refusal_needs_a_person_and_is_not_asked_about_again(file, code):
    ask = Provider(ProviderRefused(code))
    source = bearer(file, ask)
    for _ in range(2):
        with pytest.raises(LoginNeeded):
            await source.token()
        await anyio.sleep(1000)
    assert ask.asked == ["refresh-0"]
    file.save(NEW)
    assert await source.token() == "access-9"


@pytest.mark.parametrize("code", ["invalid_request", "temporarily_unavailable", "server_error", "slow_down"])
async def test_any_other_refusal_says_nothing_of_the_login(file, code):
    """The provider is asked again, after a pause that grows."""
    ask = Provider(ProviderRefused(code), ProviderRefused(code), GIVEN)
    source = bearer(file, ask)
    for pause_s in (5, 10):
        with pytest.raises(ServerUnavailable, match=code) as told:
            await source.token()
        assert not isinstance(told.value, LoginNeeded)
        await anyio.sleep(pause_s - 1)
        with pytest.raises(ServerUnavailable, match="a moment ago"):
            await source.token()
        await anyio.sleep(1)
    assert await source.token() == "access-1"
    assert ask.asked == ["refresh-0"] * 3


async def test_a_token_is_used_while_it_lives_and_the_provider_is_away_but_not_after_a_logout(file):
    living = replace(OLD, ends_at=EPOCH.timestamp() + 30)
    file.save(living)
    ask = Provider(ProviderRefused("server_error"), GIVEN)
    source = bearer(file, ask)
    assert await source.token() == "access-0"
    await anyio.sleep(10)
    ask.meanwhile = file.forget
    with pytest.raises(LoginNeeded):
        await source.token()


async def test_a_new_login_does_not_wait_for_the_pause_of_the_old_one(file):
    """The provider was asked in vain with the old one; the pause of five seconds was for that."""
    ask = Provider(ProviderRefused("server_error"), GIVEN)
    source = bearer(file, ask)
    with pytest.raises(ServerUnavailable):
        await source.token()
    file.save(replace(OLD, refresh="refresh-9"))
    assert await source.token() == "access-1"
    assert ask.asked == ["refresh-0", "refresh-9"]
