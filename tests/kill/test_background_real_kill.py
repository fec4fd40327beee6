"""
Background jobs of the real daemon between a real Synapse and a real mail server, killed while they run.

What a job has found out comes once, and where it was asked for: an encrypted room, a thread of a plain one, a mail
thread. What it has done by a tool is done once.
"""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal

from devservers import Credentials, MailPeer, MailServer, Synapse, text_of
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.daemon import Daemon, email_settings, matrix_settings, one_model
from tests.doubles.openai_server import Call, FakeOpenAI, Say
from tests.integration.secret_peer import SecretPeer
from tests.kill.conftest import random_kills
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

_, KILLS = random_kills()
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 40 * KILLS, func_only=True)]
NUMBER = re.compile(r"task (\d+)\b")
RESULT = re.compile(r"found out (\d+)\b")
WITHIN_S = 120.0


class Foreman(FakeOpenAI):
    """A model that has each ``task N`` done in the background, where it writes a file and says what it found."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        messages = body["messages"]
        wish = next(str(each["content"]) for each in reversed(messages) if each["role"] == "user")
        told = str(messages[-1]["content"]) if messages[-1]["role"] == "tool" else ""
        number = (NUMBER.findall(wish) or ["0"])[-1]
        if "[This is the background job" in wish:
            write = Call("write_file", f'{{"path": "task-{number}.txt", "content": "{number}"}}')
            said = Say(f"found out {number}", pause_s=0.2) if told else Say(calls=[write], pause_s=0.2)
        elif "Started as" in told:
            said = Say("I have begun")
        else:
            said = Say(calls=[Call("start_job", f'{{"goal": "task {number}", "name": "a task"}}')])
        return await self._give(said, request, body)


@pytest.fixture(scope="module")
def model() -> Iterator[Foreman]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Foreman()) as server:
        yield server


class Owner:
    """The owner, who asks in three places, and what was said there."""

    def __init__(self, bot: Credentials, bot_mail: MailPeer, nia: SecretPeer, mail: MailPeer) -> None:
        self.bot, self.bot_mail, self.nia, self.mail = bot, bot_mail, nia, mail
        self.secret = nia.create_room(bot.user_id)
        self.plain = nia.peer.create_room(invite=[bot.user_id], is_direct=True)
        self.root = ""
        self.letters: dict[str, str] = {}
        self.asked: dict[str, str] = {}

    def ask(self, number: int) -> None:
        place, text = ("secret", "thread", "mail")[number % 3], f"task {number}"
        self.asked[str(number)] = place
        if place == "secret":
            self.nia.send(self.secret, text, to=self.bot.user_id)
        elif place == "thread":
            self.root = self.root or self.nia.peer.send(self.plain, "task 999")
            self.nia.peer.send(self.plain, text, **self._in_thread())
        else:
            self.letters[self.mail.send(self.bot_mail.address, f"a letter {number}", text)] = str(number)

    def _in_thread(self) -> dict[str, object]:
        return {"m.relates_to": {"rel_type": "m.thread", "event_id": self.root}}

    def results(self) -> Counter[tuple[str, str]]:
        """What was found out, with the place where that was said."""
        found: Counter[tuple[str, str]] = Counter()
        for _, content in self.nia.read(self.secret):
            found.update((number, "secret") for number in RESULT.findall(content["body"]))
        for event in self.nia.peer.history(self.plain, limit=500):
            if event.sender == self.bot.user_id:
                about = event.content.get("m.relates_to", {})
                threaded = (about.get("rel_type"), about.get("event_id")) == ("m.thread", self.root)
                found.update((each, "thread" if threaded else "room") for each in RESULT.findall(event.body))
        for letter in self.mail.list():
            above = f"{letter['In-Reply-To']} {letter['References']}".split()
            theirs = {self.letters[each] for each in above if each in self.letters}
            for number in RESULT.findall(text_of(letter)):
                found[(number, "mail" if theirs == {number} else "another letter")] += 1
        return found


async def _written(home: Path) -> Counter[str]:
    """Which files the receipts say were written, and what came of it."""
    async with await SqliteQueue.open(open_home(home).database, clock=SystemClock()) as store:
        rows = await store.receipts.newest(limit=1000)
    return Counter(f"{row.arguments['path']} {row.outcome.value}" for row in rows if row.tool == "write_file")


@pytest.fixture
def world(
    synapse: Synapse,
    mail_server: MailServer,
    model: Foreman,
    fresh_credentials: Callable[[str], Credentials],
    fresh_mailbox: Callable[[str], MailPeer],
    tmp_path: Path,
) -> Iterator[tuple[Daemon, Callable[[], Owner]]]:
    """A daemon that does not run yet, and the owner, who can ask as soon as it is up."""
    bot, bot_mail, mail = fresh_credentials("bot"), fresh_mailbox("bot"), fresh_mailbox("nia")
    nia = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    settings = {
        "owner": {"aliases": [nia.user_id, mail.address]},
        "llm": one_model("one", model.api_base),
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, batching="each"),
            "email": email_settings(
                mail_server, bot_mail.address, bot_mail.password, batching="each", probe_grace_s=3
            ),
        },
    }
    with Daemon(tmp_path / "home", settings) as daemon:

        def settled() -> Owner:
            owner = Owner(bot, bot_mail, nia, mail)
            rooms = (owner.secret, owner.plain)
            daemon.wait_until(lambda: all(bot.user_id in nia.peer.members(room) for room in rooms))
            return owner

        yield daemon, settled
    nia.close()


def test_jobs_of_three_places_over_kills(world: tuple[Daemon, Callable[[], Owner]]) -> None:
    """Each job is begun, dies with the daemon at some moment, and ends once, in its place."""
    chance = chance_of("background jobs on real servers")
    daemon, settled = world
    daemon.up()
    owner, number = settled(), 0
    for _ in range(KILLS):
        for _ in range(3):
            number += 1
            owner.ask(number)
        time.sleep(chance.uniform(0.3, 2.5))
        daemon.kill()
        assert daemon.ended() == -signal.SIGKILL
        TALLY["of background jobs on real Matrix and mail"] += 1
        daemon.start()
        daemon.wait_until(daemon.is_ready, within_s=WITHIN_S)
    expected = Counter(owner.asked.items()) + Counter({("999", "room"): 1})
    daemon.wait_until(lambda: len(owner.results()) >= len(expected), within_s=WITHIN_S)
    daemon.wait_until(lambda: daemon.work("outbox", "pending", "sending") == 0, within_s=WITHIN_S)
    time.sleep(2)  # a second answer would come now
    assert owner.results() == expected, daemon.log()[-6000:]
    assert daemon.work("outbox", "unknown", "dead") == 0
    daemon.terminate()
    assert daemon.ended() == 0
    written = anyio.run(_written, daemon.home)
    assert written == {f"task-{each}.txt done": 1 for each, _ in expected}


def test_the_oracle_sees_a_result_in_two_commits(world: tuple[Daemon, Callable[[], Owner]]) -> None:
    """The control: where a kill comes between the two, the same result is told twice in each place."""
    daemon, settled = world
    daemon.module = "tests.kill.reporting_twice_daemon"
    daemon.up()
    owner = settled()
    owner.ask(3)
    owner.ask(5)
    expected = Counter(owner.asked.items())
    daemon.wait_until(lambda: owner.results() == expected, within_s=WITHIN_S)
    daemon.kill()
    daemon.start()
    daemon.wait_until(lambda: owner.results() == expected + expected, within_s=WITHIN_S)
