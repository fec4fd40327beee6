"""
The real daemon, killed at random moments while it writes answers before people's eyes.

Each answer takes a second and is edited meanwhile. The oracle reads the rooms: every question has exactly one
event that answers it (edits belong to their event), whose newest text is the whole answer.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import anyio
import pytest

from tests.daemon import Daemon, matrix_settings, one_model
from tests.doubles.openai_server import FakeOpenAI, Say
from tests.integration.matrix_bot import call
from tests.kill.conftest import random_kills
from tests.kill.tally import TALLY
from tests.kill.tally import chance as chance_of

_, KILLS = random_kills()
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300 + 30 * KILLS, func_only=True)]
WORDS = [f"word{number} " for number in range(20)]
WHOLE = "".join(WORDS).strip()
APOLOGY = "Sorry, I could not answer this. I crashed each time I tried, so I stopped trying."
ENDS = ([WHOLE], [APOLOGY])
SETTLED_S = 2.0


def outcome(events, bot, asked):
    """For each question the texts that answer it, as a person sees them."""
    newest, answers = {}, {question: [] for question in asked}
    for event in events:
        if event.sender == bot.user_id and event.content:
            newest[event.replaces or event.event_id] = event.body
    for event in events:
        relation = event.content.get("m.relates_to") or {}
        question = relation.get("m.in_reply_to", {}).get("event_id")
        if event.sender == bot.user_id and not event.replaces and question in answers:
            answers[question].append(newest[event.event_id])
    return answers


def test_the_oracle_sees_what_is_wrong():
    """A second event, an unfinished text and a missing answer are all found."""

    class Event:
        def __init__(self, event_id, body, question=None, replaces=None):
            self.sender, self.event_id, self.body, self.replaces = "@bot:hs", event_id, body, replaces
            self.content = {"body": body, "m.relates_to": {"m.in_reply_to": {"event_id": question}}}
            self.user_id = self.sender

    bot = Event("", "")
    found = outcome(
        [
            Event("$1", "word0 …", "$q1"),
            Event("$2", WHOLE, replaces="$1"),
            Event("$3", "word0 …", "$q2"),
            Event("$4", WHOLE, "$q2"),
            Event("$5", "word0 …", "$q3"),
        ],
        bot,
        ["$q1", "$q2", "$q3", "$q4"],
    )
    assert found == {"$q1": [WHOLE], "$q2": ["word0 …", WHOLE], "$q3": ["word0 …"], "$q4": []}


def streaming_settings(model, matrix, **more):
    """A daemon that shows its answers while they are written."""
    return {
        "llm": one_model("m", model.api_base),
        "agents": {"heartbeat": {"enabled": False}},
        "channels": {
            "matrix": {**matrix, "streaming": {"enabled": True, "min_interval_s": 0.2}, **more},
        },
    }


async def test_a_stream_that_is_killed_ends_as_one_answer(
    synapse, fresh_credentials, fresh_user, tmp_path: Path
):
    """
    Whatever the moment: one event per question, and in the end all of the answer is in it; or the apology, if the
    process died of it alone again and again.
    """
    chance = chance_of("streams")
    bot, people = fresh_credentials("bot"), [await call(fresh_user, name) for name in ("alice", "bob")]
    async with FakeOpenAI() as model:
        model.plan(*[Say(*WORDS, pause_s=0.05) for _ in range(40 * (KILLS + 2))])
        settings = {
            "llm": one_model("m", model.api_base),
            "agents": {"heartbeat": {"enabled": False}},
            "channels": {
                "matrix": matrix_settings(
                    synapse,
                    bot.user_id,
                    bot.password,
                    *(peer.user_id for peer in people),
                    batching="each",
                    display={"reply": "always"},
                    streaming={"enabled": True, "min_interval_s": 0.2},
                    ack_reactions=True,
                )
            },
        }
        with Daemon(tmp_path / "home", settings) as daemon:
            await call(daemon.up)
            rooms = {}
            for peer in people:
                room = await call(peer.create_room, [bot.user_id], is_direct=True)
                rooms[room] = peer
                await call(daemon.wait_until, lambda p=peer, r=room: bot.user_id in p.members(r))
            asked = {room: [] for room in rooms}

            async def ask():
                room, peer = chance.choice(list(rooms.items()))
                asked[room].append(await call(peer.send, room, f"question {len(asked[room])}"))

            async def found():
                return {
                    question: texts
                    for room, peer in rooms.items()
                    for question, texts in outcome(
                        await call(peer.history, room, limit=1000), bot, asked[room]
                    ).items()
                }

            for _ in range(KILLS):
                for _ in range(chance.randint(1, 2)):
                    await ask()
                await anyio.sleep(chance.uniform(0.3, 2.5))
                await call(daemon.kill)
                assert await call(daemon.ended) == -signal.SIGKILL
                TALLY["of a daemon that streams its answers"] += 1
                await ask()
                await call(daemon.up)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                if all(texts in ENDS for texts in (await found()).values()):
                    break
                await anyio.sleep(0.5)
            await anyio.sleep(SETTLED_S)  # a second answer would come now
            ended = await found()
            wrong = {question: texts for question, texts in ended.items() if texts not in ENDS}
            apologies = sum(texts == [APOLOGY] for texts in ended.values())

    assert wrong == {}, f"{wrong}\n{daemon.log()[-5000:]}"
    assert apologies == len(re.findall(r"the process ended \d+ times on it", daemon.log()))


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("when", ["killed after the stop", "taken back while away"])
async def test_a_half_sentence_does_not_outlive_its_question(
    synapse, fresh_credentials, fresh_user, tmp_path: Path, when, encrypted
):
    """
    A question is given up in the middle of a streamed answer and the process dies: after the next start nothing
    of the answer is left, neither its event nor an edit, and an answer that was finished is left alone.
    """
    bot, alice = fresh_credentials("bot"), await call(fresh_user, "alice")
    async with FakeOpenAI() as model:
        model.plan(Say(WHOLE), *[Say(*WORDS * 20, pause_s=0.1) for _ in range(5)])
        settings = streaming_settings(
            model, matrix_settings(synapse, bot.user_id, bot.password, alice.user_id)
        )
        with Daemon(tmp_path / "home", settings) as daemon:
            await call(daemon.up)
            room = await call(alice.create_room, [bot.user_id], is_direct=True)
            if encrypted:
                content = {"algorithm": "m.megolm.v1.aes-sha2"}
                await call(alice.call, "PUT", f"/rooms/{room}/state/m.room.encryption", content)
            await call(daemon.wait_until, lambda: bot.user_id in alice.members(room))

            async def left():
                """What the bot has said, whatever it is covered by, and not redacted."""
                chunk = (await call(alice.call, "GET", f"/rooms/{room}/messages?dir=f&limit=300"))["chunk"]
                kinds = ("m.room.message", "m.room.encrypted")
                return [
                    one["event_id"]
                    for one in chunk
                    if one["sender"] == bot.user_id and one["type"] in kinds and one["content"]
                ]

            async def until(condition):
                with anyio.fail_after(60):
                    while not condition(await left()):
                        await anyio.sleep(0.1)

            await call(alice.send, room, "first")
            await until(lambda said: len(said) == 1)
            finished = await left()
            question = await call(alice.send, room, "second")
            await until(lambda said: len(said) >= 3)  # a first look and an edit
            path = f"/rooms/{room}/redact/{question}/taken-back"
            if when == "killed after the stop":
                await call(alice.call, "PUT", path, {})
                await call(daemon.wait_until, lambda: "turn.stopped" in daemon.log())
                await call(daemon.kill)
                await call(daemon.ended)
            else:
                await call(daemon.kill)
                await call(daemon.ended)
                await call(alice.call, "PUT", path, {})
            assert len(await left()) >= 3
            await call(daemon.up)
            await until(lambda said: said == finished)
            await call(alice.send, room, "third")  # and the conversation goes on
            await until(lambda said: len(said) >= 2 and said[0] == finished[0])
