"""
As a new user does it: a Debian with nothing of ours, `git clone`, what the operations chapter says, and a first
answer over Matrix and over mail within ten minutes; once as a service of the machine, once as one of a person.

The machine has its own systemd and shares the network of this one, where the servers are.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from devservers import MailPeer, MailServer, MatrixPeer, Synapse
from tests.deploy.images import ROOT, certificates, published
from tests.deploy.machine import Machine, bare, machine_missing, running_machine

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1500)]

TEN_MINUTES_S = 600
RELEASE = "SQUIDBOT_DEPLOY_DEBIAN"
"""The release of Debian that is on the machine: trixie (13) if nobody says so, or bookworm (12)."""
CHAPTER = ROOT / "deploy" / "OPERATIONS.md"
SOURCE = "/srv/squidbot.git"
PASSWORD = "b0t's-own password"


def commands_of(title: str, *, block: int = 0) -> list[str]:
    """The lines of a block of commands below a heading of the operations chapter."""
    _, _, below = CHAPTER.read_text().partition(f"\n## {title}\n")
    found = re.findall(r"```sh\n(.*?)```", below.partition("\n## ")[0], re.DOTALL)
    return str(found[block]).splitlines()


class Booted:
    """A machine that can be switched off and on again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stack = ExitStack()
        self.machine = self._boot()

    def _boot(self) -> Machine:
        return self._stack.enter_context(running_machine(self.root, "squidbot-fresh", shared_network=True))

    def reboot(self) -> None:
        """Power off, power on; what was in memory is gone."""
        self._stack.close()
        self.machine = self._boot()

    def power_off(self) -> None:
        """For good."""
        self._stack.close()

    def shell(self, *lines: str, user: str | None = None) -> str:
        """Type lines into a shell, as root or as somebody else; a line that fails ends it."""
        script = "\n".join(("set -e", *lines))
        words = ["bash", "-c", script] if user is None else ["runuser", "--login", user, "--command", script]
        return self.machine.run(*words, limit_s=TEN_MINUTES_S).stdout


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    """A Debian that knows a repository with this tree in it, and a person called ann."""
    if missing := machine_missing():
        pytest.skip(f"no machine can be booted: {missing}")
    root = tmp_path_factory.mktemp("fresh") / "root"
    bare(root, release=os.environ.get(RELEASE, "trixie"))
    (root / "etc/systemd/system/systemd-logind.service").unlink()  # whose services outlive a login
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copyfile(certificates(), root / "etc/ssl/certs/ca-certificates.crt")
    (root / "etc/gitconfig").write_text("[safe]\n\tdirectory = *\n")  # it lies on this machine, as root's
    published(root / SOURCE.removeprefix("/"))
    computer = Booted(root)
    try:
        computer.shell(
            "export DEBIAN_FRONTEND=noninteractive", "apt-get update -qq",
            "apt-get install -y -qq git libpam-systemd >/dev/null", "systemctl start systemd-logind",
            "useradd --create-home --shell /bin/bash ann", "loginctl enable-linger ann",
        )  # fmt: skip
        yield computer
    finally:
        computer.power_off()


@dataclass(frozen=True)
class People:
    """The bot's accounts, and its owner's, on both servers."""

    bot: str
    bot_mail: str
    owner: MatrixPeer
    mailbox: MailPeer
    options: tuple[str, ...]

    def have_an_answer_each(self) -> None:
        """The owner opens a room and writes a mail, and the bot answers in both."""
        room = self.owner.create_room([self.bot], is_direct=True)
        self.owner.wait_for_event(
            lambda event: event.type == "m.room.member" and event.sender == self.bot, 60
        )
        self.owner.send(room, "hello there")
        assert self.owner.wait_for_message(lambda event: event.sender == self.bot, 60).body
        asked = self.mailbox.send(self.bot_mail, "First question", "hello there")
        assert self.mailbox.wait_for(lambda mail: mail["In-Reply-To"] == asked, 60)


