"""
A robot's mail belongs to the thread of the owner's conversation, whose first words were answered a moment before: they
were in the queue and not yet in the history's file. The mail was taken for one of a thread of its own, and the owner's
next question knew nothing of it.
"""

from __future__ import annotations

import pytest

from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import Message
from gateway.routing.access import Access, Alias
from gateway.store.model import InboxRow, Turn
from gateway.store.states import InboxState
from gateway.turns.commands.command_service import IngestOnly
from tests.clock import EPOCH
from tests.doubles.in_memory_storage import InMemoryMemory

OWNER = "ann@mail.test"
THEIRS = SessionKey("email", "thread-1", OWNER)
ROBOTS = SessionKey("email", "thread-1", "nobody")


def turn():
    """The turn of a robot's mail."""
    message = InboundMessage(
        channel="email", account="bot@mail.test", native_id="<build@p.test>", session=ROBOTS,
        sender=Sender(address="robot@mail.test", verified=True), text="it has failed", received_at=EPOCH,
        context={"read_only": True},
    )  # fmt: skip
    row = InboxRow(1, message, InboxState.RUNNING, 1, 0, EPOCH, "t1", None)
    return Turn("t1", ROBOTS, 1, (row,), 1, 0)


@pytest.mark.parametrize("filed", [True, False], ids=["in the queue", "nowhere: the control"])
async def test_it_joins_the_conversation_whose_words_are_still_in_the_queue(filed):
    """What the queue has is filed before it is asked whose conversation the thread is."""
    memory = InMemoryMemory()
    access = Access([Alias("email", OWNER)], {})

    async def flush(session):
        if filed and session == THEIRS:
            await memory.append_message(str(THEIRS), Message(role="user", content="hello", id="1"))

    done = await IngestOnly(memory, access, flush, store=None).completion(turn())
    places = [place for place, _ in done.others]
    assert (places, len(done.history)) == (([THEIRS], 0) if filed else ([], 1))
