"""
Real daemons on one PostgreSQL, each with an empty home of its own, take over one encrypted Matrix account.

The oracle is the person's client and the homeserver: each question has one answer, which can be read; the account has
the device and the keys that it had, so nobody has anything to verify again.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from devservers import Credentials, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.kill.takeover_daemon import FREEZE, UNFENCED
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]
TEMPORARY = 75
HAND_OVERS = 10


class Harness:
    """A person in an encrypted room with the account, and the machines that may have it."""

    def __init__(
        self, synapse: Synapse, person: Credentials, bot: Credentials, url: str, folder: Path
    ) -> None:
        self.nia = SecretPeer(synapse.url, person, folder / "nia")
        self.bot, self.url, self.folder = bot, url, folder
        self.room = self.nia.create_room(bot.user_id)
        self.said = 0
        self.stack = ExitStack()
        self.daemons: list[Daemon] = []
        self.settings = {
            "gateway": {"store": url, "state_key": "a-state-key-of-the-tests"},
            "owner": {"aliases": [person.user_id]},
            "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}, "default_pool": "main"},
            "agents": {"heartbeat": {"enabled": False}},
            "channels": {
                "matrix": matrix_settings(synapse, bot.user_id, bot.password, person.user_id, batching="each")
            },
        }  # fmt: skip

    def machine(self, **environment: str) -> Daemon:
        """A daemon with an empty home. One whose lease is still another's ends with 75, and is started again."""
        home = self.folder / f"home-{len(self.daemons)}"
        daemon = self.stack.enter_context(Daemon(home, self.settings))
        daemon.module = "tests.kill.takeover_daemon"
        daemon.environment = environment
        self.daemons.append(daemon)
        return self.begun(daemon)

    @staticmethod
    def begun(daemon: Daemon) -> Daemon:
        """With whatever its home has."""
        until = time.monotonic() + 120
        while True:
            process = daemon.start()
            while process.poll() is None and not daemon.asked("/readyz")[1].get("ready"):
                assert time.monotonic() < until, daemon.log()[-3000:]
                time.sleep(0.05)
            if process.poll() is None:
                return daemon
            assert process.returncode == TEMPORARY, daemon.log()[-3000:]
            time.sleep(0.5)

    def joined(self) -> None:
        until = time.monotonic() + 30
        while self.bot.user_id not in self.nia.peer.members(self.room):
            assert time.monotonic() < until
            time.sleep(0.05)

    def asks(self) -> None:
        self.said += 1
        self.nia.new_key(self.room)
        self.nia.send(self.room, f"#{self.said}", to=self.bot.user_id)

    def answers(self, *, within_s: float = 60.0) -> list[str]:
        """All answers, once each question has one; a moment later, when a second one would have come."""
        until = time.monotonic() + within_s
        while len(self.nia.read(self.room)) < self.said and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1.0)
        return [f"{wire} {content['body']}" for wire, content in self.nia.read(self.room)]

    def answered(self) -> None:
        """Each question has one answer, encrypted and readable."""
        found = self.answers()
        wanted = [f"m.room.encrypted echo: #{number + 1}" for number in range(self.said)]
        assert found == wanted, (found, self.daemons[-1].log()[-3000:])

    def device(self) -> dict[str, str]:
        """What the homeserver knows of the account's devices: each one's keys and who has signed it."""
        answer = self.nia._call("POST", "/keys/query", {"device_keys": {self.bot.user_id: []}})
        return {
            "devices": answer["device_keys"][self.bot.user_id],
            "master": answer["master_keys"][self.bot.user_id],
            "signing": answer["self_signing_keys"][self.bot.user_id],
        }

    def keys(self) -> list[tuple]:
        """What the database has of the account's keys."""
        with psycopg.connect(self.url) as db:
            query = (
                "SELECT kind, key, md5(content), xmin::text FROM squidbot.all_account_row ORDER BY kind, key"
            )
            return db.execute(query).fetchall()

    def generation(self) -> int:
        """How often the account's keys were changed, as the database says."""
        with psycopg.connect(self.url) as db:
            [[number]] = db.execute("SELECT sum(generation) FROM squidbot.all_account_file").fetchall()
        return int(number)

    def close(self) -> None:
        self.stack.close()
        self.nia.close()


