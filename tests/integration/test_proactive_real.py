"""
Alerts and reminders on real servers, with a daemon that is killed meanwhile: each arrives once, at its owner.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse, text_of
from tests.daemon import REPOSITORY, Daemon, email_settings, matrix_settings

EVERY = 0.02  # minutes


def start(home: Path, settings: dict) -> Daemon:
    daemon = Daemon(home, settings)
    (home / "workspace").mkdir(exist_ok=True)
    (home / "workspace" / "HEARTBEAT.md").write_text("- [ ] buy milk\n")
    return daemon


def test_a_first_alert_by_matrix_and_a_reminder_over_kills(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    """
    The owner who has never written is invited into a direct room and reads the alert there, once, whatever is
    killed; a reminder that is asked for there comes once as well, though the daemon dies before it is due.
    """
    bot, alice = fresh_credentials("bot"), fresh_user("alice")
    settings = {
        "owner": {"aliases": [alice.user_id]},
        "agents": {
            "heartbeat": {"interval_minutes": EVERY, "target": f"matrix:{alice.user_id}"},
            "schedule": {"misfire": "plain"},
        },
        "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password, encrypt_new_rooms=False)},
    }
    chance = random.Random(11)
    with start(tmp_path / "home", settings) as daemon:
        daemon.up()
        room = alice.wait_for_invite(40)
        alice.join(room)

        def said() -> list[str]:
            return [event.body for event in alice.history(room) if event.sender == bot.user_id]

        daemon.wait_until(lambda: any("buy milk" in text for text in said()), within_s=60)
        alice.send(room, "remind me in 6 seconds to take the pills")
        daemon.wait_until(lambda: any("Scheduled as" in text for text in said()), within_s=60)
        for _ in range(2):
            daemon.kill()
            daemon.up()
            daemon.wait_until(lambda: True, within_s=chance.uniform(0.1, 1.0))
        daemon.wait_until(lambda: "take the pills" in said(), within_s=60)
        daemon.wait_until(lambda: daemon.work("outbox", "pending", "sending", "uncertain") == 0)
    assert said().count("take the pills") == 1
    assert sum("buy milk" in text for text in said()) == 1


def test_alerts_by_mail_over_kills(
    synapse: Synapse, mail_server: MailServer, fresh_mailbox: Callable[[str], MailPeer], tmp_path: Path
) -> None:
    """The alert is one mail from the bot, marked as made by a program, and nothing is mailed twice over kills."""
    bot, alice = fresh_mailbox("bot"), fresh_mailbox("alice")
    settings = {
        "owner": {"aliases": [alice.address]},
        "agents": {
            "heartbeat": {
                "interval_minutes": EVERY,
                "target": f"email:{alice.address}",
                "digest": {"enabled": False},
            }
        },
        "channels": {"email": email_settings(mail_server, bot.address, bot.password)},
    }
    with start(tmp_path / "home", settings) as daemon:
        daemon.up()
        mail = alice.wait_for(lambda one: "buy milk" in text_of(one))
        for _ in range(2):
            daemon.kill()
            daemon.up()
        daemon.wait_until(lambda: daemon.work("outbox", "pending", "sending", "uncertain") == 0)
    assert bot.address in str(mail["From"])
    assert mail["Auto-Submitted"] == "auto-generated"
    assert len(alice.list()) == 1


def squidbot(daemon: Daemon, *arguments: str) -> str:
    """What a command says."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments, "--home", str(daemon.home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=REPOSITORY,
    )
    return done.stdout


def test_jobs_where_others_have_come_in_and_where_a_room_has_a_rule(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    """
    The owner's reminder from the direct room is said in another one when a third person is there. A guest whom
    only the rule of a room allows has a reminder there, and it says for whom it is; a stranger has none.
    """
    bot = fresh_credentials("bot")
    alice, bob, carol = (fresh_user(name) for name in ("alice", "bob", "carol"))
    group = alice.create_room([bot.user_id, bob.user_id, carol.user_id])
    for one in (bob, carol):
        one.join(group)
    rules = {"encrypt_new_rooms": False, "rooms": {group: {"allow_from": [bob.user_id]}}}
    settings = {
        "owner": {"aliases": [alice.user_id]},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password, **rules)},
    }
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        direct = alice.create_room([bot.user_id], is_direct=True)
        for room in (group, direct):
            daemon.wait_until(lambda: bot.user_id in alice.members(room), within_s=60)  # noqa: B023 - awaited

        def said(room: str) -> list[str]:
            return [event.body for event in alice.history(room) if event.sender == bot.user_id]

        def scheduled(who: MatrixPeer, room: str, text: str) -> str:
            mention = {"m.mentions": {"user_ids": [bot.user_id]}}
            who.send(room, f"{bot.user_id}: remind me in 600 seconds to {text}", **mention)
            daemon.wait_until(lambda: "Scheduled as" in "".join(said(room)), within_s=60)
            return "".join(said(room)).partition("Scheduled as ")[2][:5]

        carol.send(group, f"{bot.user_id}: remind me in 600 seconds to cheat", **{
            "m.mentions": {"user_ids": [bot.user_id]}
        })  # fmt: skip
        stretch = scheduled(bob, group, "stretch")
        pills = scheduled(alice, direct, "take the pills")
        alice.invite(direct, carol.user_id)
        carol.join(direct)
        for job in (stretch, pills):
            assert "runs now" in squidbot(daemon, "cron", "run", job)
        other = alice.wait_for_invite(60)
        alice.join(other)
        daemon.wait_until(lambda: said(other) == ["take the pills"], within_s=60)
        daemon.wait_until(lambda: f"For {bob.user_id}: stretch" in said(group), within_s=60)
        daemon.wait_until(lambda: daemon.work("outbox", "pending", "sending", "uncertain") == 0, within_s=60)
        jobs = squidbot(daemon, "cron", "list")
    assert other != direct
    assert "take the pills" not in said(direct)
    assert "cheat" not in jobs
