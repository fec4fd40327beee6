"""`squidbot init` as its own process, against a real homeserver and a real mail server, as a new user would."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from agent_core.persona import Persona
from devservers import MailServer, Synapse
from tests.integration.init_world import CANARY, Daemon, Person, Scenario, devices, snapshot, squidbot


@pytest.fixture
def world(synapse: Synapse, mail_server: MailServer, tmp_path: Path) -> Scenario:
    return Scenario(synapse, mail_server, tmp_path)


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
    parts = {one["name"]: one["state"] for one in json.loads(checked.stdout)["checks"]}
    assert parts["matrix encryption"] in ("ok", "warn"), checked.stdout
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

        # While the daemon runs it is asked to say hello.
        (home / "state" / "init" / "greeted.json").unlink()
        other = squidbot("init", "--yes", *world.options(home))
        assert other.returncode == 0, other.stderr
        assert "has not arrived" not in other.stdout
        assert len([mail for mail in world.mailbox.list() if "I am squidbot" in str(mail)]) == 2
    holders = {
        path.relative_to(home).as_posix()
        for path in home.rglob("*")
        if path.is_file() and CANARY.encode() in path.read_bytes()
    }
    assert holders == {"secrets/matrix-password", "secrets/email-password"}


# ── a person at a terminal ──


def test_a_person_at_a_terminal_may_mistype(world, tmp_path):
    """
    Asked one by one: a wrong password is said in plain words and asked again on both channels, what is typed as
    a password never shows and is not asked for again before it was refused, an authority of one's own is asked
    for when it is missed, and what is written is what was meant.
    """
    home = tmp_path / "home"
    person = Person("init", "--home", home)
    person.sees(r"Connect it to Matrix\? \[Y/n\]: ").types("")
    person.sees("Matrix id.*: ").types("bot").sees("not a whole Matrix id")
    person.sees("Matrix id.*: ").types(world.bot.user_id)
    # hs.test is no name that anybody knows, so its homeserver has to be named.
    person.sees("The homeserver .*: ").types(world.synapse.url)
    person.sees("password of .*: ").types("wrong-pw").sees("does not accept")
    person.sees("password of .*: ").types("wrong-pw").sees("does not accept")  # it may be the name
    person.sees("Matrix id.*: ").types("").sees("password of .*: ").types(CANARY).sees("Logged in as")
    person.sees(r"mailbox\? \[Y/n\]: ").types("y")
    person.sees("mail address .*: ").types(world.bot_mail)
    person.sees("name for the login .*: ").types(world.bot_mail)
    person.sees("password of .*: ").types("wrong-pw").sees("no mail server was found")
    person.sees("The IMAP server .*: ").types(f"tls://127.0.0.1:{world.mail.imap_port}")
    person.sees("The SMTP server .*: ").types(f"starttls://127.0.0.1:{world.mail.smtp_port}")
    person.sees("name for the login .*: ").types("")
    person.sees("password of .*empty keeps.*: ").types("").sees("no authority that this machine trusts")
    person.sees("own certificate authority: .*: ").types("nowhere.pem").sees("there is no file")
    person.sees("own certificate authority: .*: ").types(world.mail.ca_file)
    person.sees("does not accept the password")  # so it is not about the servers, which were found
    person.sees("password of .*: ").types(CANARY).sees("Senders are verified by mail.test")
    assert [person.seen.count(one) for one in ("The IMAP server", "name for the login")] == [1, 2]
    person.sees("Your own Matrix id.*: ").types("me").sees("such as @you")
    person.sees("Your own Matrix id.*: ").types(world.bot.user_id).sees("the bot's own")
    person.sees("Your own Matrix id.*: ").types("@nobody:hs.test").sees("has no user")
    person.sees("anyway.*: ").types("").sees("Your own Matrix id.*: ").types(world.owner.user_id)
    person.sees("Your own mail address.*: ").types(world.owner_mail)
    person.sees("Your time zone .*: ").types("Mars").sees("unknown time zone")
    person.sees("Your time zone .*: ").types("")
    person.sees("demo model").sees(r"Number \[1\]: ").types("99").sees("a number from")
    person.sees(r"Number \[\d+\]: ").types("1")
    person.sees(r"Write this\? \[Y/n\]: ").types("y")
    # Where systemd runs, it is offered to install the unit; nobody wants that here.
    person.sees("name and manner.*: ").types("You are Ada.").types("n")
    assert person.ends() == 0, person.seen
    assert Persona(home / "workspace").text() == "You are Ada."
    assert "!persona" not in person.seen
    assert "A first message went to" in person.seen
    assert world.bot_mail in person.seen  # what is typed is seen, if it is no password
    assert CANARY not in person.seen
    assert "wrong-pw" not in person.seen
    assert world.greetings() == (1, 1)
    assert squidbot("check", "--home", str(home)).returncode == 0


def test_whoever_leaves_leaves_no_trace(world, tmp_path):
    """
    Ctrl-C after the login: nothing is in the home, and the device that the login had made is gone again. At the
    end of the input the same.
    """
    home = tmp_path / "home"
    options = ("--matrix-homeserver", world.synapse.url, "--matrix-user", world.bot.user_id)
    person = Person("init", "--home", home, *options, "--matrix-password-file", world.password)
    person.sees("Logged in as").sees(r"mailbox\? ").types("y")
    person.sees("mail address .*: ").types(world.bot_mail).sees("name for the login .*: ")
    assert len(devices(world)) == 2
    os.write(person.terminal, b"\x03")
    assert person.ends() == 130
    assert "nothing was written" in person.seen
    assert f"--matrix-user {world.bot.user_id}" in person.seen
    assert f"--email {world.bot_mail}\n" in person.seen
    assert not home.exists()
    assert len(devices(world)) == 1

    done = squidbot("init", "--home", str(home))
    assert done.returncode == 130
    assert "nothing was written" in done.stderr
    assert not home.exists()


# ── what is refused ──


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


def test_what_a_person_has_written_is_kept(world, tmp_path):
    """
    Of a file that somebody has written no character changes: the lines for the mailbox are printed, its
    password goes into its file, nobody is greeted yet, and no new login stays. With the lines in it `check` is
    content, and the same command greets.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    config = home / "squidbot.yaml"
    text = WRITTEN_BY_HAND.format(
        owner=world.owner.user_id, url=world.synapse.url, bot=world.bot.user_id, password=world.password
    )
    config.write_text(text)
    config.chmod(0o600)
    kept = {
        "--matrix-user": None,
        "--matrix-homeserver": None,
        "--matrix-password-file": None,
        "--model": None,
    }
    done = squidbot("init", "--yes", *world.options(home, **kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert config.read_text() == text
    assert CANARY not in done.stdout + done.stderr
    assert (home / "secrets" / "email-password").read_text() == CANARY + "\n"
    assert world.greetings() == (0, 0)
    assert len(devices(world)) == 2

    print(done.stdout)
    told = done.stdout.partition("change its value:\n\n")[2].partition("\nWhat remains")[0]
    lacks = yaml.safe_load(told)
    assert lacks["owner"]["aliases"] == [world.owner.user_id, world.owner_mail]
    assert list(lacks["channels"]) == ["email"]
    whole = yaml.safe_load(text)
    whole["owner"], whole["channels"]["email"] = lacks["owner"], lacks["channels"]["email"]
    config.write_text(yaml.safe_dump(whole))
    done = squidbot("init", "--yes", *world.options(home, **kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing changes" in done.stdout
    assert world.greetings() == (1, 1)
    assert squidbot("check", "--home", str(home)).returncode == 0
