"""
The page docs/several-machines.md, command by command: real daemons in two homes on a real PostgreSQL.

What is not run as it stands: names of machines and folders become those of the test, and `systemctl` and
`poweroff` start, stop and kill the daemon of that machine, because here is no service manager.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from devservers import MailPeer, MailServer, text_of
from tests.daemon import _DIE_WITH_PARENT, REPOSITORY, email_settings
from tests.kill.test_mail_kill import NO_BRAKE
from tests.postgres_server import ADMIN, PASSWORD, ROLE, PostgresServer
from tests.servers import skipped_without_tools

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200, func_only=True)]
PAGE = REPOSITORY / "docs/several-machines.md"
BLOCK = re.compile(r"^```sh\n# ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_THE_MACHINE = ("systemctl ", "poweroff ")
NAMES = ("one", "two")
LEASE_S = 30


class Machine:
    """Folders of a machine, and its daemon."""

    def __init__(self, root: Path, server: PostgresServer) -> None:
        self.root = root
        self.config, self.home = root / "etc/squidbot", root / "var/lib/private/squidbot"
        (root / "etc").mkdir(parents=True)
        self.server = server
        self.process: subprocess.Popen[bytes] | None = None
        bin_folder = root / "bin"
        bin_folder.mkdir()
        for name, text in {
            "squidbot": f'exec {sys.executable} -m gateway "$@"',
            "pip": 'echo "$@" >>upgrades',
            "scp": f'[ "$1" = -rp ] && exec cp -a "${{2/one.example:/{root.parent}/one}}" "$3"',
        }.items():
            program = bin_folder / name
            program.write_text(f"#!/bin/bash\n{text}\n")
            program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "SQUIDBOT_HOME": str(self.home),
            "SQUIDBOT_CONFIG": str(self.config / "squidbot.yaml"),
            "PGPASSFILE": str(self.root.parent / "pgpass"),
        }

    def runs(self, commands: str) -> str:
        """Give a block of commands; what they print."""
        told, waiting = "", ""
        for line in [*commands.splitlines(), "systemctl"]:
            if not line.startswith((*OF_THE_MACHINE, "systemctl")):
                waiting += line + "\n"
                continue
            told, waiting = told + self._bash(waiting), ""
            self._service(line.split()[1:] if line.startswith("systemctl") else ["kill"])
        return told

    def _bash(self, commands: str) -> str:
        folders = re.sub(r"(?<![\w:/])/(etc|var)/", rf"{self.root}/\1/", commands)
        folders = folders.replace(" /etc/\n", f" {self.root}/etc/\n")
        text = folders.replace("db.example", f"127.0.0.1:{self.server.port}")
        done = subprocess.run(
            ["bash", "-euc", text], env=self.environment, cwd=self.root, capture_output=True, text=True,
            timeout=100, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}\n{self.log()[-3000:]}"
        return done.stdout

    def _service(self, words: list[str]) -> None:
        match words:
            case ["stop", "squidbot"]:
                self.stop()
            case ["start", "squidbot"] | ["enable", "--now", "squidbot"]:
                self.start()
            case ["restart", "squidbot"]:
                self.stop()
                self.start()
            case ["kill"]:
                self.end(signal.SIGKILL)
            case other:
                assert other == [], other

    def start(self, state: str = "--ready") -> None:
        """As the unit does; returns when it is ready, or just alive."""
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, sys.executable, "-m", "gateway", "run"],
                env=self.environment, cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + 120
        while subprocess.run(
            [sys.executable, "-m", "gateway.operations.control.healthcheck", *state.split()],
            env=self.environment, capture_output=True, check=False,
        ).returncode:  # fmt: skip
            assert self.process.poll() is None and time.monotonic() < until, self.log()[-4000:]
            time.sleep(0.2)

    def stop(self) -> None:
        assert self.end(signal.SIGTERM) == 0, self.log()[-4000:]

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def log(self) -> str:
        with suppress(FileNotFoundError):
            return (self.root / "log").read_text(errors="replace")
        return ""


class People:
    """They write to both mailboxes, and count what comes back."""

    def __init__(self, bots: list[MailPeer], person: MailPeer) -> None:
        self.bots, self.person = bots, person
        self.asked: dict[str, str] = {}

    def ask(self) -> None:
        for bot in self.bots:
            text = f"#{len(self.asked) + 1}"
            self.asked[self.person.send(bot.address, text, text)] = text

    def while_they_write(self, what: Callable[[], object]) -> None:
        """Have a question asked every second meanwhile."""
        over = threading.Event()

        def write() -> None:
            while not over.wait(1):
                self.ask()

        with ExitStack() as stack:
            thread = threading.Thread(target=write)
            thread.start()
            stack.callback(thread.join)
            stack.callback(over.set)
            what()

    def answered(self, log: Callable[[], str]) -> None:
        """Each question has one answer, and it is its own."""
        until, found = time.monotonic() + 60 + LEASE_S, {}
        while time.monotonic() < until and set(found) != set(self.asked):
            time.sleep(0.5)
            found = self.answers()
        time.sleep(3)  # a second answer would come now
        assert self.answers() == {asked: [f"echo: {text}"] for asked, text in self.asked.items()}, log()

    def answers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for mail in self.person.list():
            found.setdefault(str(mail["In-Reply-To"]), []).append(text_of(mail).strip().split("\n")[0])
        return found


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """One on which nobody has made the role."""
    with skipped_without_tools():
        server = PostgresServer.start()
    with server:
        with server.admin() as db:
            db.execute(f"DROP ROLE {ROLE}")
        yield server


@pytest.fixture
def machines(server: PostgresServer, tmp_path: Path) -> Iterator[dict[str, Machine]]:
    (tmp_path / "pgpass").write_text(f"*:*:*:{ADMIN}:{PASSWORD}\n")
    (tmp_path / "pgpass").chmod(0o600)
    found = {name: Machine(tmp_path / name, server) for name in NAMES}
    yield found
    for machine in found.values():
        if machine.process is not None and machine.process.poll() is None:
            machine.end(signal.SIGKILL)


def _machines(told: str) -> dict[str, str]:
    """By the processes of a status, what each does."""
    return dict(re.findall(r"^  process (\d+) on .*?: (active|standing by|MISSING) for", told, re.MULTILINE))


def _config(mail_server: MailServer, bots: list[MailPeer], person: MailPeer, **more: Any) -> str:
    """One account for each bot, the first with the name of its kind."""
    quiet = {"batching": "each", "circuit_breaker": NO_BRAKE, **more}
    accounts = [
        email_settings(mail_server, bot.address, bot.password, person.address, **quiet, **name)
        for bot, name in zip(bots, ({}, {"name": "desk"}), strict=False)
    ]
    return yaml.safe_dump(
        {
            "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}},
            "agents": {"heartbeat": {"enabled": False}},
            "channels": {"email": accounts},
        }
    )


LOOKS = [
    "status", "inbox list", "inbox show 1", "memory list", "usage", "cron list", "sessions list", "did", "jobs list",
    "grants list", "export alice@example.org --output out", "check",
]  # fmt: skip
REFUSED = [
    "forget --yes alice@example.org", "sessions reindex", "sessions reset --yes email/x", "inbox retry 1",
]  # fmt: skip
"""While a daemon works on the database."""


def test_a_machine_without_a_daemon(
    mail_server: MailServer,
    fresh_mailbox: Callable[[str], MailPeer],
    postgres: PostgresServer,
    tmp_path: Path,
) -> None:
    """Where the configuration is, commands look, `check` tries all, and what changes something names the daemon's machine."""
    bot, alice = fresh_mailbox("bot"), fresh_mailbox("alice")
    one, desk = Machine(tmp_path / "one", postgres), Machine(tmp_path / "desk", postgres)
    url = postgres.with_tables()
    text = _config(mail_server, [bot], alice)
    key = f"gateway: {{store: '{url}', state_key: 'a-state-key-of-the-tests'}}\n"
    for machine in (one, desk):
        machine.config.mkdir()
        file = machine.config / "squidbot.yaml"
        file.touch(mode=0o600)
        file.write_text(f"owner: {{aliases: ['{alice.address}']}}\n{text}{key}")
    try:
        desk.runs("squidbot check")  # nobody has begun yet
        one.start()
        asked = alice.send(bot.address, "a question", "hello")
        assert text_of(alice.wait_for(lambda mail: mail["In-Reply-To"] == asked, 40)).startswith(
            "echo: hello"
        )
        for command in LOOKS:
            desk.runs(f"squidbot {command}")
        for command in REFUSED:
            said = desk.runs(f"squidbot {command} 2>&1 || echo code $?")
            assert "another squidbot works on postgresql://" in said and "code 75" in said, (command, said)
            assert f"process {one.process.pid if one.process else 0} on" in said
        one.stop()
    finally:
        if one.process is not None and one.process.poll() is None:
            one.end(signal.SIGKILL)


