"""
The daemon as people and operators meet it: a process between a real Synapse and a real mail server.

What is promised here is the whole main job: answers in the room and in the mail's thread, one memory of the
owner across both and nobody else's in it, and a process that stops, starts and refuses as it should.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, text_of
from tests.daemon import Daemon, email_settings, matrix_settings


@dataclass(slots=True)
class Town:
    """A bot with two addresses, its owner and another person who is let in, each with two addresses."""

    synapse: Synapse
    mail: MailServer
    bot: Credentials
    bot_mail: MailPeer
    alice: MatrixPeer
    alice_mail: MailPeer
    bob: MatrixPeer
    bob_mail: MailPeer
    folder: Path

    def settings(self, **changes: Any) -> dict[str, Any]:
        """A configuration for both channels, with the demo model."""
        matrix = matrix_settings(self.synapse, self.bot.user_id, self.bot.password, self.bob.user_id)
        email = email_settings(
            self.mail, self.bot_mail.address, self.bot_mail.password, self.bob_mail.address
        )
        channels = {"matrix": matrix, "email": email}
        for name, change in changes.pop("channels", {}).items():
            channels[name] |= change
        return {
            "owner": {"aliases": [self.alice.user_id, self.alice_mail.address]},
            "agents": {"heartbeat": {"enabled": False}},
            "channels": channels,
            **changes,
        }

    @contextmanager
    def daemon(self, **changes: Any) -> Iterator[Daemon]:
        """A daemon on a home of its own, not started yet."""
        with Daemon(self.folder / "home", self.settings(**changes)) as daemon:
            yield daemon

    def room_of(self, peer: MatrixPeer) -> str:
        """A direct room of somebody with the bot, who has joined when this returns."""
        room = peer.create_room(invite=[self.bot.user_id], is_direct=True)
        until(lambda: self.bot.user_id in peer.members(room))
        return room

    def says(self, peer: MatrixPeer, room: str, text: str, *, within_s: float = 60.0) -> str:
        """Say something in a room; returns the bot's next message there."""
        peer.send(room, text)
        return peer.wait_for_message(
            lambda event: event.room_id == room and event.sender == self.bot.user_id, within_s
        ).body

    def writes(self, peer: MailPeer, text: str, **headers: Any) -> Any:
        """Write a mail; returns the answer to it."""
        sent = peer.send(self.bot_mail.address, "a question", text, **headers)
        return peer.wait_for(lambda mail: mail["In-Reply-To"] == sent)


def open_to_others(home: Path) -> list[Path]:
    """What another user of the machine could read, write or enter, but for links."""
    return [
        each for each in (home, *home.rglob("*")) if not each.is_symlink() and each.lstat().st_mode & 0o077
    ]


@pytest.fixture
def town(
    synapse: Synapse,
    mail_server: MailServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    fresh_mailbox: Callable[[str], MailPeer],
    tmp_path: Path,
) -> Town:
    return Town(
        synapse,
        mail_server,
        fresh_credentials("bot"),
        fresh_mailbox("bot"),
        fresh_user("alice"),
        fresh_mailbox("alice"),
        fresh_user("bob"),
        fresh_mailbox("bob"),
        tmp_path,
    )


def until(true: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.05)


