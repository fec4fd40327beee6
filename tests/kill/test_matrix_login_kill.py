"""
A login by a browser over SIGKILLs: of the command that makes it, and of daemons that renew it all the time.

Refresh tokens work once, so a token that is lost, or used a second time after its answer was, is the end of
the login; the provider then has none left for the device.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import time

import pytest

from devservers import Credentials, MatrixPeer
from tests.daemon import Daemon, matrix_settings
from tests.integration.init_world import Person
from tests.kill.tally import SEED, TALLY, THOROUGH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900, func_only=True)]
KILLS = 30 if THOROUGH else 8


@pytest.fixture
def provider(authorization_server):
    return authorization_server


@pytest.fixture
def delegating(delegating_synapse):
    return delegating_synapse


@pytest.fixture
def bot(delegated_bot):
    return delegated_bot


def home_of(tmp_path, server, localpart, *allow):
    user_id = f"@{localpart}:{server.server_name}"
    matrix = matrix_settings(server, user_id, None, *allow, login="browser")
    return Daemon(tmp_path / "home", {"channels": {"matrix": matrix}})


def stored(daemon):
    path = daemon.home / "state" / "matrix" / "oauth.json"
    return json.loads(path.read_text()) if path.exists() else None


def log_in(daemon, provider, localpart):
    person = Person("matrix", "login", "--home", str(daemon.home))
    person.sees(r"enter (\w+) ")
    provider.approve(re.search(r"enter (\w+) ", person.seen)[1], localpart)
    person.sees("can be used now")
    assert person.ends() == 0


def test_a_daemon_that_renews_its_login(delegating, provider, bot, tmp_path):
    """Whenever it dies, the next one goes on with the same login and device, and answers."""
    chance = random.Random(SEED)
    access, device = provider.register(f"{bot}-owner")
    owner = MatrixPeer.of(
        delegating.url, Credentials(f"@{bot}-owner:{delegating.server_name}", access, device, "")
    )
    with home_of(tmp_path, delegating, bot, owner.user_id) as daemon:
        provider.lifetime_s = 2
        log_in(daemon, provider, bot)
        first = stored(daemon)["device_id"]
        for _ in range(KILLS):
            before = provider.renewals
            daemon.start()
            daemon.wait_until(lambda before=before: provider.renewals > before)
            time.sleep(chance.random() * chance.choice([0.01, 1.5]))
            daemon.kill()
            TALLY["SIGKILL around a renewed login"] += 1
        assert provider.renewals >= KILLS
        assert first in provider.logins(bot)
        provider.lifetime_s = 300  # on a slow machine one of two seconds is over before it is used
        daemon.up()
        room = owner.create_room(invite=[f"@{bot}:{delegating.server_name}"], is_direct=True)
        owner.send(room, "ping")
        owner.wait_for_message(lambda event: event.sender.startswith(f"@{bot}:"))
        kept = stored(daemon)
        assert kept["device_id"] == first
        assert not {kept["access"], kept["refresh"]} & set(re.findall(r"[\w-]{20,}", daemon.log()))


def test_the_command_that_logs_in(delegating, provider, bot, tmp_path):
    """Killed at any moment it leaves a whole login or none; the last one is used by the daemon that waits for it."""
    chance = random.Random(SEED + 1)
    with home_of(tmp_path, delegating, bot) as daemon:
        for _ in range(KILLS):
            person = Person("matrix", "login", "--home", str(daemon.home))
            person.sees(r"enter (\w+) ")
            provider.approve(re.search(r"enter (\w+) ", person.seen)[1], bot)
            time.sleep(chance.choice([0.0, 1.0, 1.0]) + chance.random() * 0.3)
            subprocess.run(["kill", "-9", str(person.pid)], check=False)
            person.ends()
            TALLY["SIGKILL in a login by browser"] += 1
            tokens = stored(daemon)
            assert tokens is None or tokens["device_id"] in provider.logins(bot)
        (daemon.home / "state" / "matrix" / "oauth.json").unlink(missing_ok=True)
        daemon.start()
        daemon.wait_until(lambda: "squidbot matrix login" in daemon.log())
        log_in(daemon, provider, bot)
        daemon.wait_until(daemon.is_ready)


def test_a_token_that_is_used_before_it_is_stored_is_seen(delegating, provider, bot, tmp_path):
    """The control: what has been tried above ends the login of such a daemon."""
    with home_of(tmp_path, delegating, bot) as daemon:
        provider.lifetime_s = 2
        log_in(daemon, provider, bot)
        device = stored(daemon)["device_id"]
        daemon.module = "tests.kill.unsaved_login_daemon"
        for _ in range(2):
            daemon.start()
            daemon.wait_until(lambda: daemon.is_ready() or device not in provider.logins(bot))
            daemon.kill()
        assert device not in provider.logins(bot)
