"""
Negative controls: gateways with one defect each, which the oracle must find.

Each defect is what a plausible simpler design would do. They are put around the parts from outside; the
gateway itself has no switch for being wrong.
"""

from __future__ import annotations

import os
import secrets
import signal
from dataclasses import replace
from typing import Any

from agent_core.messages import OutboundMessage
from channels.base import Receipt
from gateway.store.stores import Completion, Pending, Queue
from gateway.turns.questions.questions import OWNER_QUESTIONS
from tests.doubles.loopback import Delivered, LoopbackChannel
from tests.doubles.queue import wrapping
from tests.kill.points import Striker


class _AcknowledgesFirst(LoopbackChannel):
    """Tells the server "got it" before it is got."""

    async def _receive(self, inbox: Any, link: Any) -> None:
        accept = inbox.accept

        async def acknowledge_first(messages: Any, positions: Any = None) -> None:
            await self._server.acknowledge(link, int(positions["next"]))
            self._point("control.acknowledged")
            await accept(messages, positions)

        inbox.accept = acknowledge_first
        await super()._receive(inbox, link)


class _NewKeys(LoopbackChannel):
    """Every attempt has a key of its own."""

    async def deliver(self, message: OutboundMessage, *, uncertain: Any) -> Receipt:
        fresh = message.model_copy(update={"id": secrets.token_hex(16)})
        return await super().deliver(fresh, uncertain=uncertain)


class _DiesComposing(LoopbackChannel):
    """The process dies of composing the answer to the first message; a defect no oracle looks for."""

    async def deliver(self, message: OutboundMessage, *, uncertain: Any) -> Receipt:
        if message.text.startswith("re: #1"):
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().deliver(message, uncertain=uncertain)


class _DiesProbing(LoopbackChannel):
    """The process dies of asking the server whether it has a message."""

    async def probe(self, message: OutboundMessage) -> Receipt | None:
        os.kill(os.getpid(), signal.SIGKILL)
        return None


class _Around:
    def __init__(self, inner: Any) -> None:
        self._real = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _SendsFirst(_Around):
    """Sends the answer, then notes that it was sent."""

    def __init__(self, inner: Any, channel: LoopbackChannel, point: Striker) -> None:
        super().__init__(inner)
        self._channel = channel
        self._point = point

    async def complete(self, turn: Any, completion: Completion) -> Any:
        for new in completion.outbound:
            # The link is there: the message came over it.
            await self._channel._server.take(
                self._channel._connected(),
                Delivered(key=secrets.token_hex(16), conversation=new.session.conversation, text=new.text),
            )
        self._point("control.sent")
        return await self._real.complete(turn, Completion(history=completion.history, usage=completion.usage))


class _ForgetsSteps(_Around):
    """A restarted turn begins anew."""

    async def steps(self, turn: Any) -> list[Any]:
        return []


class _ForgetsHistory(_Around):
    """What was not in the file yet when the process died is not looked for."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._known: set[int] | None = None

    async def lines(self, session: Any = None) -> list[Any]:
        lines = await self._real.lines(session)
        if self._known is None:  # the look at the start
            self._known = {line.id for line in lines}
        return [line for line in lines if line.id not in self._known]


class _WritesTwice(_Around):
    """A history that does not recognise a line that it has already."""

    async def append_message(self, session_id: str, *messages: Any, **named: Any) -> None:
        bare = [message.model_copy(update={"id": None}) for message in messages]
        await self._real.append_message(session_id, *bare, **named)


class _AsksAnew(_Around):
    """Whatever waits for the owner is asked about whenever it is found."""

    async def accept(self, channel: str, account: str, batch: Any, *more: Any) -> Any:
        if channel == OWNER_QUESTIONS.channel:
            fresh = secrets.token_hex(4)
            batch = [
                Pending(each.message.model_copy(update={"native_id": f"{each.message.native_id}-{fresh}"}))
                for each in batch
            ]
        return await self._real.accept(channel, account, batch, *more)


class _ForgetsStops(_Around):
    """A stop reaches only what runs, and nothing is noted of it."""

    async def accept(self, channel: str, account: str, batch: Any, positions: Any, *_: Any) -> Any:
        return await self._real.accept(channel, account, batch, positions)


class _PostsAgain(_Around):
    """What was posted before a death is posted again by the turn that is done again."""

    async def post(self, outbound: Any, *, once: Any = None, **named: Any) -> Any:
        return await self._real.post(outbound, once=None, **named)


class _SettlesAfterwards(_Around):
    """What a message says of a question is noted in a transaction of its own."""

    def __init__(self, inner: Any, approvals: Any, point: Striker) -> None:
        super().__init__(inner)
        self._approvals = approvals
        self._point = point

    async def accept(self, channel: str, account: str, batch: Any, *more: Any) -> Any:
        rows = await self._real.accept(channel, account, [replace(each, settles={}) for each in batch], *more)
        new = {row.message.native_id for row in rows}
        for each in batch:
            for name, verdict in each.settles.items():
                if each.message.native_id in new:
                    self._point("control.between")
                    await self._approvals.decide(name, verdict)
        return rows


class _ConsolidatesInTwoWrites(_Around):
    """First the summary, then the cursor."""

    def __init__(self, inner: Any, point: Striker) -> None:
        super().__init__(inner)
        self._point = point

    async def save_consolidation(self, session_id: str, *, summary: str, cursor: int, **_: Any) -> None:
        await self._real.save_session_summary(session_id, summary)
        self._point("control.between")
        await self._real.save_consolidated_cursor(session_id, cursor)


class _ForgetsFacts(_Around):
    """The last writer wins."""

    async def save_global_memory(self, scope: Any, text: str, **named: Any) -> Any:
        named["base_version"] = None
        return await self._real.save_global_memory(scope, text, **named)


def channel(control: str, plain: type[LoopbackChannel]) -> type[LoopbackChannel]:
    """The channel with its defect, if it has one."""
    defects: dict[str, type[LoopbackChannel]] = {
        "acknowledges_first": _AcknowledgesFirst,
        "new_keys": _NewKeys,
        "dies_composing": _DiesComposing,
        "dies_probing": _DiesProbing,
    }
    return defects.get(control, plain)


def queue(control: str, plain: Queue, channel: LoopbackChannel, point: Striker) -> Queue:
    """The queue with its defect, if it has one."""
    match control:
        case "sends_first":
            return wrapping(turns=lambda turns: _SendsFirst(turns, channel, point))(plain)
        case "forgets_steps":
            return wrapping(turns=_ForgetsSteps)(plain)
        case "asks_anew":
            return wrapping(inbox=_AsksAnew)(plain)
        case "forgets_stops":
            return wrapping(inbox=_ForgetsStops)(plain)
        case "settles_afterwards":
            approvals = plain.approvals
            return wrapping(inbox=lambda inbox: _SettlesAfterwards(inbox, approvals, point))(plain)
        case "posts_again":
            return wrapping(outbox=_PostsAgain)(plain)
        case "forgets_history":
            return wrapping(journal=_ForgetsHistory)(plain)
        case _:
            return plain


def memory(control: str, plain: Any, point: Striker) -> Any:
    """The memory with its defect, if it has one."""
    match control:
        case "writes_twice":
            return _WritesTwice(plain)
        case "consolidates_in_two_writes":
            return _ConsolidatesInTwoWrites(plain, point)
        case "forgets_facts":
            return _ForgetsFacts(plain)
        case _:
            return plain
