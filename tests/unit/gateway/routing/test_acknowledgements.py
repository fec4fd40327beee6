"""How far a message is, shown by channels that can: bounded, in order, and never waited for."""

from __future__ import annotations

import anyio
import pytest

from agent_core.messages import InboundMessage, MessageContext, SessionKey
from channels.base import AckState, Capabilities, Redelivery, SupportsAcknowledgements
from gateway.observability.metrics import REGISTRY
from gateway.routing.acknowledgements import Acknowledgements
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.inbound import inbound

pytestmark = pytest.mark.virtual_time


class StagingChannel(LoopbackChannel):
    """A channel that marks messages; it can be slow, stuck or broken."""

    def __init__(self, *, name: str = "matrix", stages: bool = True) -> None:
        super().__init__(LoopbackServer(), name=name)
        self.capabilities = Capabilities(Redelivery.SAME_KEY, acknowledgements=stages)
        self.shown: list[tuple[str, AckState]] = []
        self.takes_s = 0.0
        self.error: Exception | None = None

    async def acknowledge(self, session: SessionKey, context: MessageContext, stage: AckState) -> None:
        await anyio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error
        self.shown.append((str(context.route["id"]), stage))


def message(number: int, *, conversation: str = "one", kind: str = "message") -> InboundMessage:
    return inbound(
        SessionKey("matrix", conversation),
        "ann",
        "hello",
        f"${number}",
        verified=False,
        kind=kind,
        context={"route": {"id": number}},
    )


def counted(outcome: str) -> float:
    labels = {"channel": "matrix", "outcome": outcome}
    return REGISTRY.get_sample_value("squidbot_acks_total", labels) or 0.0


async def served(stages: Acknowledgements, for_s: float = 100.0) -> None:
    with anyio.move_on_after(for_s):
        await stages.run()


async def test_each_message_is_marked_in_order():
    """What is told of one message arrives in that order, for each message of a turn."""
    channel = StagingChannel()
    channel.takes_s = 0.5
    stages = Acknowledgements({"matrix": channel})
    stages.report([message(1), message(2)], AckState.RECEIVED)
    stages.report([message(1), message(2)], AckState.DONE)
    await served(stages)
    assert channel.shown == [
        ("1", AckState.RECEIVED),
        ("2", AckState.RECEIVED),
        ("1", AckState.DONE),
        ("2", AckState.DONE),
    ]


async def test_a_channel_that_cannot_is_not_told():
    """Without the capability, or without the method, nothing is called; a tick is nobody's message."""
    silent, able = StagingChannel(stages=False), StagingChannel()
    stages = Acknowledgements({"matrix": silent})
    stages.report([message(1)], AckState.DONE)
    await served(stages)
    assert silent.shown == []
    stages = Acknowledgements({"matrix": able})
    stages.report([message(1, kind="tick")], AckState.DONE)
    await served(stages)
    assert able.shown == []
    assert isinstance(able, SupportsAcknowledgements)
    assert not isinstance(LoopbackChannel(LoopbackServer()), SupportsAcknowledgements)


async def test_one_that_hangs_is_given_up_and_counted():
    """A mark that takes too long is left; the next ones are shown."""
    channel = StagingChannel()
    channel.takes_s = 1e6
    stages = Acknowledgements({"matrix": channel})
    before = counted("late")
    stages.report([message(1)], AckState.RECEIVED)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stages.run)
        await anyio.sleep(11)
        channel.takes_s = 0.0
        stages.report([message(2)], AckState.RECEIVED)
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    assert channel.shown == [("2", AckState.RECEIVED)]
    assert counted("late") == before + 1


async def test_one_that_raises_is_counted():
    """An error of a mark goes no further."""
    channel = StagingChannel()
    channel.error = RuntimeError("broken")
    stages = Acknowledgements({"matrix": channel})
    before = counted("failed")
    stages.report([message(1), message(2)], AckState.FAILED)
    await served(stages)
    assert counted("failed") == before + 2


async def test_what_finds_no_room_is_dropped_and_nobody_waits():
    """Telling never blocks: beyond the bound it is counted and forgotten."""
    channel = StagingChannel()
    channel.takes_s = 1.0
    stages = Acknowledgements({"matrix": channel})
    before = counted("dropped")
    stages.report([message(number) for number in range(271)], AckState.RECEIVED)
    assert counted("dropped") == before + 15
    await served(stages, 270)
    assert len(channel.shown) == 256


async def test_another_conversation_does_not_wait_for_a_slow_one():
    """Several lines: what hangs in one conversation does not hold up most others."""
    channel = StagingChannel()
    channel.takes_s = 5.0
    stages = Acknowledgements({"matrix": channel})
    stages.report([message(n, conversation=f"room {n}") for n in range(8)], AckState.RECEIVED)
    await served(stages, 5.5)
    assert len(channel.shown) >= 3
