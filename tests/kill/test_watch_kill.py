"""A watch of a real daemon on a real homeserver: each new entry of a feed is said once, whatever is killed."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from devservers import MatrixPeer
from tests.command_line import free_port
from tests.daemon import Daemon, matrix_settings
from tests.integration.init_world import squidbot
from tests.kill.tally import SEED, TALLY, THOROUGH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900, func_only=True)]
KILLS = 60 if THOROUGH else 15


@pytest.fixture
def site():
    """A feed; ``entries`` are the numbers that stand there, ``looks`` counts the requests."""

    class Feed(BaseHTTPRequestHandler):
        def do_GET(self):
            server.looks += 1
            item = "<item><guid>{0}</guid><title>entry #{0}#</title></item>"
            body = f"<rss><channel>{''.join(map(item.format, server.entries))}</channel></rss>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/rss+xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", free_port()), Feed) as server:
        server.entries, server.looks = [0], 0
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_entries_over_kills(synapse, fresh_credentials, tmp_path, site):
    """
    Each entry after the base line is said once, and nothing else. Every second life goes on until all is said:
    at the third death in a row squidbot stops trying what it was alone with, which is not asked here.
    """
    chance = random.Random(SEED)
    owner, bot = MatrixPeer.of(synapse.url, fresh_credentials("owner")), fresh_credentials("bot")
    with Daemon(
        tmp_path / "home",
        {
            "owner": {"aliases": [owner.user_id]},
            "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password)},
            "agents": {"schedule": {"min_interval_minutes": 0.01}},
            "tools": {"web": {"allow_private": ["127.0.0.1"]}},
        },
    ) as daemon:
        daemon.up()
        room = owner.create_room(invite=[bot.user_id], is_direct=True)
        owner.send(room, "hello")
        owner.wait_for_message(lambda event: event.sender == bot.user_id)
        address = f"http://127.0.0.1:{site.server_port}/feed"
        done = squidbot("watch", "add", address, "--every", "1s", "--home", str(daemon.home))
        assert done.returncode == 0, done.stderr
        daemon.wait_until(lambda: site.looks > 1)

        def count_said() -> Counter[str]:
            texts = [one.body for one in owner.history(room, limit=1000) if one.sender == bot.user_id]
            found = Counter[str]()
            for text in texts:
                found.update(re.findall(r"entry #\d+#", text) or ["apology"] * ("could not be done" in text))
            return found

        for number in range(1, KILLS + 1):
            site.entries.append(number)
            seen = site.looks
            daemon.wait_until(lambda seen=seen: site.looks > seen)
            time.sleep(chance.random() * 0.05)
            daemon.kill()
            TALLY["SIGKILL around a watch"] += 1
            daemon.up()
            if number % 2 == 0:
                daemon.wait_until(lambda number=number: len(count_said()) >= number, within_s=120)
        time.sleep(2)
        assert count_said() == {f"entry #{number}#": 1 for number in range(1, KILLS + 1)}
