"""What becomes of the account itself: locked, deactivated, its clock wrong; each told in plain words."""

from __future__ import annotations

import json
import re
import secrets
from datetime import timedelta
from urllib.parse import quote

import anyio
import pytest

from channels.base import ChannelAuthFailed, LinkState
from channels.matrix.crypto.account_check import encryption_findings
from devservers import MatrixPeer
from devservers.rest import request_json
from gateway.cli.check.check_report import CheckReport, FindingLevel
from gateway.cli.check.login_checks import check_channel, report_findings
from gateway.system.clock import SystemClock
from tests.command_line import squidbot
from tests.daemon import Daemon, matrix_settings
from tests.doubles.accounts import matrix_channel
from tests.integration.matrix_bot import bot_joined, call
from tests.integration.secret_peer import SecretPeer


@pytest.fixture(scope="module")
def admin(synapse):
    """The homeserver's administrator."""
    credentials = synapse.register(f"root-{secrets.token_hex(4)}", "root", admin=True)

    def do(method, path, body):
        url = f"{synapse.url}/_synapse/admin{path}"
        return request_json(method, url, body, token=credentials.access_token)

    return do


async def until_ended(channel):
    error = await channel.test_run.until_ended(within_s=60)
    assert isinstance(error, ChannelAuthFailed)
    return str(error)


async def test_a_deactivated_account_says_so(make_bot, admin):
    """While it runs and at the next start the operator is told so; Synapse itself only says "forbidden"."""
    bot = make_bot()
    async with bot.up() as channel:
        await call(admin, "POST", f"/v1/deactivate/{quote(bot.user_id)}", {"erase": False})
        said = await until_ended(channel)
    with pytest.raises(ChannelAuthFailed) as again:
        async with bot.up():
            pass

    assert "deactivated" in said
    assert "deactivated" in str(again.value)


async def test_a_locked_account_says_so_and_comes_back(make_bot, admin):
    """Locked by the administrators: the operator is told so; unlocked, it goes on as the same device."""
    bot = make_bot()
    async with bot.up():
        before = json.loads((bot.folder / "session.json").read_text())["device_id"]
    await call(admin, "PUT", f"/v2/users/{quote(bot.user_id)}", {"locked": True})
    with pytest.raises(ChannelAuthFailed, match="locked"):
        async with bot.up():
            pass
    await call(admin, "PUT", f"/v2/users/{quote(bot.user_id)}", {"locked": False})
    async with bot.up():
        after = json.loads((bot.folder / "session.json").read_text())["device_id"]

    assert after == before


async def test_the_doctor_tells_what_is_wrong(make_bot, synapse):
    """`squidbot check` proves a login, and says in plain words why there is none."""
    good = make_bot()
    wrong = make_bot(password="wrong")
    nowhere = make_bot(homeserver="http://127.0.0.1:9")
    found = []
    for bot in (good, wrong, nowhere):
        channel = bot.channel()
        found.append(await check_channel(channel, bot.inbox.position))
        await channel.aclose()

    assert found[0] == (FindingLevel.OK, f"logged in as {good.user_id}")
    assert found[1][0] is FindingLevel.FAILED
    assert "does not accept" in found[1][1]
    assert "cannot be reached" in found[2][1]


async def test_the_doctor_tells_how_the_encryption_stands(make_bot):
    """As the homeserver sees it: published, signed by an identity (the signatures are checked), one-time keys."""
    bot = make_bot()
    async with bot.up() as channel:
        with anyio.fail_after(60):
            while not (found := await channel.admin.account_check())["signed"]:
                await anyio.sleep(0.1)
        assert channel.last_contact_at is not None
    report = CheckReport()
    report_findings(report, "matrix", encryption_findings(found, running=True))

    assert found["keys_published"] and found["identity"]
    assert found["one_time_keys"] >= 5
    assert found["backup"] == ""
    assert [one.verdict for one in report.findings] == [FindingLevel.OK]


def test_a_revoked_token_is_one_clear_state(synapse, fresh_credentials, tmp_path):
    """
    With nothing but a token: the daemon lives on, says what to do, and leaves the server alone; `status` and `check`
    say the same, while it runs and afterwards (M16).
    """
    bot = fresh_credentials("bot")
    given = matrix_settings(synapse, bot.user_id, "", access_token=bot.access_token, device_id=bot.device_id)
    del given["password"]
    settings = {"agents": {"heartbeat": {"enabled": False}}, "channels": {"matrix": given}}
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        MatrixPeer.of(synapse.url, bot).call("POST", "/logout/all", {})

        def state():
            return daemon.asked("/status")[1]["channels"]["matrix"]

        daemon.wait_until(lambda: state()["state"] == LinkState.FAILED.value, within_s=50)
        status = state()
        said = daemon.log()
        shown, checked = squidbot(daemon.home, "status"), squidbot(daemon.home, "check")
    later = squidbot(tmp_path / "home", "check")

    for done in (shown, checked, later):
        told = " ".join((done.stdout + done.stderr).split())
        assert re.search("(no longer|does not) accepts? the (configured )?access.token", told), told
    assert checked.returncode != 0
    assert checked.stdout.count("fail ") == 1, (
        "what is wrong is told of the channel, and not of the daemon again"
    )
    assert later.returncode != 0
    assert "access_token" in status["detail"]
    assert status["retry_at"] is not None
    assert said.count("channel.refused") == 1


class Shifted:
    """A clock that is wrong."""

    def __init__(self, by):
        self._by = by
        self._right = SystemClock()

    def now(self):
        return self._right.now() + self._by

    def monotonic(self):
        return self._right.monotonic()


@pytest.mark.parametrize("days", [-1, 1, 400])
async def test_a_clock_that_is_wrong_loses_and_doubles_nothing(
    make_bot, fresh_credentials, synapse, tmp_path, days
):
    """A day behind, a day ahead, put right in between: every message once, every answer once, all encrypted."""
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    bot = make_bot(allow_from=[nia.user_id])
    right = bot.channel
    bot.channel = lambda: matrix_channel(
        "matrix", bot.config(), state_dir=bot.folder, clock=Shifted(timedelta(days=days))
    )
    async with bot.up() as channel:
        room = nia.create_room(bot.user_id)
        await call(bot_joined, nia.peer, room, bot.user_id)
        nia.send(room, "one", to=bot.user_id)
        [one] = await bot.inbox.until_accepted(1)
        first = bot.message(room, "to one", created_at=one.received_at, context=one.context)
        await channel.deliver(first, uncertain=bot.mark)
    nia.send(room, "two", to=bot.user_id)
    bot.channel = right
    async with bot.up() as channel:
        await bot.inbox.until_accepted(2)
        # The daemon was killed before it noted that this had been sent.
        await channel.deliver(first, uncertain=bot.mark)
        await channel.deliver(bot.message(room, "to two"), uncertain=bot.mark)
        found = nia.read(room)
    nia.close()

    assert bot.inbox.texts == ["one", "two"]
    assert [message.text for message in bot.inbox.offered] == ["one", "two"]
    assert [(wire, content["body"]) for wire, content in found] == [
        ("m.room.encrypted", "to one"),
        ("m.room.encrypted", "to two"),
    ]