@pytest.mark.smoke
def test_answers_on_both_channels_and_remembers_for_the_owner_alone(town: Town) -> None:
    """
    What Alice says in the room is known in her mail; Bob, who is let in too, learns nothing of it, and neither does
    another user of the machine.
    """
    with town.daemon() as daemon:
        daemon.up()
        room = town.room_of(town.alice)
        assert town.says(town.alice, room, "hello").startswith("Hello")
        town.says(town.alice, room, "remember that my cat is called Tom")

        answer = town.writes(town.alice_mail, "What do you know about me?")
        assert "my cat is called Tom" in text_of(answer)
        assert str(answer["Subject"]).lower().startswith("re:")
        assert town.bot_mail.address in str(answer["From"])
        again = town.writes(
            town.alice_mail,
            "remember that I live in Lisbon",
            in_reply_to=str(answer["Message-ID"]),
            references=f"{answer['References']} {answer['Message-ID']}",
        )
        assert str(answer["Message-ID"]) in str(again["References"])
        assert "Lisbon" in town.says(town.alice, room, "what do you know about me?")

        for told in (
            town.says(town.bob, town.room_of(town.bob), "what do you know about me?"),
            text_of(town.writes(town.bob_mail, "What do you know about me?")),
        ):
            assert "Tom" not in told
            assert "Lisbon" not in told
        shared = town.alice.create_room(invite=[town.bot.user_id, town.bob.user_id])
        town.bob.join(shared)
        until(lambda: len(town.alice.members(shared)) == 3)
        told = town.says(town.alice, shared, f"{town.bot.user_id}: what do you know about me?")
        assert "Tom" not in told, "in front of others the owner's memory stays closed"

        document = (daemon.home / "workspace" / "MEMORY.md").read_text()
        assert document.splitlines() == ["- my cat is called Tom", "- I live in Lisbon"]
        assert len(list(daemon.home.rglob("*"))) > 20
        by_the_test = daemon.home / "daemon.log"  # the control
        by_the_test.chmod(0o644)
        assert open_to_others(daemon.home) == [by_the_test]


def test_commands_in_a_room_and_in_a_mail(town: Town) -> None:
    """The same words work in a room, behind the bot's name among others, and as the first line of a mail."""
    with town.daemon() as daemon:
        daemon.up()
        room = town.room_of(town.alice)
        town.says(town.alice, room, "remember that my cat is called Tom")
        assert "Matrix is connected" in town.says(town.alice, room, "!status")
        assert "my cat is called Tom" in town.says(town.alice, room, "!memory")
        shared = town.alice.create_room(invite=[town.bot.user_id, town.bob.user_id])
        town.bob.join(shared)
        until(lambda: len(town.alice.members(shared)) == 3)
        told = town.says(town.bob, shared, f"{town.bot.user_id}: !memory")
        assert "no notes about this conversation" in told

        answer = town.writes(town.alice_mail, "!memory\n\n-- \nAlice")
        assert "my cat is called Tom" in text_of(answer)
        assert "A new conversation starts here" in town.says(town.alice, room, "!new")
        assert "Nothing was waiting" in town.says(town.alice, room, "!stop")
        asked = town.writes(town.alice_mail, "Hello,\nwhat does !memory do?")
        assert "These are my notes" not in text_of(asked)


def test_a_stranger_gets_nothing_and_leaves_nothing(
    town: Town, fresh_user: Callable[[str], MatrixPeer], fresh_mailbox: Callable[[str], MailPeer]
) -> None:
    """
    No answer, no joined room, and not one byte of what a stranger wrote in the home folder. The mail of a proven one is
    kept for the owner to see, in the queue alone.
    """
    eve, eve_mail, word = fresh_user("eve"), fresh_mailbox("eve"), f"xyzzy{secrets.token_hex(8)}"
    letter = f"plugh{secrets.token_hex(8)}"
    known = word[1:] + word[0]  # not reversed: the search index keeps long words that way, too
    with town.daemon() as daemon:
        daemon.up()
        own_room = eve.create_room(invite=[town.bot.user_id], is_direct=True)
        eve.send(own_room, word)
        shared = town.alice.create_room(invite=[town.bot.user_id, eve.user_id])
        eve.join(shared)
        until(lambda: town.bot.user_id in town.alice.members(shared))
        eve.send(shared, f"{town.bot.user_id}: {word}")
        eve_mail.send(town.bot_mail.address, letter, letter)
        # What is answered later was taken later: the stranger's has gone through by then.
        town.says(town.alice, shared, f"{town.bot.user_id}: {known}")
        town.writes(town.alice_mail, "hello")
        until(lambda: daemon.work("inbox", "quarantined") >= 1 and daemon.work("inbox", "ignored") >= 1)

        assert town.bot.user_id not in eve.members(own_room)
        assert eve_mail.list() == []
        assert [event.sender for event in eve.history(shared)].count(town.bot.user_id) == 1
        daemon.terminate()
        assert daemon.ended() == 0
        assert files_with(daemon.home, word) == []
        assert {path.name for path in files_with(daemon.home, letter)} <= {"gateway.db", "gateway.db-wal"}
        assert files_with(daemon.home, known), "the owner's own words are found, so the search works"


