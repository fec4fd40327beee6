"""`squidbot init` as its own process, against a real homeserver and a real mail server, as a new user would."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from devservers import MailServer, Synapse
from devservers.matrix_peer import MatrixPeer
from gateway.control.client import ControlClient, DaemonGone
from gateway.home import Home
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


class World:
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


@pytest.fixture
def world(synapse: Synapse, mail_server: MailServer, tmp_path: Path) -> World:
    return World(synapse, mail_server, tmp_path)


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
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.close()


@pytest.mark.timeout(240, func_only=True)
def test_from_nothing_to_an_answer_on_both_channels(world, tmp_path):
    """
    Without a question: the file is written, check is content, the owner has one greeting in Matrix and one by
    mail, the daemon answers on both, and no secret stands anywhere but in its file.
    """
    home = tmp_path / "home"
    done = squidbot("init", "--yes", *world.options(home))
    print(done.stdout)
    assert done.returncode == 0, done.stderr + done.stdout

    text = (home / "squidbot.yaml").read_text()
    settings = yaml.safe_load(text)
    assert settings["channels"]["email"]["trusted_authserv_ids"] == [world.mail.domain]
    assert settings["channels"]["matrix"]["password"] == "${secret:matrix-password}"
    assert (home / "secrets" / "matrix-password").read_text() == CANARY + "\n"
    for path in (home / "squidbot.yaml", *(home / "secrets").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert CANARY not in text + done.stdout + done.stderr
    assert "What remains" not in done.stdout

    checked = squidbot("check", "--home", str(home), "--json")
    assert checked.returncode == 0, checked.stdout
    assert json.loads(checked.stdout)["ok"], checked.stdout
    assert world.greetings() == (1, 1)

    before = snapshot(home)
    again = squidbot("init", "--yes", *world.options(home))
    assert again.returncode == 0, again.stderr
    assert "Nothing changes" in again.stdout
    assert snapshot(home) == before
    assert world.greetings() == (1, 1)

    with Daemon(home) as daemon:
        # Rooms that it begins are encrypted; this client of the owner has no keys and sees that much.
        [(room, _)] = world.invitations()
        world.owner.join(room)
        world.owner.wait_for_event(lambda event: event.type == "m.room.encrypted")
        room = world.owner.create_room([world.bot.user_id], is_direct=True)
        world.owner.wait_for_event(
            lambda event: event.type == "m.room.member" and event.sender == world.bot.user_id
        )
        world.owner.send(room, "remember that the boat is blue")
        world.owner.wait_for_message(lambda event: event.sender == world.bot.user_id)
        world.mailbox.send(world.bot_mail, "Hello", "What colour is the boat?")
        answer = world.mailbox.wait_for(lambda mail: "Re: Hello" in str(mail["subject"]), 60)
        assert "blue" in str(answer)
        assert CANARY not in daemon.said()

        # While the daemon runs it is asked to say hello, and told to take up what has changed.
        (home / "state" / "init" / "greeted.json").unlink()
        other = squidbot("init", "--yes", *world.options(home, **{"--model": "demo/echo"}))
        assert other.returncode == 0, other.stderr
        assert "restart the daemon" in other.stdout
        assert "has not arrived" not in other.stdout
        assert len([mail for mail in world.mailbox.list() if "I am squidbot" in str(mail)]) == 2
    holders = {
        path.relative_to(home).as_posix()
        for path in home.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    }
    assert holders == {"secrets/matrix-password", "secrets/email-password"}


# ── a person at a terminal ──


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


@pytest.mark.timeout(240, func_only=True)
def test_a_person_at_a_terminal_may_mistype(world, tmp_path):
    """
    Asked one by one: a wrong password is said in plain words and asked again on both channels, what is typed as
    a password never shows and is not asked for again before it was refused, an authority of one's own is asked
    for when it is missed, and what is written is what was meant.
    """
    home = tmp_path / "home"
    person = Person("init", "--home", home)
    person.sees(r"Connect it to Matrix\? \[Y/n\]: ").types("")
    person.sees("Matrix id.*: ").types("bot").sees("no whole Matrix id")
    person.sees("Matrix id.*: ").types(world.bot.user_id)
    # hs.test is no name that anybody knows, so its homeserver has to be named.
    person.sees("The homeserver .*: ").types(world.synapse.url)
    person.sees("password of .*: ").types("wrong-pw").sees("does not accept")
    person.sees("Matrix id.*: ").types("").sees("password of .*: ").types(CANARY).sees("Logged in as")
    person.sees(r"mailbox\? \[Y/n\]: ").types("y")
    person.sees("mail address .*: ").types(world.bot_mail)
    person.sees("name for the login .*: ").types(world.bot_mail)
    person.sees("password of .*: ").types("wrong-pw").sees("no mail server was found")
    person.sees("The IMAP server .*: ").types(f"tls://127.0.0.1:{world.mail.imap_port}")
    person.sees("The SMTP server .*: ").types(f"starttls://127.0.0.1:{world.mail.smtp_port}")
    person.sees("name for the login .*: ").types("")
    person.sees("password of .*empty keeps.*: ").types("").sees("nobody that this machine trusts")
    person.sees("authority of your own: .*: ").types("nowhere.pem").sees("there is no file")
    person.sees("authority of your own: .*: ").types(world.mail.ca_file)
    person.sees("does not accept the password")
    person.sees("The IMAP server .*: ").types("").sees("The SMTP server .*: ").types("")
    person.sees("name for the login .*: ").types("")
    person.sees("password of .*: ").types(CANARY).sees("Senders are proven by mail.test")
    person.sees("Your own Matrix id.*: ").types("me").sees("such as @you")
    person.sees("Your own Matrix id.*: ").types(world.bot.user_id).sees("the bot's own")
    person.sees("Your own Matrix id.*: ").types("@nobody:hs.test").sees("knows nobody")
    person.sees("all the same.*: ").types("").sees("Your own Matrix id.*: ").types(world.owner.user_id)
    person.sees("Your own mail address.*: ").types(world.owner_mail)
    person.sees("demo model").sees(r"Number \[1\]: ").types("99").sees("a number from")
    person.sees(r"Number \[\d+\]: ").types("1")
    # Where systemd runs, it is offered to install the unit; nobody wants that here.
    person.sees(r"Write this\? \[Y/n\]: ").types("y").types("n")
    assert person.ends() == 0, person.seen
    assert "A first message went to" in person.seen
    assert world.bot_mail in person.seen  # what is typed is seen, if it is no password
    assert CANARY not in person.seen
    assert "wrong-pw" not in person.seen
    assert world.greetings() == (1, 1)
    assert squidbot("check", "--home", str(home)).returncode == 0


@pytest.mark.timeout(120, func_only=True)
def test_whoever_leaves_leaves_no_trace(world, tmp_path):
    """
    Ctrl-C after the login: nothing is in the home, and the device that the login had made is gone again. At the
    end of the input the same.
    """
    home = tmp_path / "home"
    options = ("--matrix-homeserver", world.synapse.url, "--matrix-user", world.bot.user_id)
    person = Person("init", "--home", home, *options, "--matrix-password-file", world.password)
    person.sees("Logged in as").sees(r"mailbox\? ")
    assert len(devices(world)) == 2
    os.write(person.terminal, b"\x03")
    assert person.ends() == 130
    assert "nothing was written" in person.seen
    assert not home.exists()
    assert len(devices(world)) == 1

    done = squidbot("init", "--home", str(home))
    assert done.returncode == 130
    assert "nothing was written" in done.stderr
    assert not home.exists()


def devices(world):
    bot = MatrixPeer.of(world.synapse.url, world.bot)
    return bot.call("GET", "/devices")["devices"]


# ── what is refused ──


@pytest.mark.timeout(120, func_only=True)
@pytest.mark.parametrize("channel", ["matrix", "email"])
def test_a_wrong_password_writes_nothing(world, tmp_path, channel):
    """Without a question it is an exit code and a sentence; no file, and no device that stays."""
    home, wrong = tmp_path / "home", tmp_path / "wrong"
    wrong.write_text("wrong-pw\n")
    done = squidbot("init", "--yes", *world.options(home, **{f"--{channel}-password-file": wrong}))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "does not accept" in done.stderr
    assert "Traceback" not in done.stderr
    assert not home.exists()
    assert len(devices(world)) == 1


def test_an_unknown_certificate_is_told(world, tmp_path):
    """Without the authority of the mail server nothing is sent to it, and the way out is named."""
    home = tmp_path / "home"
    done = squidbot(
        "init",
        "--yes",
        "--no-matrix",
        *world.options(
            home,
            **{
                "--tls-ca-file": None,
                "--matrix-user": None,
                "--matrix-homeserver": None,
                "--matrix-password-file": None,
            },
        ),
    )
    assert done.returncode == 1
    assert "certificate" in done.stderr
    assert "tls_ca_file" in done.stderr
    assert not home.exists()


# ── again ──

WRITTEN_BY_HAND = """\
# my own words
owner: {{aliases: ["{owner}"]}}   # me
llm:
  pools: {{main: [d]}}
  models: {{d: {{model: demo/demo}}}}
