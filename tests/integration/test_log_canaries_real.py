"""What people say to a real daemon over real servers, and its secrets, stand in no log, whatever goes wrong."""

from __future__ import annotations

import base64
import os
import re
import secrets
import signal
import subprocess
import sys

from tests.daemon import REPOSITORY, Daemon, email_settings, matrix_settings

BODY = "c4nary-of-a-b0dy"
SUBJECT = "c4nary-of-a-subj3ct"
FAILURES = ("!crash", "!auth", "!empty", "!garbage", "!toolfail", "!toolong always", "!cut")


def _shapes(secret: str, user: str) -> list[str]:
    """A secret as it is, and as protocols write it."""
    plain = f"\0{user}\0{secret}".encode()
    return [secret, base64.b64encode(secret.encode()).decode(), base64.b64encode(plain).decode()]


def _leaks(text: str, canaries: dict[str, list[str]]) -> list[str]:
    """Which canaries are in a text, each with a line of it."""
    return [
        f"{name}: {line[:300]}"
        for name, shapes in canaries.items()
        for line in text.splitlines()
        if any(shape in line for shape in shapes)
    ]


def test_nothing_that_was_said_and_no_secret_is_in_the_log(
    synapse, mail_server, fresh_user, fresh_mailbox, tmp_path, monkeypatch
):
    """
    Over Matrix and mail: answers, a memory, a stranger, a model that fails in every way, a mail that is refused for
    now and one that is refused for good, an abort in the middle of a turn with a trace of all threads, and a start
    after it.
    """
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    word = f"s3cr3t-{secrets.token_hex(6)}"
    bot = synapse.register(f"bot-{secrets.token_hex(4)}", word)
    box = f"bot-{secrets.token_hex(4)}"
    mail_server.add_user(box, word)
    ann, eve, mail = fresh_user("ann"), fresh_user("eve"), fresh_mailbox("ann")
    settings = {
        "owner": {"aliases": [ann.user_id, mail.address]},
        "llm": {"limits": {"seconds": 10}},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, word, ann.user_id, batching="each"),
            "email": email_settings(
                mail_server, mail_server.address(box), word, mail.address, batching="each"
            ),
        },
        "gateway": {"log": {"level": "info", "format": "json", "file": "gateway.log"}},
    }
    bot_mail = mail_server.address(box)
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        room = ann.create_room([bot.user_id], is_direct=True)
        daemon.wait_until(lambda: bot.user_id in ann.members(room))
        sent = [f"hello {BODY}", f"remember that {BODY} is mine", f"!help {BODY}"]
        sent += [f"{failure} {BODY}" for failure in FAILURES]
        # A server quotes from the mail that it refuses: this answer repeats the question, others do not.
        mail_server.fail_next("refuse-data", reply=f"451 4.3.0 later, {BODY}", sender=bot_mail)
        for number, text in enumerate(sent):
            ann.send(room, text)
            mail.send(bot_mail, f"{SUBJECT} {text}", text)
            if number == 0:
                daemon.wait_until(lambda: "message.retried" in daemon.log())
        eve.create_room([bot.user_id], is_direct=True, name=BODY)
        daemon.wait_until(
            lambda: (
                daemon.work("inbox", "settled", "dead") >= 2 * len(sent)
                and daemon.work("outbox", "pending", "sending", "uncertain") == 0
            ),
            within_s=90,
        )
        mail_server.fail_next("refuse-data", reply=f"552 5.3.4 never, {BODY}", sender=bot_mail)
        mail.send(bot_mail, f"{SUBJECT} refused", f"refuse this {BODY}")
        daemon.wait_until(lambda: "message.dead_lettered" in daemon.log())
        ann.send(room, f"!slow 20 {BODY}")
        daemon.wait_until(lambda: daemon.asked("/status")[1]["work"]["turns_running"] == 1)
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGABRT)
        assert daemon.ended() == -signal.SIGABRT
        daemon.up()
        tokens = _tokens(daemon.home / "state" / "matrix")
        daemon.kill()
        logs = {path.name: path.read_text(errors="replace") for path in daemon.home.glob("*.log")}
    canaries = {
        "a body": [BODY, base64.b64encode(BODY.encode()).decode()],
        "a subject": [SUBJECT],
        "the password": [*_shapes(word, box), *_shapes(word, bot_mail)],
        "a token": tokens,
    }
    assert tokens
    assert set(logs) >= {"daemon.log", "gateway.log"}
    whole = "\n".join(logs.values())
    for event in (
        "turn.answered",
        "model.failed",
        "message.retried",
        "message.dead_lettered",
        "Fatal Python error",
    ):
        assert event in whole, event
    assert _leaks(whole, canaries) == []
    # The control: each of them would be found.
    assert len(_leaks(f"x {BODY}\n{SUBJECT}\n{word}\n{tokens[0]}", canaries)) >= 4


def _tokens(folder):
    """Access tokens in the state of the Matrix account."""
    texts = [path.read_text() for path in folder.rglob("*.json")]
    return sorted(
        {token for text in texts for token in re.findall(r'"(?:access_token)"\s*:\s*"([^"]{8,})"', text)}
    )


def test_a_refused_login_does_not_tell_the_password(
    synapse, mail_server, fresh_user, fresh_mailbox, tmp_path
):
    """Wrong passwords on both channels, for the daemon and for `squidbot check`: refused, and said nowhere."""
    word = f"wr0ng-{secrets.token_hex(6)}"
    bot = synapse.register(f"bot-{secrets.token_hex(4)}", "another")
    ann, mail, box = fresh_user("ann"), fresh_mailbox("ann"), fresh_mailbox("bot")
    settings = {
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, word, ann.user_id),
            "email": email_settings(mail_server, box.address, word, mail.address),
        },
    }
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.start()
        daemon.wait_until(lambda: daemon.log().count('"channel.refused"') >= 2)
        told = _squidbot(daemon, "check") + _squidbot(daemon, "status", "--json")
        daemon.terminate()
        daemon.ended()
        told += _squidbot(daemon, "check")
        text = daemon.log() + told
    canaries = {"the password": [*_shapes(word, box.address), *_shapes(word, box.address.partition("@")[0])]}
    assert "password" in told
    assert _leaks(text, canaries) == []
    assert _leaks(f"with {word}", canaries)


def _squidbot(daemon: Daemon, *arguments: str) -> str:
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
    command = [sys.executable, "-m", "gateway", *arguments, "--home", str(daemon.home)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    return done.stdout + done.stderr
