"""
Webhooks of a real daemon on a real homeserver: what was answered with 202 arrives once, whatever is killed.

The sender behaves as such programs do: it sends a delivery again, with the same id, until it is accepted.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest
import yaml

from devservers import MatrixPeer
from tests.daemon import Daemon, matrix_settings
from tests.integration.init_world import squidbot
from tests.kill.tally import SEED, TALLY, THOROUGH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900, func_only=True)]
SECRET = "0123456789abcdef-secret"
KILLS = 60 if THOROUGH else 15


def post(daemon, body, *, name="grafana", delivery="", secret=SECRET, **headers):
    """Status and answer; status 0 if there was none."""
    given = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json", **headers}
    given |= {"Idempotency-Key": delivery} if delivery else {}
    request = urllib.request.Request(f"{daemon.url}/hooks/{name}", json.dumps(body).encode(), given)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
    except OSError:
        return 0, {}


@pytest.fixture
def owner(synapse, fresh_credentials):
    return MatrixPeer.of(synapse.url, fresh_credentials("owner"))


@pytest.fixture
def daemon(synapse, fresh_credentials, owner, tmp_path):
    bot = fresh_credentials("bot")
    hooks = {
        "grafana": {"secret": SECRET, "text": "{title}, {alerts.0.labels.name}.", "per_minute": 10_000},
        "quiet": {"secret": SECRET, "per_minute": 2},
    }
    with Daemon(
        tmp_path / "home",
        {
            "owner": {"aliases": [owner.user_id]},
            "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password)},
        },
    ) as made:
        config = made.home / "squidbot.yaml"
        listen = made.url.removeprefix("http://")
        settings = yaml.safe_load(config.read_text())
        settings["gateway"] = {"http": {"listen": listen, "hooks": hooks}}
        config.write_text(json.dumps(settings))
        made.bot = bot
        yield made


def begin(daemon, owner):
    """Let the owner's conversation be known, and a job wait in it."""
    daemon.up()
    room = owner.create_room(invite=[daemon.bot.user_id], is_direct=True)
    owner.send(room, "hello")
    owner.wait_for_message(lambda event: event.sender == daemon.bot.user_id)
    done = squidbot("cron", "add", "--hook", "grafana", "An alert:", "--home", str(daemon.home))
    assert done.returncode == 0, done.stderr
    assert "when the webhook grafana is called" in done.stdout
    return room


def said(daemon, owner, room):
    return [one.body for one in owner.history(room, limit=500) if one.sender == daemon.bot.user_id]


def test_a_hook_from_the_request_to_the_room(daemon, owner):
    """One message with the fields of the template; wrong secrets, names and floods are refused with a reason."""
    room = begin(daemon, owner)
    body = {"title": "Disk full", "alerts": [{"labels": {"name": "db1"}}]}
    assert post(daemon, body, delivery="one") == (202, {"accepted": True, "jobs": 1})
    assert post(daemon, body, delivery="one")[0] == 202
    daemon.wait_until(lambda: any("Disk full, db1." in text for text in said(daemon, owner, room)))
    tried = squidbot("hooks", "test", "grafana", "--home", str(daemon.home))
    assert (tried.returncode, tried.stdout[:4]) == (0, "202 "), tried.stderr
    assert post(daemon, body, secret="wrong")[0] == 401
    assert post(daemon, body, name="nobody")[0] == 404
    assert post(daemon, body, Host="evil.example")[0] == 202  # the secret decides, not the name
    status, answer = post(daemon, body, name="quiet")
    assert (status, "cron add --hook quiet" in answer["error"]) == (503, True)
    assert [post(daemon, body, name="quiet")[0] for _ in range(2)] == [503, 429]
    assert post(daemon, {"x": "y" * 2_000_000})[0] == 413
    time.sleep(1)
    assert sum("Disk full, db1." in text for text in said(daemon, owner, room)) == 2
    assert SECRET not in daemon.log()


def test_deliveries_over_kills(daemon, owner):
    """
    Each that was accepted is said once, and nothing else. Every second life goes on until all is said: at the
    third death in a row squidbot stops trying what it was alone with, which is not asked here.
    """
    chance = random.Random(SEED)
    room = begin(daemon, owner)

    def count_said():
        """How often each alert was said, and every other message that tells of one."""
        found = Counter()
        for text in said(daemon, owner, room):
            found.update(re.findall(r"alert #\d+#", text) or ["apology"] * ("could not be done" in text))
        return found

    for number in range(KILLS):
        body, delivery = {"title": f"alert #{number}#"}, f"delivery {number}"
        first = threading.Thread(target=post, args=(daemon, body), kwargs={"delivery": delivery})
        first.start()
        time.sleep(chance.random() * 0.03)
        daemon.kill()
        TALLY["SIGKILL around a webhook"] += 1
        first.join()
        daemon.up()
        while post(daemon, body, delivery=delivery)[0] != 202:
            time.sleep(0.1)
        if number % 2:
            daemon.wait_until(lambda number=number: len(count_said()) > number, within_s=120)
    time.sleep(2)
    assert count_said() == {f"alert #{number}#": 1 for number in range(KILLS)}
