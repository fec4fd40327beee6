"""
The real daemon at a real Synapse, killed while somebody says yes to what a tool would do, and others write.

One question for each wish, one yes by a sign, and after it the tool has run once and the wish is answered once; what a
guest asks meanwhile, and the guest's own signs, change nothing of that.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devservers import Credentials, MatrixPeer, Synapse
from tests.daemon import Daemon, matrix_settings
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

WISHES = 3
WITHIN_S = 90.0
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 150 * WISHES, func_only=True)]
NAME = re.compile(r"^\*\*(a[0-9a-f]{6})\*\*")


def test_sigkill_amid_approvals_in_a_room(
    synapse: Synapse,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    tmp_path: Path,
) -> None:
    """Three deaths around every yes: at the question, at the sign, at the answer."""
    chance = chance_of("approvals on a real homeserver")
    bot, owner, guest = fresh_credentials("bot"), fresh_user("alice"), fresh_user("bob")
    settings = {
        "owner": {"aliases": [owner.user_id]},
        "llm": {"models": {"demo": {"model": "demo/rules"}}, "pools": {"main": ["demo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "tools": {"require_approval": ["memory_write"], "approval_timeout_minutes": 30},
        "channels": {"matrix": matrix_settings(synapse, bot.user_id, bot.password, guest.user_id, batching="each")},
    }  # fmt: skip
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        room = owner.create_room(invite=[bot.user_id], is_direct=False)
        aside = guest.create_room(invite=[bot.user_id], is_direct=True)
        daemon.wait_until(lambda: all(bot.user_id in owner.members(room) for _ in "."))
        owner.invite(room, guest.user_id)
        guest.join(room)
        daemon.wait_until(lambda: bot.user_id in guest.members(aside))

        def said(where: str, peer: MatrixPeer) -> list[tuple[str, str]]:
            events = peer.history(where, limit=500)
            return [
                (one.event_id, one.body)
                for one in events
                if one.sender == bot.user_id and "body" in one.content
            ]

        def questions() -> list[tuple[str, str]]:
            return [
                (event_id, found[1]) for event_id, body in said(room, owner) if (found := NAME.match(body))
            ]

        def dies() -> None:
            time.sleep(chance.uniform(0, 0.6))
            daemon.kill()
            assert daemon.ended() == -signal.SIGKILL
            TALLY["amid approvals on a real Synapse"] += 1

        def sign(peer: MatrixPeer, event_id: str, key: str) -> None:
            relation = {"rel_type": "m.annotation", "event_id": event_id, "key": key}
            peer.send_event(room, "m.reaction", {"m.relates_to": relation})

        for number in range(1, WISHES + 1):
            mention = {"m.mentions": {"user_ids": [bot.user_id]}}
            owner.send(room, f"remember that the code {number} is blue{number}x", **mention)
            dies()
            guest.send(aside, f"hello {number}")
            daemon.start()
            daemon.wait_until(lambda number=number: len(questions()) >= number, within_s=WITHIN_S)
            event_id, _ = questions()[-1]
            sign(guest, event_id, "👍")
            sign(guest, event_id, "👎")
            sign(owner, event_id, "👍")
            dies()
            sign(owner, event_id, "✅")
            daemon.start()
            daemon.wait_until(
                lambda number=number: (
                    sum("I will remember" in body for _, body in said(room, owner)) >= number
                ),
                within_s=WITHIN_S,
            )
            dies()
            daemon.up()
        daemon.wait_until(lambda: daemon.work("inbox", "ready", "running") == 0, within_s=WITHIN_S)
        daemon.wait_until(lambda: len(said(aside, guest)) >= WISHES, within_s=WITHIN_S)
        daemon.wait_until(lambda: daemon.work("outbox", "pending", "sending") == 0, within_s=WITHIN_S)
        time.sleep(2)  # a second answer would come now

        names = [name for _, name in questions()]
        told = [body for _, body in said(room, owner)]
        assert len(names) == len(set(names)) == WISHES, told
        for number in range(1, WISHES + 1):
            assert sum(f"blue{number}x" in body and "I will remember" in body for body in told) == 1, told
        assert len(said(aside, guest)) == WISHES
        assert daemon.work("outbox", "unknown", "dead") == 0
        documents = "\n".join(path.read_text() for path in daemon.home.rglob("*.md") if path.is_file())
        assert [documents.count(f"blue{number}x") for number in range(1, WISHES + 1)] == [1] * WISHES
        daemon.terminate()
        assert daemon.ended() == 0