@contextmanager
def house_on(synapse, fresh_credentials, postgres: PostgresServer, folder: Path) -> Iterator[Harness]:
    url = postgres.with_tables()
    house = Harness(synapse, fresh_credentials("nia"), fresh_credentials("bot"), url, folder)
    try:
        yield house
    finally:
        house.close()


def test_ten_machines_have_the_account_one_after_the_other(
    synapse: Synapse, fresh_credentials, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Some are killed in the middle of an answer, some stopped; what is asked meanwhile is answered by the next."""
    with house_on(synapse, fresh_credentials, postgres, tmp_path) as house:
        daemon = house.machine()
        house.joined()
        house.asks()
        house.answered()
        device = house.device()
        assert len(device["devices"]) == 1
        for number in range(HAND_OVERS):
            house.asks()
            if number % 3 == 0:
                time.sleep(0.1 * number)
                daemon.kill()
            else:
                daemon.terminate()
                assert daemon.ended() == 0, daemon.log()[-3000:]
            house.asks()
            daemon = house.machine()
            house.asks()
            house.answered()
            assert house.device() == device
        logs = "".join(one.log() for one in house.daemons)
        assert logs.count("matrix.logged_in") == 1
        assert logs.count("matrix.identity_published") == 1
        assert "matrix.device_abandoned" not in logs
        assert daemon.work("outbox", "unknown", "dead") == 0
        assert not (daemon.home / "state" / "matrix" / "session.json").exists()
        print(f"{HAND_OVERS} hand-overs, {house.said} questions")


def test_an_old_home_comes_back_after_its_account_was_elsewhere(
    synapse: Synapse, fresh_credentials, postgres: PostgresServer, tmp_path: Path
) -> None:
    """
    Its files are those of then: login, keys, what it has seen of the database. It goes on with what the database has, and
    no key goes back; then the other home is the old one.
    """
    with house_on(synapse, fresh_credentials, postgres, tmp_path) as house:
        old = house.machine()
        house.joined()
        house.asks()
        house.answered()
        device, generations = house.device(), [house.generation()]
        old.kill()
        of_then = shutil.copytree(old.home / "state", tmp_path / "of-then")
        new = house.machine()
        for _ in range(3):
            house.asks()
            house.answered()
        for before, after in ((new, old), (old, new)):
            generations.append(house.generation())
            before.terminate()
            assert before.ended() == 0, before.log()[-3000:]
            shutil.rmtree(old.home / "state")
            shutil.copytree(of_then, old.home / "state")
            house.asks()
            house.begun(after)
            house.asks()
            house.answered()
            assert house.device() == device
        generations.append(house.generation())
        assert generations == sorted(set(generations)), generations
        logs = "".join(one.log() for one in house.daemons)
        assert logs.count("matrix.logged_in") == 1
        assert "matrix.device_abandoned" not in logs
        assert new.work("outbox", "unknown", "dead") == 0


@pytest.mark.parametrize("fenced", [True, False])
def test_a_machine_that_was_frozen_in_the_middle_of_a_send_writes_no_key(
    synapse: Synapse, fresh_credentials, postgres: PostgresServer, tmp_path: Path, *, fenced: bool
) -> None:
    """It stood still while it gave a room key away, another took over; the control writes what it had in hand."""
    trigger = tmp_path / "freeze"
    more = {FREEZE: str(trigger), **({} if fenced else {UNFENCED: "1"})}
    with house_on(synapse, fresh_credentials, postgres, tmp_path) as house:
        old = house.machine(**more)
        house.joined()
        trigger.touch()
        house.asks()
        assert old.process is not None
        until = time.monotonic() + 60
        while trigger.exists():
            assert time.monotonic() < until, old.log()[-3000:]
            time.sleep(0.05)
        new = house.machine()
        house.answered()
        before, device = house.keys(), house.device()
        os.kill(old.process.pid, signal.SIGCONT)
        said = trigger.with_suffix(".said")
        while not said.exists():
            assert time.monotonic() < until + 120, old.log()[-3000:]
            time.sleep(0.05)
        if fenced:
            assert said.read_text().startswith("refused"), said.read_text()
            assert house.keys() == before
            assert old.ended() == TEMPORARY, old.log()[-3000:]
            house.asks()
            house.answered()
            assert house.device() == device
            assert new.work("outbox", "unknown", "dead") == 0
        else:
            assert said.read_text() == "written"
            assert house.keys() != before  # the rows of the living one were overwritten behind its back
