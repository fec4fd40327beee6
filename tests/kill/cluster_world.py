"""
Three machines with real daemons on one PostgreSQL; two encrypted Matrix accounts and a mailbox; people who talk to them.

The oracle is what people have on their side: `Cluster.problems`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from devservers import Credentials, MailPeer, MailServer, Synapse, text_of
from gateway.store.postgres.postgres_queue import migrate
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.secret_peer import SecretPeer
from tests.kill.database_link import DatabaseLink
from tests.kill.oracle import Evidence, Saying, problems
from tests.kill.scripted import numbers_in
from tests.kill.tally import TALLY
from tests.postgres_server import PASSWORD, ROLE, PostgresServer

ACCOUNTS = ("matrix", "club", "email")
MACHINES = range(3)
TEMPORARY = 75
_NO_BRAKE = dict.fromkeys(("answers_per_hour", "thread_answers_per_hour"), 0)


class Room:
    """A person in an encrypted room with an account."""

    def __init__(self, synapse: Synapse, person: Credentials, bot: Credentials, folder: Path) -> None:
        self.peer, self.bot = SecretPeer(synapse.url, person, folder), bot
        self.room = self.peer.create_room(bot.user_id)
        self._read: dict[str, str] = {}
        self._said = 0

    @property
    def joined(self) -> bool:
        return self.bot.user_id in self.peer.peer.members(self.room)

    def say(self, text: str) -> None:
        self._said += 1
        if self._said % 5 == 0:
            self.peer.new_key(self.room)
        self.peer.send(self.room, text, to=self.bot.user_id)

    def answers(self) -> list[str]:
        """What the account has said so far; what was read once is not read again."""
        self.peer.take_keys()
        for event in self._new():
            if event["type"] != "m.room.encrypted":
                text = f"<in clear> {event['content'].get('body')}"
            else:
                try:
                    text = str(self.peer.machine.decrypt(self.room, event)["content"]["body"])
                except Exception as error:  # a key may still come
                    text = f"<{type(error).__name__}>"
            self._read[event["event_id"]] = text
        return list(self._read.values())

    def _new(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        page = ""
        read = {event for event, text in self._read.items() if not text.startswith("<")}
        while True:
            answer = self.peer._call("GET", f"/rooms/{quote(self.room)}/messages?dir=b&limit=50{page}")
            ours = [
                event
                for event in answer["chunk"]
                if event["sender"] == self.bot.user_id
                and event["type"] in {"m.room.message", "m.room.encrypted"}
            ]
            found += [event for event in ours if event["event_id"] not in read]
            if "end" not in answer or not answer["chunk"] or any(event["event_id"] in read for event in ours):
                return found[::-1]
            page = f"&from={answer['end']}"

    def device(self) -> dict[str, Any]:
        """What the homeserver knows of the account's devices: each one's keys and who has signed it."""
        answer = self.peer._call("POST", "/keys/query", {"device_keys": {self.bot.user_id: []}})
        return {
            key: answer[key][self.bot.user_id] for key in ("device_keys", "master_keys", "self_signing_keys")
        }

    def close(self) -> None:
        self.peer.close()


class Thread:
    """A person who writes mails to the account, all in one thread."""

    def __init__(self, person: MailPeer, bot: MailPeer) -> None:
        self.person, self.bot = person, bot
        self._said: list[str] = []

    def say(self, text: str) -> None:
        last, first = self._said[-1:], self._said[:1]
        sent = self.person.send(
            self.bot.address, "Re: on", text,
            in_reply_to=last[0] if last else None, references=[*first, *last] if last else None,
        )  # fmt: skip
        self._said.append(sent)

    def answers(self) -> list[str]:
        """What has come back."""
        return [text_of(mail) for mail in self.person.list()]


class Cluster:
    """The machines are off at first."""

    def __init__(
        self,
        synapse: Synapse,
        mail: MailServer,
        server: PostgresServer,
        credentials: Callable[[str], Credentials],
        mailbox: Callable[[str], MailPeer],
        folder: Path,
    ) -> None:
        self.server, self.stack = server, ExitStack()
        self.database = server.new_database()
        self.url = server.url(self.database)
        migrate(self.url)
        bots = {name: credentials(name) for name in ("matrix", "club")}
        people = {name: credentials("nia") for name in bots}
        bot_mail, mia = mailbox("bot"), mailbox("mia")
        self.settings: dict[str, Any] = {
            "owner": {"aliases": [people["matrix"].user_id, mia.address]},
            "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}, "default_pool": "main"},
            "agents": {"heartbeat": {"enabled": False}},
            "attachments": {"store": str(folder / "files")},
            "channels": {
                "matrix": [
                    matrix_settings(
                        synapse, bot.user_id, bot.password, people[name].user_id, name=name, batching="each"
                    )
                    for name, bot in bots.items()
                ],
                "email": email_settings(
                    mail, bot_mail.address, bot_mail.password, mia.address,
                    batching="each", probe_grace_s=2, circuit_breaker=_NO_BRAKE,
                ),
            },
        }  # fmt: skip
        (folder / "files" / "attachments").mkdir(parents=True)
        self.links = [self.stack.enter_context(DatabaseLink(server.port)) for _ in MACHINES]
        self.daemons = [
            self.stack.enter_context(Daemon(folder / f"home{number}", self.settings_of(number)))
            for number in MACHINES
        ]
        for daemon in self.daemons:
            daemon.module = "tests.kill.takeover_daemon"
        self.rooms = {name: Room(synapse, people[name], bots[name], folder / name) for name in bots}
        self.people: dict[str, Room | Thread] = {**self.rooms, "email": Thread(mia, bot_mail)}
        self.said: list[Saying] = []
        self.kills = self.freezes = 0
        self.takeovers: list[float] = []
        self.frozen: set[int] = set()
        self.codes: list[int] = []
        self._devices: dict[str, Any] = {}

    def settings_of(self, number: int, **changes: Any) -> dict[str, Any]:
        """The configuration of a machine."""
        store = f"postgresql://{ROLE}:{PASSWORD}@127.0.0.1:{self.links[number].port}/{self.database}"
        return {
            **self.settings,
            "gateway": {"store": store, "state_key": "a-state-key-of-the-tests"},
            **changes,
        }

    # ── machines ──

    def up(self, *numbers: int) -> None:
        """Start these, or all; returns when each account has given an answer."""
        self.until(lambda: self.restarted(*numbers) and all(room.joined for room in self.rooms.values()))
        for account in ACCOUNTS:
            self.say(account)
        self.quiet(*numbers)
        self._devices = {name: room.device() for name, room in self.rooms.items()}

    def living(self) -> list[int]:
        """The machines whose process has not ended."""
        alive = []
        for number, daemon in enumerate(self.daemons):
            if daemon.process is not None and daemon.process.poll() is None:
                alive.append(number)
            elif daemon.process is not None:
                self.codes.append(daemon.process.returncode)
                daemon.process = None
                self.frozen.discard(number)
        return alive

    def restarted(self, *numbers: int) -> bool:
        """Start what has ended, as a service manager does; whether all had been running."""
        ended = [number for number in numbers or MACHINES if number not in self.living()]
        for number in ended:
            self.daemons[number].start()
        return not ended

    def awake(self) -> list[int]:
        """The machines whose process lives and is not frozen."""
        return [number for number in self.living() if number not in self.frozen]

    def kill(self, number: int) -> None:
        """SIGKILL, and wait for the end."""
        self.daemons[number].kill()
        self.kills += 1
        TALLY["of one of three daemons on encrypted Matrix and mail"] += 1
        self.living()

    def freeze(self, number: int) -> None:
        """SIGSTOP."""
        process = self.daemons[number].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        self.frozen.add(number)
        self.freezes += 1

    def thaw(self) -> None:
        """SIGCONT for all that are frozen."""
        for number in list(self.frozen):
            process = self.daemons[number].process
            if process is not None:
                process.send_signal(signal.SIGCONT)
            self.frozen.discard(number)

    def active(self) -> int | None:
        """The living machine that is the daemon of the home, as the database says."""
        pids = {
            str(daemon.process.pid): number
            for number, daemon in enumerate(self.daemons)
            if daemon.process is not None and number in self.living()
        }
        query = "SELECT holder FROM squidbot.all_leases WHERE name = 'daemon'"
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.url, connect_timeout=5) as db:
            found = db.execute(query).fetchone()
            if found is not None and found[0] is not None:
                return pids.get(found[0].split("/")[1])
        return None

    def taken_over(self, account: str) -> float | None:
        """
        Kill the active machine and nobody else; how long a message by an account takes to its answer then.

        None: there was none, or nobody else was there.
        """
        self.until(lambda: self.restarted() and self.active() is not None)
        victim = self.active()
        if victim is None or len(self.awake()) < 2:
            return None
        self.kill(victim)
        began = time.monotonic()
        number = self.say(account)
        while number not in self.answered(account):
            others = [other for other in MACHINES if other != victim]
            self.restarted(*others)
            assert time.monotonic() < began + 120, self.logs()
            time.sleep(0.1)
        self.takeovers.append(time.monotonic() - began)
        return self.takeovers[-1]

    # ── people ──

    def say(self, account: str, words: str = "") -> int:
        """Somebody says the next message."""
        number = len(self.said) + 1
        self.people[account].say(f"#{number}{words}")
        self.said.append(Saying(number, account, "", ""))
        return number

    def chatter(self, chance: random.Random, most: int = 3) -> None:
        """A few messages by any account."""
        for _ in range(chance.randint(1, most)):
            self.say(chance.choice(ACCOUNTS))

    def seen(self, *accounts: str) -> list[tuple[str, str]]:
        """Account and text of all answers; a mail may quote others behind the first number."""
        found = []
        for account in accounts or ACCOUNTS:
            for text in self.people[account].answers():
                numbers = numbers_in(text)[:1]
                is_echo = text.startswith("echo:") and bool(numbers)
                found.append((account, f"re: #{numbers[0]}" if is_echo else text))
        return found

    def answered(self, *accounts: str) -> set[int]:
        """The numbers of what is answered."""
        return {number for _, text in self.seen(*accounts) for number in numbers_in(text)}

    # ── the end ──

    def until(self, condition: Callable[[], object], within_s: float = 150) -> None:
        """Wait for something."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def quiet(self, *numbers: int) -> None:
        """Wait until all is answered and nothing is open; machines are kept running meanwhile."""
        wanted = {saying.number for saying in self.said}
        self.until(lambda: self.restarted(*numbers) and self.answered() >= wanted, 240)
        self.until(lambda: self.restarted(*numbers) and self.rows(OPEN) == [(0,)])

    def rows(self, query: str) -> Sequence[tuple[Any, ...]]:
        """Of the database; nothing while it is away."""
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.url, connect_timeout=5) as db:
            return db.execute(query).fetchall()
        return []

    def end(self) -> None:
        """Stop all in order."""
        self.until(lambda: self.restarted() and all(d.asked("/readyz")[1].get("ready") for d in self.daemons))
        for daemon in self.daemons:
            daemon.terminate()
        codes = [daemon.ended() for daemon in self.daemons]
        assert codes == [0, 0, 0], (codes, self.logs())

    def problems(self) -> list[str]:
        """Everything that is wrong; empty if every promise was kept."""
        time.sleep(2)  # a second answer would come now
        evidence = Evidence(said=self.said, seen=self.seen(), deaths=self.kills)
        found = [problem for problem in problems(evidence) if "history" not in problem]
        for name, room in self.rooms.items():
            if self._devices and room.device() != self._devices[name]:
                found.append(f"{name} has another device")
        for state, error in self.rows(
            "SELECT state, error FROM squidbot.all_outbox WHERE state IN ('unknown', 'dead')"
        ):
            found.append(f"an answer is {state}: {error}")
        if strange := set(self.codes) - {0, TEMPORARY, -signal.SIGKILL, -signal.SIGTERM}:
            found.append(f"a process ended with {sorted(strange)}")
        return found

    def logs(self) -> str:
        """The end of each machine's log, and what people have not got."""
        wanted = {saying.number for saying in self.said}
        open_rows = self.rows(
            "SELECT id, session, state, attempts, next_at, waits_for FROM squidbot.all_inbox WHERE state IN ('ready', 'running')"
        )
        outgoing = self.rows(
            "SELECT id, channel, state, attempts, next_at, waits_for, error FROM squidbot.all_outbox WHERE state IN ('pending', 'sending', 'uncertain')"
        )
        leases = self.rows(
            "SELECT name, holder, expires_at - extract(epoch FROM now()) FROM squidbot.all_leases"
        )
        parts = [f"home{number}: {daemon.log()[-2500:]}" for number, daemon in enumerate(self.daemons)]
        missing = sorted(wanted - self.answered())
        return f"unanswered {missing}\n{open_rows}\n{outgoing}\n{leases}\n" + "\n".join(parts)

    def close(self) -> None:
        for number in list(self.frozen):
            process = self.daemons[number].process
            if process is not None:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGCONT)
        self.stack.close()
        for room in self.rooms.values():
            room.close()


OPEN = (
    "SELECT (SELECT count(*) FROM squidbot.all_inbox WHERE state IN ('ready', 'running'))"
    " + (SELECT count(*) FROM squidbot.all_outbox WHERE state IN ('pending', 'sending', 'uncertain'))"
)
