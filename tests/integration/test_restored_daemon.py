"""
After a loss, on real servers: the daemon is gone with its disk, a backup is restored into an empty folder, and the
people on the other side get every answer once, from a device that can be trusted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from devservers import text_of
from tests.daemon import REPOSITORY, Daemon, email_settings, matrix_settings
from tests.integration.secret_peer import SecretPeer


def squidbot(home: Path, *arguments: str) -> str:
    """A command of squidbot on a home folder; what it prints."""
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments, "--home", str(home)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Talk:
    """One person in a plain room, in an encrypted one and by mail; what they said and what came back."""

    def __init__(self, bot, peer, secret, mail, bot_mail):
        self.bot, self.peer, self.secret, self.mail, self.bot_mail = bot, peer, secret, mail, bot_mail
        self.room = peer.create_room([bot.user_id], is_direct=True)
        self.secret_room = secret.create_room(bot.user_id)

    def say(self, text):
        """The same in the plain room and in a new mail."""
        self.peer.send(self.room, f"{text} room")
        self.mail.send(self.bot_mail, text, f"{text} mail")

    def whisper(self, text):
        """In the encrypted room."""
        self.secret.send(self.secret_room, text, to=self.bot.user_id)

    def heard(self):
        """How often each saying was answered, in all places together."""
        told = [event.body for event in self.peer.history(self.room) if event.sender == self.bot.user_id]
        told += [text_of(mail) for mail in self.mail.list()]
        kinds = self.secret.read(self.secret_room)
        assert {kind for kind, _ in kinds} <= {"m.room.encrypted"}
        told += [str(content.get("body")) for _, content in kinds]
        return Counter(
            " ".join(text.removeprefix("echo: ").split()[:3]) for text in told if text.startswith("echo: ")
        )

    def devices(self):
        """The bot's devices as others see them: id → who has signed it."""
        answer = self.peer.call("POST", "/keys/query", {"device_keys": {self.bot.user_id: []}})
        signing = set(answer["self_signing_keys"][self.bot.user_id]["keys"])
        return {
            name: signing & set(device["signatures"][self.bot.user_id])
            for name, device in answer["device_keys"][self.bot.user_id].items()
        }


def test_a_lost_daemon_is_brought_back_and_answers_everything_once(
    synapse, mail_server, fresh_credentials, fresh_user, fresh_mailbox, tmp_path
):
    """
    Backup while it runs, more answers after that, then the loss. What was answered since the backup waits for a
    person and is not answered again; what came while nothing ran is answered once, on both servers; the new
    device is signed by the account's new identity, the lost one is not, and encrypted rooms go on.
    """
    bot, bot_mail = fresh_credentials("bot"), fresh_mailbox("bot")
    ann, mail = fresh_user("ann"), fresh_mailbox("ann")
    carol = SecretPeer(synapse.url, fresh_credentials("carol"), tmp_path / "carol")
    settings = {
        "owner": {"aliases": [ann.user_id, mail.address]},
        "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(
                synapse, bot.user_id, bot.password, ann.user_id, carol.user_id, batching="each"
            ),
            "email": email_settings(
                mail_server,
                bot_mail.address,
                bot_mail.password,
                mail.address,
                batching="each",
                probe_grace_s=3,
            ),
        },
    }
    backup = tmp_path / "backup.tar.gz"
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        talk = Talk(bot, ann, carol, mail, bot_mail.address)
        daemon.wait_until(
            lambda: bot.user_id in ann.members(talk.room) & carol.peer.members(talk.secret_room)
        )
        talk.say("one before")
        talk.whisper("one before secret")
        daemon.wait_until(lambda: sum(talk.heard().values()) == 3)
        talk.say("two before")
        squidbot(daemon.home, "backup", str(backup), "--with-secrets")
        daemon.wait_until(lambda: sum(talk.heard().values()) == 5)
        talk.say("three since")
        daemon.wait_until(lambda: sum(talk.heard().values()) == 7)
        daemon.wait_until(lambda: daemon.work("inbox", "settled") == 7)
        [(old_device, _)] = talk.devices().items()

        daemon.kill()
        time.sleep(1.1)  # mail has dates in whole seconds
        lost_at = datetime.now(UTC)
        shutil.rmtree(daemon.home)
        time.sleep(1.1)
        talk.say("four meanwhile")

        daemon.home = tmp_path / "restored"
        until = lost_at.isoformat()
        told = squidbot(daemon.home, "restore", str(backup), "--yes", "--until", until)
        assert "restored to" in told
        daemon.up()
        daemon.wait_until(
            lambda: talk.heard()["four meanwhile room"] + talk.heard()["four meanwhile mail"] == 2
        )
        talk.whisper("five after secret")
        talk.say("five after")
        daemon.wait_until(lambda: sum(talk.heard().values()) == 12, within_s=60)
        time.sleep(3)  # a second answer would come now
        heard = talk.heard()
        waiting = json.loads(squidbot(daemon.home, "inbox", "list", "--quarantine", "--json"))["rows"]
        devices = talk.devices()
        daemon.terminate()
        assert daemon.ended() == 0
    carol.close()

    assert set(heard.values()) == {1}, heard
    # "Three" on both ways; and "two", where the backup was quicker than its arrival.
    assert {row["channel"] for row in waiting} == {"matrix", "email"}
    assert 2 <= len(waiting) <= 4
    assert not devices.pop(old_device)
    [signed_by] = devices.values()
    assert signed_by