def some_people(computer: Booted, synapse: Synapse, mail_server: MailServer) -> People:
    """New ones; the bot's password is in a file of the machine, and so is what the mail server is known by."""
    token = secrets.token_hex(4)
    bot = synapse.register(f"bot-{token}", PASSWORD)
    owner = MatrixPeer.of(synapse.url, synapse.register(f"owner-{token}", "owner-pw"))
    for name, password in ((f"bot-{token}", PASSWORD), (f"owner-{token}", "owner-pw")):
        mail_server.add_user(name, password)
    (computer.root / "etc/ssl/own-ca.pem").write_bytes(mail_server.ca_file.read_bytes())
    (computer.root / "etc/bot-password").write_text(f"{PASSWORD}\n")
    (computer.root / "etc/bot-password").chmod(0o644)
    mailbox = mail_server.peer(f"owner-{token}")
    options = {
        "--matrix-homeserver": synapse.url,
        "--matrix-user": bot.user_id,
        "--matrix-password-file": "/etc/bot-password",
        "--email": mail_server.address(f"bot-{token}"),
        "--email-user": f"bot-{token}",
        "--email-password-file": "/etc/bot-password",
        "--imap": f"tls://{mail_server.imap_host}:{mail_server.imap_port}",
        "--smtp": f"starttls://{mail_server.smtp_host}:{mail_server.smtp_port}",
        "--tls-ca-file": "/etc/ssl/own-ca.pem",
        "--model": "demo",
    }
    words = [word for pair in options.items() for word in pair]
    given = (*words, "--owner", owner.user_id, "--owner", mailbox.address)
    return People(bot.user_id, options["--email"], owner, mailbox, given)


def facts_of(shown: str) -> dict[str, str]:
    """What `systemctl show` prints."""
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def conversations(computer: Booted, *shell: str) -> dict[str, int]:
    """How many messages each conversation has."""
    told = json.loads(computer.shell(*shell, "squidbot sessions list --json"))
    return {one["session"]: one["messages"] for one in told["sessions"]}


