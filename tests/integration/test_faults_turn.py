"""
The whole gateway when the model fails, when somebody else takes a turn over, and when it starts and stops.

Whatever comes out of a model, a message ends in one answer or one apology in plain words, and the next one is
answered as if nothing had been.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.backoff import BackoffPolicy
from agent_core.errors import ModelUnavailable
from agent_core.llm.demo.demo_model import EchoModel
from agent_core.messages import OutboundKind, SessionKey
from agent_core.models import Message, ModelChunk, ToolDefinition
from agent_core.storage import JsonlMemory
from gateway.store.stores import Completion, NewOutbound, StoreUnavailable
from gateway.system.clock import SystemClock
from gateway.turns import failure_and_deferral
from gateway.turns.turn_kinds import TurnPolicy
from tests.doubles.queue import wrapping
from tests.integration.gateway_world import world

ANN = SessionKey("loopback", "dm-ann")


# ── the model ──


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("!empty", OutboundKind.APOLOGY, "empty"),
        ("!garbage", OutboundKind.REPLY, ""),
        ("!toolfail", OutboundKind.REPLY, ""),
        ("!endless", OutboundKind.APOLOGY, "to spend on one message or in a day"),
        ("!auth", OutboundKind.APOLOGY, "my operator"),
        ("!ratelimit", OutboundKind.REPLY, "It works again"),
        ("!timeout 1", OutboundKind.REPLY, "It works again"),
        ("!cut", OutboundKind.REPLY, "It works again"),
        ("!toolong", OutboundKind.REPLY, "It works again"),
        ("!toolong always", OutboundKind.APOLOGY, "longer than"),
        ("!crash", OutboundKind.APOLOGY, "my operator can find it in the log"),
    ],
)
async def test_a_failing_model_ends_in_one_answer_or_one_apology(
    text: str, kind: OutboundKind, words: str, tmp_path: Path
) -> None:
    """Plain words, no internals, and the next message is answered."""
    async with world(tmp_path, settings={"llm": {"limits": {"seconds": 1.5}}}) as there:
        told = await there.asked(text)

        assert told.kind is kind
        assert words in told.text
        if kind is OutboundKind.APOLOGY:
            assert not any(
                word in told.text for word in ("Error", "Traceback", "demo", "Exception", "will try")
            )
        assert (await there.asked("hello")).kind is OutboundKind.REPLY
        await there.server.answers(2)
        assert len(there.server.seen()) == 2


class Away:
    """A model that cannot be reached."""

    def __init__(self) -> None:
        self.asked = 0

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        self.asked += 1
        raise ModelUnavailable("connection refused", model="away")


async def test_an_outage_beyond_the_budget_ends_in_one_apology(tmp_path: Path) -> None:
    """It is tried again within the budget, then given up once, and it never counts as a start too many."""
    model = Away()
    async with world(
        tmp_path, models={"demo": model}, policy=TurnPolicy(max_attempts=1, outage_budget_s=1.0)
    ) as there:
        told = await there.asked("hello", within_s=30)

        assert told.kind is OutboundKind.APOLOGY
        assert "cannot be reached" in told.text
        assert "please ask me again later" in told.text
        assert model.asked >= 2
        await anyio.sleep(0.3)
        assert len(there.server.seen()) == 1
        assert await there.inbox() == {"dead": 1}


async def test_a_deferred_head_keeps_its_place(tmp_path: Path) -> None:
    """While the first message waits for the model, the second one waits behind it; other people do not."""
    async with world(tmp_path) as there:
        there.server.say("ann", "!timeout 1")
        there.server.say("ann", "second")
        await there.asked("hello", person="bob")
        answers = await there.server.answers(2, conversation="dm-ann", within_s=30)

        assert "It works again" in answers[0].text
        assert "second" in answers[1].text


class AwayForAWhile(EchoModel):
    """A model that cannot be reached until it is said to be back."""

    back = False

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        if self.back:
            return await super().chat(messages, tools, stream=stream)
        raise ModelUnavailable("connection refused", model="away")


async def test_an_answer_to_somebody_ends_the_wait_of_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that answers one conversation again is asked for the others at once."""
    monkeypatch.setattr(failure_and_deferral, "_MODEL_RETRY", BackoffPolicy(first_s=300.0, cap_s=300.0))
    model = AwayForAWhile()
    async with world(tmp_path, models={"demo": model}) as there:
        there.server.say("ann", "hello")
        while (await there.inbox()) != {"ready": 1} or not (await there.built.store.inbox.rows(limit=1))[
            0
        ].error:
            await anyio.sleep(0.02)
        model.back = True
        assert "hi" in (await there.asked("hi", person="bob")).text
        notice, told = await there.server.answers(2, conversation="dm-ann", within_s=60)
        assert notice.kind is OutboundKind.NOTICE
        assert "hello" in told.text


