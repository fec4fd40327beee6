"""
The owner's shared conversation and deaths: each question has one answer in its own place, all stand in one history in
the order in which they came, and a change of the setting in between loses nothing.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import anyio
import pytest

from agent_core.messages import SessionKey
from channels.base import ChannelUnavailable
from channels.terminal import Answer
from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, text_of
from gateway.operations.control.control_client import DaemonGone
from gateway.operations.control.terminal_routes import RemoteTerminal
from gateway.store.shared import SHARED
from gateway.system.home import Home
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.kill.conftest import random_kills
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

ANN = "@ann:hs.test"
PLACES = (f"dm-{ANN}", "second", "third")
MOMENTS = [
    "accepted",
    "inbox.accept.before",
    "inbox.accept.after",
    "turns.claim.after",
    "model.answered",
    "turns.complete.before",
    "turns.complete.after",
    "uncertain",
    "taken",
    "outbox.record_send.after",
    "memory.append_message.before",
    "memory.append_message.after",
]
KILLS = random_kills()[1]
NUMBER = re.compile(r"#(\d+)")


def numbers(home: Path, session: SessionKey) -> list[str]:
    """Who said which number in a history, in its order: ``u1 a1``."""
    path = home / "sessions" / f"{session.file_name}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [
        f"{line['role'][0]}{found[1]}"
        for line in lines
        if line["role"] in ("user", "assistant") and (found := NUMBER.search(line["content"]))
    ]


def answers(world: Scenario) -> dict[str, list[str]]:
    """The numbers that were answered, by place."""
    world.server.refresh()
    return {place: [NUMBER.findall(each.text)[0] for each in world.server.seen(place)] for place in PLACES}


def talk(world: Scenario, chance: Any, count: int) -> dict[str, list[str]]:
    """The owner says some things in some places; which, by place."""
    said: dict[str, list[str]] = {place: [] for place in PLACES}
    for _ in range(count):
        place = chance.choice(PLACES)
        said[place].append(str(world.say(ANN, chance.choice(["", "effect", "slow"]), conversation=place)))
    return said


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_each_is_answered_once_in_its_place(
    moment: str, number: int, nursery: Nursery, tmp_path: Path
) -> None:
    """Killed at a moment; the one history has all of it, in order."""
    world = Scenario(tmp_path, nursery, approval="strangers", shared=True)
    chance = chance_of(f"shared {moment} {number}")
    said = talk(world, chance, 6)
    world.live(die=f"{moment}#{number}")
    for place, more in talk(world, chance, 3).items():
        said[place] += more
    world.live_until_quiet()

    assert world.deaths == 1
    assert answers(world) == said
    everything = [f"{who}{each}" for each in range(1, 10) for who in "ua"]
    assert numbers(tmp_path / "home", SHARED) == everything
    effects = (tmp_path / "effects").read_text().split() if (tmp_path / "effects").exists() else []
    assert len(effects) == len(set(effects))


@pytest.mark.parametrize("moment", ["accepted", "model.answered", "turns.complete.after"])
def test_the_setting_changes_with_the_death(moment: str, nursery: Nursery, tmp_path: Path) -> None:
    """What was accepted under one setting is answered under the other, once, and stands in one history."""
    world = Scenario(tmp_path, nursery, approval="strangers")
    chance = chance_of(f"switched {moment}")
    said: dict[str, list[str]] = {place: [] for place in PLACES}
    for shared in (True, False, True):
        for place, more in talk(world, chance, 4).items():
            said[place] += more
        world.live(die=f"{moment}#2", shared=shared)
    world.live_until_quiet()

    assert world.deaths == 3
    assert answers(world) == said
    places = [SHARED, *(SessionKey("matrix", place) for place in PLACES)]
    found = [each for session in places for each in numbers(tmp_path / "home", session)]
    assert sorted(found) == sorted(f"{who}{each}" for each in range(1, 13) for who in "ua")


def test_without_the_setting_there_is_no_such_history(nursery: Nursery, tmp_path: Path) -> None:
    """Negative control: the same oracle on separate conversations."""
    world = Scenario(tmp_path, nursery, approval="strangers")
    said = talk(world, chance_of("separate"), 6)
    world.live(die="accepted")
    world.live_until_quiet()
    assert answers(world) == said
    assert numbers(tmp_path / "home", SHARED) == []


def test_an_answer_that_is_sent_twice_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """Negative control: a design that sends before it notes."""
    world = Scenario(tmp_path, nursery, approval="strangers", shared=True, control="sends_first")
    said = talk(world, chance_of("twice"), 2)
    assert world.live(die="control.sent") == -signal.SIGKILL
    world.live_until_quiet()
    assert answers(world) != said


class Typist:
    """The owner at `squidbot chat`, who comes back after each death, and says again what was not taken."""

    def __init__(self, home: Path) -> None:
        self._home = Home(home)
        self._lines: list[str] = []
        self._taken = 0
        self._shown: dict[str, str] = {}
        self._over = False
        self._thread = threading.Thread(target=lambda: anyio.run(self._sit), daemon=True)

    def type(self, text: str) -> None:
        """One line more."""
        self._lines.append(text)

    def answers(self) -> list[str]:
        """What has come, in order; what came twice has one id."""
        return list(self._shown.values())

    async def _sit(self) -> None:
        while not self._over:
            try:
                async with RemoteTerminal(self._home) as terminal, anyio.create_task_group() as tasks:
                    tasks.start_soon(self._talk, terminal, tasks.cancel_scope)
                    async for event in terminal:
                        if isinstance(event, Answer):
                            self._shown.setdefault(event.id, event.text)
                    tasks.cancel_scope.cancel()
            except* (DaemonGone, ChannelUnavailable, ConnectionError):
                pass
            await anyio.sleep(0.2)

    async def _talk(self, terminal: RemoteTerminal, scope: anyio.CancelScope) -> None:
        while not self._over:
            if self._taken < len(self._lines) and len(self._shown) >= self._taken:  # one at a time
                with suppress(ChannelUnavailable):
                    await terminal.say(self._lines[self._taken], native_id=f"typed-{self._taken}")
                    self._taken += 1
            await anyio.sleep(0.05)
        scope.cancel()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join(10)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300 + 45 * KILLS, func_only=True)
def test_between_real_matrix_mail_and_terminal(
    synapse: Synapse,
    mail_server: MailServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    fresh_mailbox: Callable[[str], MailPeer],
    tmp_path: Path,
) -> None:
    """
    SIGKILLs at random moments while the owner writes in a plain and an encrypted room, by mail in two threads, and at
    the terminal.
    """
    chance = chance_of("shared, real")
    bot, bot_mail = fresh_credentials("bot"), fresh_mailbox("bot")
    owner, owner_mail = fresh_user("owner"), fresh_mailbox("owner")
    secret = SecretPeer(synapse.url, fresh_credentials("nia"), tmp_path / "nia")
    settings = {
        "owner": {
            "aliases": [owner.user_id, owner_mail.address, secret.user_id],
            "conversation": "shared",
        },
        "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, batching="each"),
            "email": email_settings(
                mail_server, bot_mail.address, bot_mail.password, batching="each", probe_grace_s=2
            ),
        },
    }  # fmt: skip
    said: dict[str, list[str]] = {"room": [], "secret": [], "mail": [], "terminal": []}
    mails: dict[str, str] = {}
    last: dict[str, str] = {}
    with Daemon(tmp_path / "home", settings) as daemon, Typist(daemon.home) as typist:
        daemon.up()
        room = owner.create_room(invite=[bot.user_id], is_direct=True)
        hidden = secret.create_room(bot.user_id)
        daemon.wait_until(lambda: bot.user_id in owner.members(room))
        daemon.wait_until(lambda: bot.user_id in secret.peer.members(hidden))

        def say() -> None:
            number = str(sum(map(len, said.values())) + 1)
            place = chance.choice(list(said))
            said[place].append(number)
            if place == "room":
                owner.send(room, f"#{number}")
            elif place == "secret":
                secret.send(hidden, f"#{number}", to=bot.user_id)
            elif place == "terminal":
                typist.type(f"#{number}")
            else:
                topic = chance.choice(["herons", "storks"])
                before = last.get(topic)
                more = {"in_reply_to": before, "references": before} if before else {}
                last[topic] = owner_mail.send(bot_mail.address, topic, f"#{number}", **more)
                mails[last[topic]] = number

        def answered() -> dict[str, list[str]]:
            seen = [event.body for event in owner.history(room, limit=500) if event.sender == bot.user_id]
            told = [(wire, str(content.get("body"))) for wire, content in secret.read(hidden)]
            assert {wire for wire, _ in told} <= {"m.room.encrypted"}
            return {
                "room": [NUMBER.findall(body)[0] for body in seen],
                "secret": [NUMBER.findall(body)[0] for _, body in told],
                "terminal": [NUMBER.findall(body)[0] for body in typist.answers()],
                "mail": sorted((mails[str(mail["In-Reply-To"])] for mail in owner_mail.list()), key=int),
            }

        for _ in range(KILLS):
            for _ in range(chance.randint(1, 3)):
                say()
            time.sleep(chance.choice([chance.uniform(0, 0.5), chance.uniform(0.5, 2.5)]))
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
            TALLY["of the daemon with a shared conversation"] += 1
            say()
            daemon.start()
        daemon.wait_until(lambda: answered() == said, within_s=90)
        daemon.wait_until(lambda: bool(daemon.asked("/readyz")[1].get("ready")))
        time.sleep(2)  # a second answer would come now
        assert answered() == said
        for mail in owner_mail.list():
            assert f"#{mails[str(mail['In-Reply-To'])]}" in text_of(mail)
        assert daemon.work("outbox", "unknown", "dead") == 0
        daemon.terminate()
        assert daemon.ended() == 0
    secret.close()
    found = numbers(daemon.home, SHARED)
    count = sum(map(len, said.values()))
    assert sorted(found) == sorted(f"{who}{each}" for each in range(1, count + 1) for who in "ua")
    assert all(found[at][1:] == found[at + 1][1:] for at in range(0, len(found), 2))
