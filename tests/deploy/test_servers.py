"""
The profiles of compose.yaml with squidbot in front of them: a mail server and a homeserver that one can write
to. PostgreSQL and Synapse run from Debian's package and PyPI, since no registry of images can be reached here.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devservers import MailPeer, MatrixPeer
from devservers.mail_peer import text_of
from devservers.ports import lease_ports
from tests.deploy.compose import Compose, build_standin, own_secrets
from tests.deploy.engine import BASE_IMAGE, Engine
from tests.deploy.images import ROOT

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

BOT, OWNER = "bot@squidbot.internal", "owner@squidbot.internal"


@pytest.fixture(scope="module")
def servers(engine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """squidbot, the mail server, Synapse and PostgreSQL, as one command brings them up."""
    folder = tmp_path_factory.mktemp("local")
    leases = lease_ports(3, folder)
    imap, smtp, matrix = (str(lease.port) for lease in leases)
    compose = Compose(
        engine,
        project="squidlocal",
        profiles=("mail", "matrix"),
        environment={
            **own_secrets(folder / "secrets"),
            "SQUIDBOT_CONFIG": "./deploy/compose/local-servers.yaml",
            "DEBIAN_IMAGE": BASE_IMAGE,
            "SYNAPSE_IMAGE": build_standin(engine, "synapse"),
            "POSTGRES_IMAGE": build_standin(engine, "postgres"),
            "MAIL_IMAP_PORT": imap,
            "MAIL_SUBMISSION_PORT": smtp,
            "MATRIX_PORT": matrix,
        },
    )
    compose.run("build", "mail", limit_s=400)
    try:
        compose.run("up", "--detach", "--wait", "--wait-timeout", "180")
        yield compose
    finally:
        compose.run("down", "--volumes", check=False)
        for lease in leases:
            lease.release()
    for kind in ("ps -aq", "volume ls -q", "network ls -q"):
        left = engine.out(*kind.split(), "--filter", "label=com.docker.compose.project=squidlocal")
        assert left == "", f"{kind}: {left}"


@pytest.fixture(scope="module")
def certificate(servers: Compose, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authority of the mail server, as the README has it fetched for a mail program."""
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    path.write_text(servers.run("exec", "-T", "mail", "cat", "/ca/ca.pem").stdout)
    return path


def _peer(servers: Compose, name: str, certificate: Path) -> MailPeer:
    where = servers.environment["LOCAL_SECRETS"]
    folder = "squidbot/" if name == "bot" else ""
    return MailPeer(
        f"{name}@squidbot.internal",
        Path(where, f"{folder}mail-{name}-password").read_text().strip(),
        imap_port=int(servers.environment["MAIL_IMAP_PORT"]),
        smtp_port=int(servers.environment["MAIL_SUBMISSION_PORT"]),
        ca_file=certificate,
    )


def test_a_mail_is_answered(servers: Compose, certificate: Path) -> None:
    """Handed in by the owner over submission, answered into the owner's mailbox, settled."""
    owner = _peer(servers, "owner", certificate)
    asked = owner.send(BOT, "Remember the milk", "hello there")
    answer = owner.wait_for(lambda mail: mail["In-Reply-To"] == asked, 90)
    assert answer["From"].addresses[0].addr_spec == BOT
    assert text_of(answer)


def test_a_forged_sender_is_not_believed(servers: Compose, certificate: Path) -> None:
    """The server's own word is above a forged one, stands only where the login is the sender, and nobody else is
    let in at all."""
    owner, bot = _peer(servers, "owner", certificate), _peer(servers, "bot", certificate)
    claim = "Authentication-Results: mail.squidbot.internal; dmarc=pass header.from="
    for number, sender in enumerate(("bank@example.org", f"{OWNER}, bank@example.org", OWNER)):
        domain = sender.rpartition("@")[2]
        raw = f"From: {sender}\r\n{claim}{domain}\r\nTo: {BOT}\r\nSubject: forged {number}\r\n\r\nhi\r\n"
        bot_reads = _told(owner, bot, raw, f"forged {number}")
        honest = number == 2
        assert bot_reads == ([
            f"mail.squidbot.internal; auth=pass smtp.auth={OWNER}; dmarc=pass header.from=squidbot.internal"
        ] if honest else []), sender  # fmt: skip
    with pytest.raises(Exception, match="not owned by user"):
        owner.submit([BOT], f"From: {BOT}\r\n\r\nhi\r\n".encode(), sender=BOT)
    with pytest.raises(Exception, match=r"delivers to squidbot\.internal only"):
        owner.submit(["x@example.org"], f"From: {OWNER}\r\n\r\nhi\r\n".encode())


def _told(owner: MailPeer, bot: MailPeer, raw: str, subject: str) -> list[str]:
    """What the server says of a mail, white space apart."""
    owner.submit([BOT], raw.encode())
    mail = bot.wait_for(lambda one: one["Subject"] == subject, 30)
    return [" ".join(str(value).split()) for value in mail.get_all("Authentication-Results", [])]