def test_the_page(
    mail_server: MailServer,
    fresh_mailbox: Callable[[str], MailPeer],
    machines: dict[str, Machine],
) -> None:
    """One machine becomes two, one dies, both are restarted while people write: each question has one answer."""
    blocks = [(where, text) for where, text in BLOCK.findall(PAGE.read_text())]
    assert len(blocks) == PAGE.read_text().count("```sh") == 9
    given = iter(blocks)

    def give(expected: str) -> list[str]:
        where, text = next(given)
        assert where.startswith(expected), where
        named = [name for name in NAMES if f" {name}" in where] or ["one"]
        return [machines[name].runs(text) for name in named]

    bots, person = [fresh_mailbox("bot"), fresh_mailbox("desk")], fresh_mailbox("alice")
    people = People(bots, person)
    one, two = (machines[name] for name in NAMES)
    one.config.mkdir()
    (one.config / "secrets").mkdir(mode=0o700)
    config = one.config / "squidbot.yaml"
    config.touch(mode=0o600)
    owner = f"owner: {{aliases: ['{person.address}']}}\n"
    config.write_text(owner + _config(mail_server, bots, person))
    one.start()
    people.ask()
    people.answered(one.log)

    give("anywhere")
    give("on one")
    people.ask()  # nobody is there
    give("on one")
    people.answered(one.log)

    give("on two")
    [told] = give("on two")
    pids = [str(each.process.pid if each.process else 0) for each in (one, two)]
    assert _machines(told) == {pids[0]: "active", pids[1]: "standing by"}, told
    people.ask()
    people.answered(two.log)

    people.ask()
    give("on one")  # it loses its power
    people.ask()
    time.sleep(LEASE_S + 5)
    [told] = give("on two")
    assert _machines(told) == {pids[0]: "MISSING", pids[1]: "active"}, told
    people.answered(two.log)
    give("on one")  # it is back

    people.while_they_write(lambda: give("on one, then on two"))
    assert [(each.root / "upgrades").exists() for each in machines.values()] == [True] * 2
    people.answered(two.log)
    assert next(given, None) is None
    for machine in machines.values():
        machine.stop()