def files_with(folder: Path, word: str) -> list[Path]:
    """The files in which a word stands."""
    return [path for path in folder.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]


def test_sigterm_finishes_what_is_in_hand_and_the_rest_is_for_the_next_start(town: Town) -> None:
    """The turn in hand is answered, the exit code is 0; what is said meanwhile and afterwards waits and is answered."""
    with town.daemon() as daemon:
        daemon.up()
        room = town.room_of(town.alice)
        town.alice.send(room, "!slow 3")
        daemon.wait_until(lambda: daemon.work("inbox", "running") == 1)
        daemon.terminate()
        town.alice.send(room, "said while you were going")
        sent = town.alice_mail.send(town.bot_mail.address, "later", "written while you were going")
        assert daemon.ended() == 0
        assert [e.body for e in town.alice.history(room) if e.sender == town.bot.user_id] == [
            "There you are; that took a while."
        ]

        daemon.up()
        town.alice.wait_for_message(lambda event: "said while you were going" in event.body)
        answer = town.alice_mail.wait_for(lambda mail: mail["In-Reply-To"] == sent)
        assert "written while you were going" in text_of(answer)
        assert len([e for e in town.alice.history(room) if e.sender == town.bot.user_id]) == 2


def test_a_second_sigterm_does_not_wait(town: Town) -> None:
    """It ends at once with another exit code, and the turn in hand is answered after the next start, once."""
    with town.daemon() as daemon:
        daemon.up()
        room = town.room_of(town.alice)
        town.alice.send(room, "!slow 6")
        daemon.wait_until(lambda: daemon.work("inbox", "running") == 1)
        daemon.terminate()
        daemon.wait_until(lambda: "gateway.draining" in daemon.log())
        daemon.terminate()
        assert daemon.ended() == 1
        assert "turn.answered" not in daemon.log()  # it has not waited
        assert [e for e in town.alice.history(room) if e.sender == town.bot.user_id] == []

        daemon.up()
        town.alice.wait_for_message(lambda event: "took a while" in event.body)
        time.sleep(1)
        assert len([e for e in town.alice.history(room) if e.sender == town.bot.user_id]) == 1


def test_a_second_instance_is_refused(town: Town) -> None:
    """It says who is there and ends with 78, so that no service manager starts it again and again."""
    with town.daemon() as daemon:
        first = daemon.up().process
        assert first is not None
        second = daemon.start()
        try:
            assert second.wait(120) == 78
        finally:
            daemon.process = first
        assert re.search(rf"already runs .*{first.pid}", daemon.log())
        assert daemon.asked("/readyz")[0] == 200


def test_a_wrong_password_for_one_channel_leaves_the_other_working(town: Town) -> None:
    """/readyz names the channel and the reason; mail is answered as ever."""
    with town.daemon(channels={"matrix": {"password": "not-this-one"}}) as daemon:
        daemon.start()
        daemon.wait_until(lambda: _has(daemon, "email"))
        assert "hello" in text_of(town.writes(town.alice_mail, "hello")).lower()

        daemon.wait_until(
            lambda: daemon.asked("/readyz")[1].get("waiting", {}).get("matrix", {}).get("state") == "failed"
        )
        status, report = daemon.asked("/readyz")
        assert status == 503
        assert "password" in report["waiting"]["matrix"]["detail"].lower()
        assert "not-this-one" not in str(report)
        assert "not-this-one" not in daemon.log()
        assert daemon.asked("/livez")[0] == 200


def _has(daemon: Daemon, channel: str) -> bool:
    return channel in daemon.asked("/readyz")[1].get("up", ())