# ── the turn ──


class Around:
    """A store with something wrong in it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Stumbling(Around):
    """Cannot record the first steps: a disk that is full for a moment, in the middle of a turn."""

    failures = 2

    async def record_step_start(self, turn: Any, step: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the disk is full", path="gateway.db", operation="step")
        await self.inner.record_step_start(turn, step)


class Abandoning(Stumbling):
    """The naive twin: nobody gives the claim back."""

    async def release(self, turn: Any) -> None:
        return


async def test_a_turn_that_the_store_interrupts_is_taken_up_again(tmp_path: Path) -> None:
    """Its session does not stand still until the next start."""
    async with world(tmp_path, wrap_queue=wrapping(turns=Stumbling)) as there:
        told = await there.asked("remember that I like tea", within_s=30)

        assert told.kind is OutboundKind.REPLY
        assert await there.inbox() in ({"settled": 1}, {"answered": 1})


async def test_a_claim_that_is_not_given_back_stops_the_session(tmp_path: Path) -> None:
    """Negative control for the one above."""
    async with world(tmp_path, wrap_queue=wrapping(turns=Abandoning)) as there:
        there.server.say("ann", "remember that I like tea")
        with pytest.raises(TimeoutError):
            await there.server.answers(1, within_s=4)

        assert await there.inbox() == {"running": 1}


class Overtaken(EchoModel):
    """While it thinks, another process takes the turn over and answers it."""

    store: Any = None

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        if self.store is not None:
            store, self.store = self.store, None
            await store.maintenance.recover()
            turn = await store.turns.claim(ANN)
            await store.turns.complete(
                turn, Completion(outbound=[NewOutbound("loopback", "bot", ANN, "from the other one")])
            )
        return await super().chat(messages, tools, stream=stream)


async def test_a_lost_turn_is_thrown_away(tmp_path: Path) -> None:
    """Who lost the turn says nothing, writes nothing, and answers the next message."""
    model = Overtaken()
    async with world(tmp_path, models={"demo": model}) as there:
        model.store = there.built.store
        there.server.say("ann", "hello")
        there.server.say("ann", "again")
        there.built.deliveries["loopback"].wake()
        answers = await there.server.answers(2, within_s=60)

        assert [each.text for each in answers] == ["from the other one", "echo: again"]
    tail = await JsonlMemory(tmp_path, clock=SystemClock()).load_history(str(ANN))
    assert [message.content for message in tail.messages] == ["again", "echo: again"]


# ── start and stop ──


class Unready(Around):
    """A store whose disk is away when the gateway starts."""

    async def recover(self) -> None:
        raise StoreUnavailable("the disk reports an error", path="gateway.db", operation="recover")


async def test_a_start_that_waits_for_the_disk_can_be_stopped(tmp_path: Path) -> None:
    """The first signal is enough, also while nothing works yet."""
    async with world(tmp_path, wrap_queue=wrapping(maintenance=Unready)) as there:
        await anyio.sleep(0.2)
        assert not there.ended.is_set()
        there.built.stop()
        with anyio.fail_after(60):
            await there.ended.wait()


async def test_a_stop_parks_a_turn_that_takes_too_long(tmp_path: Path) -> None:
    """It is given back without counting as a start, and answered after the next start."""
    async with world(tmp_path, settings={"gateway": {"drain_seconds": 0.2}}) as there:
        there.server.say("ann", "!slow 20")
        while await there.inbox() != {"running": 1}:
            await anyio.sleep(0.01)
        server = there.server
    assert server.seen() == []

    async with world(tmp_path, server=server, models={"demo": EchoModel()}) as there:
        answers = await server.answers(1)
        [row] = await there.built.store.inbox.rows()

        assert answers[0].text == "echo: !slow 20"
        assert row.attempts == 1


async def test_a_stop_takes_nothing_more_and_sends_what_is_ready(tmp_path: Path) -> None:
    """What is said while it drains is neither acknowledged nor lost; the turn in hand is answered."""
    async with world(tmp_path) as there:
        there.server.say("ann", "!slow 1")
        while await there.inbox() != {"running": 1}:
            await anyio.sleep(0.01)
        there.built.stop()
        await anyio.sleep(0.1)
        there.server.say("ann", "too late")
        await there.ended.wait()
        server = there.server
        assert len(server.seen()) == 1
        assert server.acknowledged == 1

    async with world(tmp_path, server=server):
        answers = await server.answers(2)

        assert "too late" in answers[1].text
