"""Two real daemons and one mail account: whoever has it is killed or frozen, and the other one goes on with it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from devservers import MailPeer, MailServer
from gateway.store.postgres.postgres_queue import migrate
from tests.daemon import Daemon
from tests.kill.takeover_daemon import LEASE
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of
from tests.kill.test_mail_kill import People, settings
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.kill, pytest.mark.timeout(1200, func_only=True)]
TEMPORARY = 75
TIMES = 5


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    url = postgres.url(postgres.new_database())
    migrate(url)
    return url


@pytest.fixture
def daemons(
    mail_server: MailServer, fresh_mailbox: Callable[[str], MailPeer], url: str, tmp_path: Path
) -> Iterator[tuple[list[Daemon], People]]:
    bot, alice, bob = fresh_mailbox("bot"), fresh_mailbox("alice"), fresh_mailbox("bob")
    shared = {
        **settings(mail_server, bot, [alice, bob], reply_approval="strangers"),
        "gateway": {"store": url, "state_key": "a-state-key-of-the-tests"},
        "attachments": {"store": str(tmp_path / "files")},
    }
    (tmp_path / "files" / "attachments").mkdir(parents=True)
    with ExitStack() as stack:
        both = [stack.enter_context(Daemon(tmp_path / name, shared)) for name in ("one", "two")]
        for daemon in both:
            daemon.module = "tests.kill.takeover_daemon"
            daemon.up()
        yield both, People(bot, alice, bob)


def owner(url: str, daemons: list[Daemon]) -> Daemon | None:
    """Which of them has the account."""
    query = "SELECT holder FROM squidbot.all_leases WHERE name = 'daemon'"
    with psycopg.connect(url) as db:
        [holder] = db.execute(query).fetchone() or [None]
    pids = {str(daemon.process.pid): daemon for daemon in daemons if daemon.process is not None}
    return pids.get(holder.split("/")[1]) if holder else None


def test_whoever_has_the_mailbox_is_killed_or_frozen(daemons: tuple[list[Daemon], People], url: str) -> None:
    """Every mail one answer, every file as it was, every draft as it was decided, one copy of each."""
    both, people = daemons
    chance = chance_of("cluster mail")
    for number in range(TIMES):
        for _ in range(2):
            people.say(chance)
        people.decide()
        until = time.monotonic() + 60
        while (victim := owner(url, both)) is None or victim.process.poll() is not None:  # type: ignore[union-attr]
            assert time.monotonic() < until, both[0].log()[-3000:]
            time.sleep(0.1)
        assert victim.process is not None
        time.sleep(chance.uniform(0, 2.5))
        if number == TIMES - 2:
            victim.process.send_signal(signal.SIGSTOP)
            people.say(chance)
            time.sleep(LEASE.ttl_s * 1.5)
            victim.process.send_signal(signal.SIGCONT)
            assert victim.ended() == TEMPORARY
        else:
            victim.kill()
            TALLY["of one of two daemons with a mailbox"] += 1
            time.sleep(LEASE.ttl_s)  # in the same home it would go on at once
        victim.start()
    assert people.problems_in_the_end() == [], both[0].log()[-4000:] + both[1].log()[-4000:]
    for daemon in both:
        daemon.wait_until(lambda: daemon.asked("/readyz")[1].get("ready"))  # noqa: B023 - used at once
        daemon.terminate()
        assert daemon.ended() == 0