def test_a_matrix_message_is_answered(servers: Compose) -> None:
    """The owner opens a room with the bot, says something, and has an answer there."""
    url = f"http://127.0.0.1:{servers.environment['MATRIX_PORT']}"
    password = Path(servers.environment["LOCAL_SECRETS"], "matrix-owner-password").read_text().strip()
    owner = MatrixPeer.login(url, "owner", password)
    room = owner.create_room(["@bot:squidbot.internal"], is_direct=True)
    owner.send(room, "hello there")
    answer = owner.wait_for_message(lambda event: event.sender == "@bot:squidbot.internal", 90)
    assert answer.body


def test_it_says_that_all_is_well(servers: Compose) -> None:
    """Both channels are up in `squidbot status`, and nothing waits."""
    told = json.loads(servers.squidbot("status", "--json"))
    assert {name: one["state"] for name, one in told["channels"].items() if name in ("email", "matrix")} == {
        "email": "up",
        "matrix": "up",
    }


def test_everything_runs_without_rights(servers: Compose) -> None:
    """Read-only, no new privileges, and no capability but those that the mail server names."""
    for name in servers.run("ps", "-aq").stdout.split():
        told = json.loads(servers.engine.out("inspect", name))[0]
        assert told["HostConfig"]["ReadonlyRootfs"], told["Name"]
        assert told["HostConfig"]["CapDrop"] == ["ALL"], told["Name"]
        assert told["HostConfig"]["SecurityOpt"] == ["no-new-privileges:true"], told["Name"]
        for bindings in (told["NetworkSettings"]["Ports"] or {}).values():
            assert {one["HostIp"] for one in bindings or ()} <= {"127.0.0.1"}, told["Name"]


def test_the_daemon_sees_its_own_secrets_only(servers: Compose) -> None:
    """The owner's passwords and the key of the mail server are not to be found in squidbot's container."""
    seen = servers.run("exec", "-T", "squidbot", "ls", "/run/secrets", "/etc/squidbot/mail-ca").stdout.split()
    assert "mail-bot-password" in seen
    assert "ca.pem" in seen
    assert not [name for name in seen if "owner" in name or "postgres" in name or name.endswith(".key")]


def test_a_second_start_keeps_everything(servers: Compose, certificate: Path) -> None:
    """`down` without --volumes and `up` again: the same accounts, and mail is answered as before."""
    servers.run("down")
    servers.run("up", "--detach", "--wait", "--wait-timeout", "180")
    owner = _peer(servers, "owner", certificate)
    asked = owner.send(BOT, "Again", "hello again")
    assert text_of(owner.wait_for(lambda mail: mail["In-Reply-To"] == asked, 90))


def test_secrets_are_made_once_and_are_nobody_else_s(tmp_path: Path) -> None:
    """A second run changes no password; the folder is its owner's alone, and each password has 128 bits or more."""
    own_secrets(tmp_path / "s")
    before = {path: path.read_text() for path in (tmp_path / "s").rglob("*") if path.is_file()}
    own_secrets(tmp_path / "s")
    after = {path: path.read_text() for path in (tmp_path / "s").rglob("*") if path.is_file()}
    assert before == after
    assert len(set(before.values())) == len(before) == 8
    assert all(len(text.strip()) >= 32 for text in before.values())
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_as_another_user_the_secrets_cannot_be_read() -> None:
    """Although the files are open to all, nobody else gets into the folder; opened, they would be read."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    with tempfile.TemporaryDirectory(dir="/tmp") as outside:
        Path(outside).chmod(0o755)
        folder = Path(outside, "s")
        own_secrets(folder)
        tried = ["setpriv", "--reuid=65534", "--clear-groups", "cat", f"{folder}/squidbot/mail-bot-password"]
        told = subprocess.run(tried, capture_output=True, text=True, check=False)
        assert "Permission denied" in told.stderr
        folder.chmod(0o755)
        assert subprocess.run(tried, capture_output=True, check=False).returncode == 0


def test_the_profiles_are_off_by_default(engine: Engine) -> None:
    """`docker compose up` starts the daemon alone; each profile adds what it says."""
    expected = {
        "mail": {"mail"},
        "matrix": {"postgres", "synapse", "matrix-setup", "matrix-accounts"},
        "model": {"ollama"},
        "monitoring": {"prometheus", "grafana"},
    }
    assert Compose(engine).run("config", "--services").stdout.split() == ["squidbot"]
    for profile, more in expected.items():
        told = Compose(engine, profiles=(profile,)).run("config", "--services").stdout.split()
        assert set(told) == {"squidbot"} | more
    assert (ROOT / "deploy/compose/secrets/.gitignore").read_text().startswith("*\n")
