"""
What squidbot itself says to a German owner, at a real homeserver and by real mail: the question for an approval and
"ja", a reminder that comes late, the help. The log and the command line stay English.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devservers import Credentials, MailServer, MatrixPeer, Synapse
from tests.daemon import Daemon
from tests.integration.test_approvals_by_mail import Harness, text_of
from tests.integration.test_everyday_on_a_phone import PHONE_COLUMNS, PHONE_LINES
from tests.integration.test_questions_ring import bodies, settings
from tests.servers import own_mail_server

pytestmark = pytest.mark.integration


mail_server = own_mail_server("bot", "guest", "eve", "owner", count=1)


def german(synapse: Synapse, bot: Credentials, owner: str) -> dict[str, Any]:
    said = settings(synapse, bot, owner)
    schedule = {"misfire_grace_minutes": 0.1, "misfire": "say"}
    return {**said, "language": "de", "agents": {**said["agents"], "schedule": schedule}}


def test_a_german_owner_at_a_homeserver(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    bot, anna = fresh_credentials("bot"), fresh_user("anna")
    home, configured = tmp_path / "home", german(synapse, bot, anna.user_id)

    def said(words: str) -> list[str]:
        return [text for text in bodies(anna, room, bot) if words in text]

    with Daemon(home, configured) as daemon:
        daemon.up()
        room = anna.create_room([bot.user_id], is_direct=True)
        daemon.wait_until(lambda: bot.user_id in anna.members(room))
        anna.send(room, "remember that the code is blue7x")
        daemon.wait_until(lambda: said("Ich brauche dein Ja"), within_s=60)
        (question,) = said("Ich brauche dein Ja")
        assert "um mein Gedächtnis zu ändern" in question
        assert "ja" in question and "Das wartet bis zum " in question and " Uhr." in question
        lines = [
            part for line in question.splitlines() for part in range(0, max(len(line), 1), PHONE_COLUMNS)
        ]
        assert len(lines) <= PHONE_LINES
        anna.send(room, "ja")
        daemon.wait_until(lambda: said("ist freigegeben: Ich benutze"), within_s=60)
        anna.send(room, "!help")
        daemon.wait_until(lambda: said("Das sind die Befehle."), within_s=60)
        assert "stoppt, was ich hier tue" in said("Das sind die Befehle.")[0]
        anna.send(room, "!remind in 6 Sekunden Tee trinken")
        daemon.wait_until(lambda: said("Ich erinnere dich, einmal am "), within_s=60)
        daemon.terminate()
        assert daemon.ended() == 0
    time.sleep(15)  # it was due meanwhile, and counts as late
    with Daemon(home, configured) as daemon:
        daemon.up()
        daemon.wait_until(lambda: said("und kommt zu spät.)"), within_s=60)
        assert said("und kommt zu spät.)")[0].startswith("Tee trinken")
        assert "Freigabe" not in daemon.log()
        daemon.terminate()
        assert daemon.ended() == 0


async def test_a_german_owner_by_mail(mail_server: MailServer, tmp_path: Path) -> None:
    house = Harness(mail_server, 0, tmp_path)
    house.language = "de"
    async with house.running():
        await house.write("owner", "write my name")
        question, name = await house.asked("owner", kind="Ich brauche dein Ja")
        assert "ja / nein in der ersten Zeile" in text_of(question)
        await house.write("owner", "Ja, gerne.", to=question)
        await house.mails("owner", lambda text: text.startswith("so:"))
        assert house.tool.written == ["my name"]
        await house.write("owner", "!approve nothing")
        await house.mails("owner", lambda text: "Es gibt nichts namens nothing." in text)
        await house.write("owner", f"!approve {name}")
        await house.mails("owner", lambda text: "war schon vorher freigegeben" in text)
        await house.write("owner", "!help stop")
        await house.mails("owner", lambda text: "stoppt, was ich hier tue." in text)
