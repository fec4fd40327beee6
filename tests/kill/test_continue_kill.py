"""
`!continue` and deaths: whatever moment the process is killed at, the list is shown once, a conversation is taken over
once, and the one that it was taken from is byte for byte what it was.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_core.messages import SessionKey
from devservers import Credentials, MailPeer, MailServer, MatrixPeer, Synapse
from tests.daemon import Daemon, email_settings, matrix_settings
from tests.kill.conftest import random_kills
from tests.kill.scenario import Nursery, Scenario
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

ANN = "@ann:hs.test"
HERE, THERE = f"dm-{ANN}", "second"
MOMENTS = [
    "accepted",
    "inbox.accept.after",
    "turns.claim.after",
    "state.write.before",
    "state.write.after",
    "turns.complete.before",
    "turns.complete.after",
    "outbox.sending.after",
    "taken",
    "outbox.record_send.after",
    "memory.append_message.before",
    "memory.append_message.after",
]
TAKEN = "[Taken over from"
KILLS = random_kills()[1]
ROUNDS = max(3, KILLS // 2)


def history(home: Path, session: SessionKey) -> list[dict[str, str]]:
    """The lines of a conversation."""
    path = home / "sessions" / f"{session.file_name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def taken_over(home: Path, session: SessionKey) -> int:
    """How often something was taken over there."""
    return sum(TAKEN in line["content"] and line["role"] == "assistant" for line in history(home, session))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("moment", MOMENTS)
def test_it_is_taken_over_once(moment: str, number: int, nursery: Nursery, tmp_path: Path) -> None:
    """Killed around the list and around the number; the next question is answered in its place."""
    world = Scenario(tmp_path, nursery, approval="strangers")
    home, there = tmp_path / "home", SessionKey("matrix", THERE)
    world.say(ANN, conversation=THERE)
    world.say(ANN)
    world.live_until_quiet()
    before = history(home, there)
    for native_id, text in (("$list", "!continue"), ("$take", "!continue 1")):
        world.server.say(ANN, text, conversation=HERE, native_id=native_id)
        world.live(die=f"{moment}#{number}")
        world.live_until_quiet()
    world.say(ANN)
    world.live_until_quiet()

    world.server.refresh()
    seen = [each.text.strip()[:24] for each in world.server.seen(HERE)]
    assert seen == ["re: #2", "Your other conversations", "We continue #1 (matrix) ", "re: #3"]
    assert world.deaths or number == 2 or "append" in moment
    assert taken_over(home, SessionKey("matrix", HERE)) == 1
    assert history(home, there) == before


def test_lines_that_are_written_twice_are_found_out(nursery: Nursery, tmp_path: Path) -> None:
    """Negative control: with a history that does not know its lines a death between file and queue doubles them."""
    world = Scenario(tmp_path, nursery, approval="strangers", control="writes_twice")
    world.say(ANN, conversation=THERE)
    world.say(ANN)
    world.live_until_quiet()
    world.server.say(ANN, "!continue", conversation=HERE, native_id="$list")
    world.live_until_quiet()
    world.server.say(ANN, "!continue 1", conversation=HERE, native_id="$take")
    assert world.live(die="memory.append_message.after") == -signal.SIGKILL
    world.live_until_quiet()
    assert taken_over(tmp_path / "home", SessionKey("matrix", HERE)) > 1


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300 + 60 * ROUNDS, func_only=True)
def test_between_real_mail_and_a_real_room(
    synapse: Synapse,
    mail_server: MailServer,
    fresh_credentials: Callable[[str], Credentials],
    fresh_user: Callable[[str], MatrixPeer],
    fresh_mailbox: Callable[[str], MailPeer],
    tmp_path: Path,
) -> None:
    """SIGKILLs at random moments around the list and the number: one answer to each, one take-over each time."""
    chance = chance_of("continue")
    bot, bot_mail = fresh_credentials("bot"), fresh_mailbox("bot")
    owner, owner_mail = fresh_user("owner"), fresh_mailbox("owner")
    settings = {
        "owner": {"aliases": [owner.user_id, owner_mail.address]},
        "llm": {"models": {"echo": {"model": "demo/echo"}}, "pools": {"main": ["echo"]}, "default_pool": "main"},
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": matrix_settings(synapse, bot.user_id, bot.password, batching="each"),
            "email": email_settings(
                mail_server, bot_mail.address, bot_mail.password, batching="each", probe_grace_s=2
            ),
        },
    }  # fmt: skip
    with Daemon(tmp_path / "home", settings) as daemon:
        daemon.up()
        room = owner.create_room(invite=[bot.user_id], is_direct=True)
        daemon.wait_until(lambda: bot.user_id in owner.members(room))

        def answers(sign: str) -> list[str]:
            said = [event.body for event in owner.history(room, limit=500) if event.sender == bot.user_id]
            return [body for body in said if sign in body]

        def say(text: str, sign: str, wanted: int) -> None:
            """Say it, kill at a random moment or two, and wait for its answer."""
            owner.send(room, text)
            for _ in range(chance.randint(1, 2)):
                time.sleep(chance.choice([chance.uniform(0, 0.4), chance.uniform(0.3, 2.0)]))
                daemon.kill()
                assert daemon.ended() == -signal.SIGKILL
                TALLY["of the daemon around !continue"] += 1
                daemon.start()
            daemon.wait_until(lambda: len(answers(sign)) >= wanted, within_s=60)

        for number in range(1, ROUNDS + 1):
            sent = owner_mail.send(bot_mail.address, f"Herons {number}", f"heron-{number} in the delta")
            daemon.wait_until(
                lambda: sum(mail["In-Reply-To"] == sent for mail in owner_mail.list()) == 1,  # noqa: B023 - used at once
                within_s=60,
            )
            say("!continue", "Your other conversations", number)
            assert f"1. Herons {number} (email" in answers("Your other conversations")[-1]
            say("!continue 1", "We continue", number)
            say(f"word-{number}", "word-", number)
        daemon.wait_until(lambda: bool(daemon.asked("/readyz")[1].get("ready")), within_s=60)
        time.sleep(2)  # a second answer would come now
        assert len(answers("Your other conversations")) == ROUNDS
        assert len(answers("We continue")) == ROUNDS
        assert len(answers("word-")) == ROUNDS
        assert len(owner_mail.list()) == ROUNDS
        assert daemon.work("outbox", "unknown", "dead") == 0
        daemon.terminate()
        assert daemon.ended() == 0
    here = SessionKey("matrix", room)
    taken = [line["content"] for line in history(daemon.home, here) if TAKEN in line["content"]]
    assert len(taken) == ROUNDS
    for number in range(1, ROUNDS + 1):
        assert sum(f"heron-{number} in the delta" in content for content in taken) >= 1
    for path in (daemon.home / "sessions").glob("email*.jsonl"):
        assert len(path.read_text().splitlines()) == 2
