"""
Two accounts on Matrix and two mailboxes in one daemon, on real servers: each is its own, and nothing crosses over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, text_of
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.test_gateway_e2e import until


def direct_room(peer: MatrixPeer, bot: str) -> str:
    room = peer.create_room(invite=[bot], is_direct=True)
    until(lambda: bot in peer.members(room))
    return room


def says(peer: MatrixPeer, room: str, bot: str, text: str) -> str:
    peer.send(room, text)
    return peer.wait_for_message(lambda event: event.room_id == room and event.sender == bot, 30).body


def writes(peer: MailPeer, to: str, text: str) -> tuple[str, str]:
    """Write a mail; returns the answer's sender and text."""
    sent = peer.send(to, "a question", text)
    answer = peer.wait_for(lambda mail: mail["In-Reply-To"] == sent)
    return str(answer["From"]), text_of(answer)


def rows(home: Path, query: str) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(f"file:{home / 'gateway.db'}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


def test_each_account_is_its_own(
    synapse: Synapse,
    mail_server: MailServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    fresh_mailbox: Callable[[str], MailPeer],
    tmp_path: Path,
) -> None:
    """
    The owner is the owner on all four; each answers from its own address, keeps its own folder, positions and
    sessions; who is let in on one is a stranger on the other; and so it is after a restart.
    """
    home_bot, club_bot = fresh_credentials("bot"), fresh_credentials("club")
    home_mail, desk_mail = fresh_mailbox("bot"), fresh_mailbox("desk")
    alice, bob, alice_mail, bob_mail = (
        fresh_user("alice"), fresh_user("bob"), fresh_mailbox("alice"), fresh_mailbox("bob")
    )  # fmt: skip
    settings = {
        "owner": {"aliases": [alice.user_id, alice_mail.address]},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": [
                matrix_settings(synapse, home_bot.user_id, home_bot.password),
                matrix_settings(synapse, club_bot.user_id, club_bot.password, bob.user_id, name="club"),
            ],
            "email": [
                email_settings(mail_server, home_mail.address, home_mail.password),
                email_settings(
                    mail_server, desk_mail.address, desk_mail.password, bob_mail.address, name="desk"
                ),
            ],
        },
    }
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up(within_s=60)
        states = daemon.asked("/status")[1]["channels"]
        assert {"matrix", "club", "email", "desk"} <= states.keys()

        home_room, club_room = (direct_room(alice, bot.user_id) for bot in (home_bot, club_bot))
        says(alice, home_room, home_bot.user_id, "remember that my cat is called Tom")
        assert "Tom" in says(alice, club_room, club_bot.user_id, "what do you know about me?"), "one owner"
        bobs_room = direct_room(bob, club_bot.user_id)
        assert "Tom" not in says(bob, bobs_room, club_bot.user_id, "what do you know about me?")
        for mailbox in (home_mail, desk_mail):
            sender, told = writes(alice_mail, mailbox.address, "What do you know about me?")
            assert mailbox.address in sender
            assert "Tom" in told
        sender, told = writes(bob_mail, desk_mail.address, "What do you know about me?")
        assert desk_mail.address in sender
        assert "Tom" not in told

        refused_room = bob.create_room(invite=[home_bot.user_id], is_direct=True)
        bob.send(refused_room, "let me in")
        bob_mail.send(home_mail.address, "a question", "let me in")
        until(
            lambda: ("email",) in rows(daemon.home, "SELECT channel FROM inbox WHERE state = 'quarantined'")
        )
        daemon.terminate()
        assert daemon.ended() == 0

        daemon.up(within_s=60)
        assert "Tom" in says(alice, club_room, club_bot.user_id, "what do you know about me?")
        assert "Tom" in writes(alice_mail, desk_mail.address, "What do you know about me?")[1]
        assert home_bot.user_id not in bob.members(refused_room)
        daemon.terminate()
        assert daemon.ended() == 0

        accounts = {
            "matrix": home_bot.user_id,
            "club": club_bot.user_id,
            "email": home_mail.address,
            "desk": desk_mail.address,
        }
        for table in ("inbox", "outbox"):
            pairs = rows(daemon.home, f"SELECT DISTINCT channel, account FROM {table}")
            assert set(pairs) == set(accounts.items()), table
            for channel, session in rows(daemon.home, f"SELECT channel, session FROM {table}"):
                assert session.startswith(f"{channel}/")
        kept = rows(daemon.home, "SELECT DISTINCT channel, account FROM positions")
        assert set(kept) >= set(accounts.items())
        answered = "SELECT channel, COUNT(*) FROM inbox WHERE state = 'settled' GROUP BY channel"
        assert dict(rows(daemon.home, answered)) == {"matrix": 1, "club": 3, "email": 1, "desk": 3}
        assert all(desk_mail.address in str(mail["From"]) for mail in bob_mail.list())
        folders = {folder.name for folder in (daemon.home / "state").iterdir() if folder.is_dir()}
        assert folders >= {"matrix", "club"}
