"""What `squidbot init` is tried with: accounts on both servers, a person at a terminal, and the daemon afterwards."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

from devservers.matrix_peer import MatrixPeer
from gateway.operations.control.control_client import ControlClient, DaemonGone
from gateway.system.home import Home
from tests.daemon import REPOSITORY

CANARY = 'k4n4ry-"#${HOME}-x'

COMMAND = [sys.executable, "-m", "gateway"]

LIMIT_S = 90


def environment(**more):
    usual = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith("_API_KEY") and not name.startswith("SQUIDBOT")
    }
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
    return {**usual, "PYTHONPATH": path, **more}


def squidbot(*arguments, stdin=subprocess.DEVNULL, **environ):
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(**environ),
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


class Scenario:
    """An account for the bot and one for its owner on both servers; the bot's passwords are canaries."""

    def __init__(self, synapse, mail, folder):
        token = os.urandom(4).hex()
        self.synapse, self.mail, self.folder = synapse, mail, folder
        self.bot = synapse.register(f"bot-{token}", CANARY)
        self.owner = MatrixPeer.of(synapse.url, synapse.register(f"owner-{token}", "owner-pw"))
        mail.add_user(f"bot-{token}", CANARY)
        mail.add_user(f"owner-{token}", "owner-pw")
        self.bot_mail, self.owner_mail = f"bot-{token}@{mail.domain}", f"owner-{token}@{mail.domain}"
        self.mailbox = mail.peer(f"owner-{token}")
        self.password = folder / "password"
        self.password.write_text(CANARY + "\n")

    def options(self, home, **changed):
        given = {
            "--home": home,
            "--matrix-homeserver": self.synapse.url,
            "--matrix-user": self.bot.user_id,
            "--matrix-password-file": self.password,
            "--email": self.bot_mail,
            "--email-user": self.bot_mail.partition("@")[0],
            "--email-password-file": self.password,
            "--imap": f"tls://{self.mail.imap_host}:{self.mail.imap_port}",
            "--smtp": f"starttls://{self.mail.smtp_host}:{self.mail.smtp_port}",
            "--tls-ca-file": self.mail.ca_file,
            "--model": "demo",
            **changed,
        }
        words = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
        return [*words, "--owner", self.owner.user_id, "--owner", self.owner_mail]

    def greetings(self):
        """How often the owner was greeted, in Matrix and by mail."""
        self.owner.sync(0.5)
        rooms = {room for room, _ in self.invitations()}
        mails = [mail for mail in self.mailbox.list() if "I am squidbot" in str(mail)]
        return len(rooms), len(mails)

    def invitations(self):
        answer = self.owner.call("GET", "/sync?timeout=0")
        return list(answer.get("rooms", {}).get("invite", {}).items())


def snapshot(home):
    """All files that a set-up writes by itself."""
    kept = [home / "squidbot.yaml", *sorted((home / "secrets").glob("*")), *sorted(home.glob("*.bak*"))]
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in kept}


class Daemon:
    """``squidbot run`` on a home, until it is told to stop."""

    def __init__(self, home):
        self.home = home
        self.log = (home / "daemon.log").open("ab")
        self.process = subprocess.Popen(
            [*COMMAND, "run", "--home", str(home)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )

    def __enter__(self):
        give_up_at = time.monotonic() + LIMIT_S
        while True:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < give_up_at, self.said()
            try:
                channels = ControlClient(Home(self.home)).call("status")["channels"]
            except DaemonGone:
                channels = {}
            states = [one["state"] for name, one in channels.items() if name in ("matrix", "email")]
            if states and set(states) == {"up"}:
                return self
            time.sleep(0.1)

    def said(self):
        return (self.home / "daemon.log").read_text(errors="replace")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


class Person:
    """Types into a real terminal and reads what is there."""

    def __init__(self, *arguments, **environ):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            # It is ignored below a shell that started this in the background.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, [*COMMAND, *map(str, arguments)], environment(TERM="dumb", **environ))
        self.seen = ""
        self._read_to = 0

    def sees(self, wanted):
        """Wait for something new that fits."""
        give_up_at = time.monotonic() + LIMIT_S
        while (found := re.compile(wanted).search(self.seen, self._read_to)) is None:
            assert time.monotonic() < give_up_at, f"no {wanted!r} in {self.seen[self._read_to :]!r}"
            assert self._read(1.0), f"it ended without {wanted!r}: {self.seen!r}"
        self._read_to = found.end()
        return self

    def types(self, text):
        os.write(self.terminal, f"{text}\n".encode())
        return self

    def _read(self, limit_s):
        if select.select([self.terminal], [], [], limit_s)[0]:
            try:
                piece = os.read(self.terminal, 65_536)
            except OSError:
                return False
            self.seen += piece.decode(errors="replace").replace("\r\n", "\n")
            return bool(piece)
        return True

    def ends(self):
        """The exit code."""
        give_up_at = time.monotonic() + LIMIT_S
        while self._read(1.0):
            assert time.monotonic() < give_up_at, self.seen
        _, status = os.waitpid(self.pid, 0)
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(status)


def devices(world):
    bot = MatrixPeer.of(world.synapse.url, world.bot)
    return bot.call("GET", "/devices")["devices"]
