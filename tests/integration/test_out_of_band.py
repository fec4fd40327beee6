"""Commands and reactions while a turn runs in the same conversation: at once, and never twice."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest

from agent_core.messages import Audience, SessionKey
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState
from gateway.store.stores import Pending
from gateway.system.clock import SystemClock
from gateway.system.home import open_home
from tests.doubles.queue import wrapping
from tests.inbound import inbound
from tests.integration.command_world import ANN, DM, SETTINGS, Held, Mind, asked, settled, talking, texts


class TestBesideATurn:
    async def test_commands_do_not_wait_for_the_turn(self, tmp_path):
        """While the model thinks, `!help`, `!status` and `!approve` are answered; then the question is."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            told = [await asked(one, command) for command in ("!help", "!status", "!approve")]
            mind.gate.set()
            await settled(one, settled=4)
        assert told[0].text.startswith("These are the commands")
        assert told[1].text.startswith("I have been running")
        assert told[1].text.endswith("\n\nNothing waits for your decision."), (
            "a paragraph, not part of the list"
        )
        assert told[2].text == "Nothing waits for your decision."
        assert one.built.out_of_band.sessions.failed == 0, "a run beside a turn fails only if it is told to"
        assert texts(one)[-1] == "answer 1"
        assert len(mind.asked) == 1

    @pytest.mark.parametrize("word", ["stop", "STOP!!", "Stopp", "halt"])
    async def test_a_bare_stop_stops(self, tmp_path, word):
        """What a frightened person types; the control: with nothing to stop it goes to the model."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            assert (await asked(one, word)).text == "answer 1"
            mind.thinking = anyio.Event()
            one.server.say(ANN, "slow second")
            await mind.thinking.wait()
            assert (await asked(one, word)).text == "Stopped: I do not answer 1 message."
            mind.gate.set()
            assert (await asked(one, "third")).text.startswith("answer")
            assert len(texts(one)) == 3

    async def test_a_word_that_may_mean_more_is_told_how_to_stop(self, tmp_path):
        """At once, and it stops nothing by itself."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            for words in ("Cancel!", "vergiss es"):
                told = await asked(one, words)
                assert told.text == "I am still working on what you wrote before. `!stop` ends that."
            one.server.say(ANN, "stop the music")
            mind.gate.set()
            await settled(one, settled=4)
        assert texts(one)[-2:] == ["answer 1", "answer 2"]

    async def test_a_message_waits_for_the_turn(self, tmp_path):
        """The control of the test above: what is no command has its turn when the one before it has ended."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            one.server.say(ANN, "no command")
            await asked(one, "!status")
            assert len(mind.asked) == 1
            mind.gate.set()
            await settled(one, settled=3)
        assert texts(one)[1:] == ["answer 1", "answer 2"]

    async def test_every_place_is_taken(self, tmp_path):
        """Commands need no place of those that the slow turns have taken."""
        mind = Mind()
        people = [f"@p{number}:hs.test" for number in range(6)]
        few = {**SETTINGS, "gateway": {"max_concurrent_turns": 4}}
        async with talking(tmp_path, mind, settings=few) as one:
            for person in people:
                one.server.say(person, "slow")
            with anyio.fail_after(60):
                while len(mind.asked) < 4 or len(await one.built.store.inbox.rows()) < 6:
                    await anyio.sleep(0.01)
            assert one.built.dispatcher.full()
            told = await asked(one, "!status", person=people[-1])
            mind.gate.set()
            await settled(one, settled=7)
        assert told.text.startswith("I have been running")

    async def test_anew_beside_a_turn(self, tmp_path):
        """`!new` during a turn begins anew behind it: its answer still belongs to what was before."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "the first of all")
            one.server.say(ANN, "slow second")
            await mind.thinking.wait()
            mind.thinking = anyio.Event()
            told = await asked(one, "!new")
            mind.gate.set()
            await one.server.answers(3, conversation=DM)
            await asked(one, "third")
        assert "1 message waits from before" in told.text
        assert "the first of all" in mind.shown[1]
        assert "the first of all" not in mind.shown[2]
        assert "slow second" not in mind.shown[2]

    async def test_many_commands_beside_a_turn(self, tmp_path):
        """A burst of commands during a turn: each is answered once, in order, and the turn too."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            one.server.say(ANN, "slow first")
            await mind.thinking.wait()
            for _ in range(10):
                one.server.say(ANN, "!help new")
                one.server.say(ANN, "!help stop")
            await one.server.answers(20, conversation=DM)
            mind.gate.set()
            await settled(one, settled=21)
        said = texts(one)
        assert len(said) == 21
        assert [text.split(":")[0] for text in said[:20]] == ["`!new`", "`!stop`"] * 10

    async def test_after_a_kill_commands_come_first(self, tmp_path):
        """A command that was accepted behind a question, and not answered when the process was killed, is
        answered at the start while the question is worked on again."""
        home = open_home(tmp_path)
        async with await SqliteQueue.open(home.database, clock=SystemClock()) as store:
            question, command = _said("slow first"), _said("!status")
            await store.inbox.accept("matrix", "bot", [Pending(question)], {})
            assert await store.turns.claim(question.session) is not None
            await store.inbox.accept("matrix", "bot", [Pending(command, alone=True)], {})
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            (told,) = await one.server.answers(1, conversation=DM)
            mind.gate.set()
            await settled(one, settled=2)
        assert told.text.startswith("I have been running")
        assert texts(one)[1:] == ["answer 1"]


async def test_a_command_that_hangs_is_noticed(tmp_path):
    """
    One that never comes back is a stand-still as a turn would be, while others are answered; once it is done all is
    well again.
    """
    held = []

    def hold(store):
        held.append(Held(store, "questions", after=False))
        return held[0]

    async with talking(tmp_path, Mind(), wrap_queue=wrapping(approvals=hold), turn_allowed_s=1.0) as one:
        one.server.say(ANN, "!approve")
        with anyio.fail_after(60):
            await held[0].reached.wait()
        await asked(one, "!help", person="@bob:hs.test")
        with anyio.fail_after(60):
            while one.built.watchdog.reason() is None:
                await anyio.sleep(0.05)
        told = one.built.watchdog.reason()
        held[0].go.set()
        with anyio.fail_after(60):
            while one.built.watchdog.reason() is not None:
                await anyio.sleep(0.05)
        await settled(one, settled=2)
    assert told.startswith("a command has been running")


async def test_what_came_by_a_channel_that_is_off_now_waits_untouched(tmp_path):
    """A command that waits for a channel which is not there any more is neither answered nor given up."""
    home = open_home(tmp_path)
    command = _said("!status").model_copy(update={"channel": "gone", "session": SessionKey("gone", DM)})
    async with await SqliteQueue.open(home.database, clock=SystemClock()) as store:
        await store.inbox.accept("gone", "bot", [Pending(command, alone=True)], {})
    async with talking(tmp_path, Mind()) as one:
        await asked(one, "!status")
        (waiting,) = await one.built.store.inbox.rows(session=command.session)
    assert (waiting.state, waiting.attempts) == (InboxState.READY, 0)


def _said(text):
    return inbound(
        SessionKey("matrix", DM), ANN, text, text, received_at=datetime.now(UTC), audience=Audience.DIRECT
    )
