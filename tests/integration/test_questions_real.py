"""
Questions at a real homeserver and a real mail server at once, with a daemon that is killed while they wait.

Two answers to one question from two channels: one counts, and both are told which. A server's question: in a room in
clear, in an encrypted one, and by mail.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from devservers import Credentials, MailServer, MatrixPeer, Synapse
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.integration.test_approvals_by_mail import mail_server, text_of
from tests.integration.test_email_loops import own

__all__ = ["mail_server"]

pytestmark = [pytest.mark.timeout(180, func_only=True)]
HOSTILE = Path(__file__).resolve().parents[1] / "hostile_mcp.py"
NAME = re.compile(r"\b(a[0-9a-f]{6})\b")


class _Owner:
    """The owner's two ways to the bot."""

    def __init__(self, matrix: MatrixPeer, server: MailServer, number: int, bot: Credentials) -> None:
        self.matrix, self.bot = matrix, bot
        self.mail = server.peer(f"owner{number}")
        self.mail_bot = server.address(f"bot{number}")
        self.room = matrix.create_room(invite=[bot.user_id], is_direct=True)

    def heard(self) -> list[str]:
        events = self.matrix.history(self.room, limit=500)
        return [one.body for one in events if one.sender == self.bot.user_id and "body" in one.content]

    def mails(self) -> list[str]:
        return [text_of(mail) for mail in own(self.mail.list(), self.mail_bot)]


@pytest.mark.parametrize(
    ("by_matrix", "by_mail", "killed"),
    [
        ("approve", "reject", False),
        ("reject", "approve", True),
        ("approve", "reject", True),
        ("approve", "approve", True),
    ],
)
def test_of_two_answers_from_two_channels_one_counts_and_both_are_told_which(
    synapse: Synapse,
    mail_server: MailServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
    by_matrix: str,
    by_mail: str,
    killed: bool,
) -> None:
    """Also if both come in at the start after a kill: what was done is what both were told, once."""
    number = {"approvereject": 0, "rejectapprove": 1, "approveapprove": 2}[by_matrix + by_mail] + 3 * killed
    bot = fresh_credentials("bot")
    owner = _Owner(fresh_user("alice"), mail_server, number, bot)
    mail_address = mail_server.address(f"owner{number}")
    settings = {
        "owner": {"aliases": [owner.matrix.user_id, mail_address]},
        "llm": {"models": {"demo": {"model": "demo/rules"}}, "pools": {"main": ["demo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "tools": {"require_approval": ["memory_write"]},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password),
            "email": email_settings(mail_server, owner.mail_bot, "pw"),
        },
    }  # fmt: skip
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        daemon.wait_until(lambda: bot.user_id in owner.matrix.members(owner.room))
        owner.matrix.send(owner.room, "remember that the code is blue7x")
        daemon.wait_until(lambda: any(NAME.search(text) for text in owner.heard()))
        (name,) = {found[1] for text in owner.heard() if (found := NAME.search(text))}
        if killed:
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
        owner.mail.send(owner.mail_bot, "Question", f"!{by_mail} {name}")
        owner.matrix.send(owner.room, f"!{by_matrix} {name}")
        if killed:
            daemon.up()
        daemon.wait_until(lambda: any(name in text for text in owner.mails()), within_s=60)
        daemon.wait_until(lambda: len(owner.heard()) >= 3, within_s=60)  # question, verdict, answer
        daemon.wait_until(lambda: daemon.work("inbox", "ready", "running") == 0)
        daemon.wait_until(lambda: daemon.work("outbox", "pending", "sending") == 0)
        (by_post,) = [text.replace("`", "") for text in owner.mails() if name in text]
        (in_room,) = [text.replace("`", "") for text in owner.heard() if text.startswith((name, f"`{name}"))]
        documents = "\n".join(path.read_text() for path in daemon.home.rglob("*.md") if path.is_file())
        is_done = documents.count("blue7x") == 1
        for told in (by_post, in_room):
            assert re.search(rf"{name} (is|was) {'approved' if is_done else 'rejected'}", told), told
        if by_matrix == by_mail:
            assert is_done
        assert sum("I will remember" in text for text in owner.heard()) == is_done
        daemon.terminate()
        assert daemon.ended() == 0
