"""`!undo` and `!retry` where others have come in meanwhile, from two devices at once, and after effects."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agent_core.messages import Audience, InboundMessage, MessageContext, Sender, SessionKey
from agent_core.models import ToolResult
from gateway.routing.access import is_admitted
from gateway.store.states import InboxState
from gateway.turns.commands.retry_and_undo import RetryAndUndo
from tests.doubles.agent import StreamingModel, call
from tests.inbound import inbound
from tests.integration.command_world import ANN, BOB, DM, Mind, asked, settled, talking, texts
from tests.integration.gateway_world import Scenario
from tests.integration.test_taint import Notes


async def among_others(one: Scenario, person: str, text: str, number: int) -> str:
    """Say something in the room that was a conversation of the owner alone, now that others are in it."""
    before = len(one.server.seen(DM))
    message = inbound(SessionKey("matrix", DM), person, text, f"$later-{number}", audience=Audience.GROUP)
    await one.hand_over(message)
    return (await one.server.answers(before + 1, conversation=DM))[-1].text


class TestAmongOthers:
    @pytest.mark.parametrize("command", ["!undo", "!retry"])
    async def test_what_was_said_in_private_is_not_touched_before_others(self, tmp_path, command):
        """Its words are not repeated, it is not asked anew before everybody's eyes, and it stays for the owner."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "my heron is ill")
            told = await among_others(one, ANN, command, 1)
            count = len(mind.asked)
            await among_others(one, BOB, "what is new?", 2)
            before_others = mind.shown[-1]
            await asked(one, "go on")
        assert "heron" not in told
        assert "no question here" in told
        assert count == 1
        assert "heron" not in before_others
        assert "heron" in mind.shown[-1]

    async def test_what_everybody_has_seen_is_taken_back(self, tmp_path):
        """The last question that the room can see, not the private one before it."""
        mind = Mind()
        async with talking(tmp_path, mind) as one:
            await asked(one, "my heron is ill")
            await among_others(one, ANN, "the stork is well", 1)
            told = await among_others(one, ANN, "!undo", 2)
            again = await among_others(one, ANN, "!undo", 3)
        assert "stork" in told
        assert "no question here" in again


class TestTwoDevices:
    async def test_one_question_is_asked_anew_and_the_one_before_it_stays(self, tmp_path, monkeypatch):
        """The second `!retry` was accepted before the first was done."""
        mind, retry, other_device = Mind(), RetryAndUndo.retry, [2]

        async def late(self: RetryAndUndo, given: Any) -> Any:
            if other_device:
                await one.hand_over(_said("!retry", other_device.pop()))
            return await retry(self, given)

        monkeypatch.setattr(RetryAndUndo, "retry", late)
        async with talking(tmp_path, mind) as one:
            await asked(one, "alpha")
            await asked(one, "beta")
            await one.hand_over(_said("!retry", 1))
            await settled(one, settled=5)
            await asked(one, "gamma")
            seen = texts(one, ANN)
        assert [each.rpartition("\n")[2] for each in mind.asked] == ["alpha", "beta", "beta", "gamma"]
        assert "alpha" in mind.shown[-1]
        assert sum("not answered yet" in each for each in seen) == 1


class TestLater:
    async def test_what_was_said_after_the_command_stays(self, tmp_path, monkeypatch):
        """The command failed, newer questions were answered, and then the operator has it tried again."""
        mind, undo, failures = Mind(), RetryAndUndo.undo, [1]

        async def failing(self: RetryAndUndo, given: Any) -> Any:
            if failures:
                failures.pop()
                raise RuntimeError("defect")
            return await undo(self, given)

        monkeypatch.setattr(RetryAndUndo, "undo", failing)
        async with talking(tmp_path, mind) as one:
            await asked(one, "alpha")
            await asked(one, "beta")
            await asked(one, "!undo")
            await asked(one, "gamma")
            await asked(one, "!retry")
            (row,) = await one.built.store.inbox.rows(states=[InboxState.DEAD])
            await one.built.store.inbox.requeue(row.id)
            told = (await one.server.answers(6, conversation=DM))[-1].text
            await asked(one, "delta")
        assert failures == []
        assert "`beta`" in told
        assert [word in mind.shown[-1] for word in ("alpha", "beta", "gamma")] == [True, False, True]


def _said(text: str, number: int) -> InboundMessage:
    return inbound(SessionKey("matrix", DM), ANN, text, f"$device-{number}")


class Scarce(Notes):
    """A paper that takes nothing called nothing."""

    async def execute(self, **arguments: Any) -> ToolResult:
        kept = await super().execute(**arguments)
        return ToolResult(content="it is full", is_error=True) if arguments["what"] == "nothing" else kept


class Careful(StreamingModel):
    """Notes what it is asked to note, unless it is told that this was done."""

    def __init__(self) -> None:
        self.questions: list[str] = []

    async def answer(self, messages, tools):
        if messages[-1].role == "user":
            self.questions.append(messages[-1].content)
            wish = re.search(r"note: (\w+)", messages[-1].content)
            if wish and "note (" not in messages[-1].content:
                yield call("note", what=wish[1])
                return
        yield f"so: {len(self.questions)}"


class TestLetIn:
    async def test_what_nobody_has_proved_is_not_proved_by_asking_it_anew(self, tmp_path):
        """A question in the owner's name came out of quarantine; `!retry` of the owner does not vouch for it."""
        async with talking(tmp_path, Mind()) as one:
            sender, why = (
                Sender(address=ANN, verified=False),
                MessageContext(quarantine="sender_not_verified"),
            )
            await one.hand_over(_said("wire it", 1).model_copy(update={"sender": sender, "context": why}))
            (row,) = await one.built.store.inbox.rows(states=[InboxState.QUARANTINED])
            await one.built.store.inbox.admit(row.id)
            await one.server.answers(1, conversation=DM)
            await asked(one, "!retry")
            again = (await one.built.store.inbox.rows())[0].message
        assert again.text == "wire it"
        assert is_admitted(again)


class TestEffects:
    async def test_the_model_knows_what_was_done_for_the_earlier_answer(self, tmp_path):
        """Each time, also when it is asked anew a third time; a question without effects says nothing of it."""
        notes, mind = Scarce(), Careful()
        async with talking(tmp_path, mind, tools=[notes]) as one:
            await asked(one, "hello")
            await asked(one, "!retry")
            without = mind.questions[-1]
            await asked(one, "note: milk")
            await asked(one, "!retry")
            await asked(one, "!retry")
            twice = mind.questions[-1]
            await asked(one, "note: nothing")
            await asked(one, "!retry")
            failed = mind.questions[-1]
        assert notes.kept[:1] == ["milk"]
        assert "milk" not in notes.kept[1:]
        assert "note without success (1×)" in failed
        assert "asked again" not in without
        assert "note (1×)" in twice
        assert "milk" not in twice.partition("[This is asked again")[2]