def test_as_a_service_of_the_machine(computer: Booted, synapse: Synapse, mail_server: MailServer) -> None:
    """
    The chapter's own lines, then `init --install system` without a question: the owner is greeted, the service runs
    and answers, and all commands speak to it. It is there again after a reboot, after an upgrade, and after its home
    was lost, with every conversation; root can ask, mend and forget while it is stopped, and it goes on afterwards; it moves
    with a backup that has its secrets; and it is gone after the lines below "Uninstall".
    """
    people = some_people(computer, synapse, mail_server)
    begun = time.monotonic()
    *install, init = commands_of("Install")
    assert init.endswith("squidbot init --install system")
    lines = [
        line.replace("pip install", "pip install -q").replace("install -y", "install -y -qq")
        for line in install
    ]
    computer.shell(f"git clone -q {SOURCE} squidbot", "cd squidbot", *lines)
    installed_s = time.monotonic() - begun
    told = computer.shell(f"cd squidbot && {init} --yes {shlex.join(people.options)}")
    assert "systemctl status squidbot" in told, told
    assert "What remains" not in told, told
    people.owner.wait_for_invite(60)
    assert people.mailbox.wait_for(lambda mail: "I am squidbot" in str(mail), 60)
    people.have_an_answer_each()
    took_s = time.monotonic() - begun
    print(
        f"git clone to both answers, as a system service: {took_s:.0f} s, {installed_s:.0f} s of it to install"
    )
    assert took_s < TEN_MINUTES_S
    shell = [line for line in CHAPTER.read_text().splitlines() if line.startswith("export PATH=")]
    status = json.loads(computer.shell(*shell, "squidbot status --json"))
    assert {one["state"] for name, one in status["channels"].items() if name in ("matrix", "email")} == {"up"}
    checked = json.loads(computer.shell(*shell, "squidbot check --json"))
    assert checked["ok"], checked
    journal = computer.shell("journalctl -u squidbot --no-pager -o cat")
    assert "gateway.started" in journal
    assert PASSWORD not in journal + told

    computer.reboot()
    computer.machine.until("squidbot.service", "ActiveState", "active")
    people.have_an_answer_each()

    computer.shell("umask 077; head -c 24 /dev/urandom | base64 > /root/backup-passphrase")
    told = computer.shell(
        *shell,
        "cd squidbot",
        *(line.replace("pip install", "pip install -q") for line in commands_of("Upgrade")),
    )
    assert "local chat" in told
    people.have_an_answer_each()
    kept = conversations(computer, *shell)
    computer.shell(*shell, *commands_of("Backup"))
    *_, newest = computer.shell("ls -1tr /srv/backups").split()
    lines = [
        line.replace(
            "FILE --until 2026-01-03T14:05",
            f"/srv/backups/{newest} --yes --passphrase-file /root/backup-passphrase",
        )
        for line in commands_of("After a loss")
    ]
    assert any(newest in line for line in lines)
    computer.shell(*shell, *lines)
    computer.machine.until("squidbot.service", "ActiveState", "active")
    assert kept.items() <= conversations(computer, *shell).items()
    people.have_an_answer_each()

    person = people.owner.user_id
    computer.shell(
        *shell, "systemctl stop squidbot", "squidbot status", "squidbot inbox list", "squidbot memory list",
        f"squidbot forget {person} --yes", "squidbot check --data --repair", "squidbot usage",
        "squidbot backup /srv/stopped --with-secrets", "systemctl start squidbot",
    )  # fmt: skip
    computer.machine.until("squidbot.service", "ActiveState", "active")
    people.have_an_answer_each()

    computer.shell(
        *shell, "systemctl stop squidbot", "rm -r /var/lib/private/squidbot* /etc/squidbot",
        "squidbot restore /srv/stopped/* --moved --yes", *commands_of("After a loss", block=1), "systemctl start squidbot",
    )  # fmt: skip
    computer.machine.until("squidbot.service", "ActiveState", "active")
    people.have_an_answer_each()

    computer.shell(*commands_of("Uninstall"))
    left = computer.machine.run(
        "find", "/etc", "/opt", "/var/lib", "-iname", "*squidbot*", check=False
    ).stdout
    assert left == ""


def test_as_a_service_of_a_person(computer: Booted, synapse: Synapse, mail_server: MailServer) -> None:
    """
    The README's lines as a user without rights, `init --install user`, and both answers, in the sandbox that a user
    may have; also after a reboot, without anybody logging in.
    """
    people = some_people(computer, synapse, mail_server)
    uid = computer.shell("id -u ann").strip()
    bus = f"export XDG_RUNTIME_DIR=/run/user/{uid}"
    begun = time.monotonic()
    told = computer.shell(
        bus, f"git clone -q {SOURCE} squidbot", "cd squidbot",
        "python3 -m venv ~/squidbot-env && . ~/squidbot-env/bin/activate", "pip install -q .",
        f"squidbot init --install user --yes {shlex.join(people.options)}", user="ann",
    )  # fmt: skip
    assert "systemctl --user status squidbot" in told, told
    assert "What remains" not in told, told
    people.owner.wait_for_invite(60)
    people.have_an_answer_each()
    took_s = time.monotonic() - begun
    print(f"git clone to both answers, as a user service: {took_s:.0f} s")
    assert took_s < TEN_MINUTES_S

    computer.reboot()
    end = time.monotonic() + 60
    ask = f"{bus}; systemctl --user show squidbot 2>/dev/null || true"
    while (facts := facts_of(computer.shell(ask, user="ann"))).get("ActiveState") != "active":
        assert time.monotonic() < end, facts
        time.sleep(0.3)
    assert (facts["UnitFileState"], facts["Type"]) == ("enabled", "notify")
    status = computer.shell(f"cat /proc/{facts['MainPID']}/status")
    told_of = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (told_of["NoNewPrivs"].strip(), told_of["Seccomp"].strip()) == ("1", "2")
    assert told_of["Uid"].split() == [uid] * 4
    people.have_an_answer_each()