agents: {{heartbeat: {{enabled: false}}}}  # quiet
channels:
  matrix:
    # mine
    homeserver: {url}
    user_id: "{bot}"
    password: "${{file:{password}}}"   # the old way
    encrypt_new_rooms: false
    group_policy: open
gateway: {{max_concurrent_turns: 3}}
# the end
"""


@pytest.mark.timeout(180, func_only=True)
def test_what_a_person_has_written_is_kept(world, tmp_path):
    """
    On a file that somebody has written only the mailbox is added: all of the rest stays to the letter, the file
    before is kept, and the first message can be read in Matrix. Another password replaces its reference alone.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    config = home / "squidbot.yaml"
    text = WRITTEN_BY_HAND.format(
        owner=world.owner.user_id, url=world.synapse.url, bot=world.bot.user_id, password=world.password
    )
    config.write_text(text)
    kept = {
        "--matrix-user": None,
        "--matrix-homeserver": None,
        "--matrix-password-file": None,
        "--model": None,
    }
    done = squidbot("init", "--yes", *world.options(home, **kept))
    assert done.returncode == 0, done.stdout + done.stderr
    new = config.read_text()
    head = f'owner: {{aliases: ["{world.owner.user_id}"]}}'
    assert head in text
    both = f'owner: {{aliases: ["{world.owner.user_id}", "{world.owner_mail}"]}}'
    before, _, after = text.replace(head, both).partition("gateway:")
    assert new.startswith(before.rstrip("\n"))
    assert new.endswith("gateway:" + after)
    [backup] = home.glob("squidbot.yaml.bak-*")
    assert backup.read_text() == text
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    [(room, _)] = world.invitations()
    world.owner.join(room)
    assert ["I am squidbot" in event.body for event in world.owner.history(room)] == [True]

    world.password.write_text(CANARY + "\n")
    other = tmp_path / "other"
    other.write_text(CANARY + "2\n")
    bot = MatrixPeer.login(world.synapse.url, world.bot.user_id, CANARY)
    auth = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": world.bot.user_id},
        "password": CANARY,
    }
    body = {"new_password": CANARY + "2", "logout_devices": False, "auth": auth}
    bot.call("POST", "/account/password", body)
    kept["--matrix-password-file"] = other
    done = squidbot("init", "--yes", "--no-hello", *world.options(home, **kept))
    assert done.returncode == 0, done.stdout + done.stderr
    old = f'"${{file:{world.password}}}"   # the old way'
    assert config.read_text() == new.replace(old, '"${secret:matrix-password}"   # the old way')
    assert world.greetings()[1] == 1
