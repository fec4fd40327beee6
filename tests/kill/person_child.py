"""
The durable queue with people who change their minds: the story ``person`` of `store_child.py`.

Some messages are taken back, some are stopped, one conversation is left. Some wait in quarantine until a
person lets them in, some answers are drafts until a person approves or rejects them. What each event brings
follows from its number, so that the oracle knows it too. What somebody was told besides stands in files:
``taken_back`` (messages of turns that were stopped), written before anything is done about it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from agent_core.messages import Amendment, SessionKey
from agent_core.models import Message
from gateway.store.states import IllegalMove, InboxState, OutboxState
from gateway.store.stores import Completion, LostTurn, NewOutbound, OutboxRow, Pending, Turn
from tests.kill.points import append_line
from tests.kill.store_child import BOT, EVENTS, Worker, events

LEFT_AT = 13
"""The number of the event with which the bot is no longer in its conversation."""
POINTS = ["turn.stopping", "person.approving", "person.admitting"]
_SENDER = "@alice:hs.test"


def is_stop(number: int) -> bool:
    return number % 9 == 4


def is_quarantined(number: int) -> bool:
    return number % 5 == 1 and not is_stop(number)


def taken_back_by(seed: int, number: int) -> int | None:
    """The event that is taken back together with this one: the one before it in its session."""
    said = events(seed)
    before = [n for n in range(number) if said[n][1] == said[number][1] and not is_stop(n)]
    return before[-1] if number % 3 == 2 and before else None


def approved(text: Mapping[str, Any]) -> bool:
    """Whether the person likes this draft: it decides the same when it is asked again."""
    return int(text["for"][0][1:]) % 4 != 2


class PersonWorker(Worker):
    """The queue at work, and a person beside it."""

    open_in = (InboxState.READY, InboxState.RUNNING, InboxState.QUARANTINED)
    open_out = (OutboxState.PENDING, OutboxState.SENDING, OutboxState.UNCERTAIN, OutboxState.HELD)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.position = 0
        self.scopes: dict[str, tuple[Turn, anyio.CancelScope]] = {}

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.decide)
            await super().run()
            tasks.cancel_scope.cancel()

    # ── in ──
    async def receive(self) -> None:
        self.position = int(await self.store.inbox.position("test", BOT, "up") or 0)
        at = max(0, self.upstream.acked - 2)
        while at < EVENTS:
            numbers = range(at, min(at + 3, EVENTS))
            at = numbers.stop
            amendments = [each for number in numbers for each in self.amendments(number)]
            batch = [self.event(number) for number in numbers]
            if self.life.control == "stops-by-heart":
                rows = await self.store.inbox.accept("test", BOT, batch, {"up": str(at)})
                self.stop_by_heart(amendments)
            else:
                rows = await self.store.inbox.accept("test", BOT, batch, {"up": str(at)}, amendments)
                for stopped in rows.stopped:
                    self.stop(stopped.turn)
                # What was taken away may have been the head of its session.
                for session in {session for _, session in self.upstream.events} if amendments else ():
                    self.dispatcher.wake(session)
            for row in rows:
                self.dispatcher.wake(row.message.session)
            if at > self.upstream.acked:
                self.upstream.ack(at)
            await anyio.sleep(0.003)

    def event(self, number: int) -> Pending:
        native_id, session = self.upstream.events[number]
        entry = self.pending(native_id, session)
        return replace(
            entry, quarantine="unproven" if is_quarantined(number) else None, alone=is_stop(number)
        )

    def amendments(self, number: int) -> list[Amendment]:
        native_id, session = self.upstream.events[number]
        back = taken_back_by(self.life.seed, number)
        found = []
        if back is not None:
            taken = self.upstream.events[back][0]
            found.append(Amendment(kind="withdraw", native_id=taken, sender=_SENDER))
        if number == LEFT_AT and number >= self.position:  # a state, not a message: told once
            found.append(Amendment(kind="leave", session=session))
        if is_stop(number):
            found.append(Amendment(kind="stop", native_id=native_id, session=session))
        return found

    def stop(self, turn_id: str) -> None:
        turn, scope = self.scopes.get(turn_id, (None, None))
        if turn is not None and scope is not None:
            append_line(self.folder / "taken_back", json.dumps([row.message.text for row in turn.rows]))
            self.point("turn.stopping")
            scope.cancel()

    def stop_by_heart(self, amendments: list[Amendment]) -> None:
        """The control: what runs is stopped, and nobody writes that down."""
        for turn, _ in list(self.scopes.values()):
            natives = {row.message.native_id for row in turn.rows}
            for each in amendments:
                if each.native_id in natives or (each.kind == "stop" and each.session == turn.session):
                    self.stop(turn.id)

    # ── turns ──
    async def turn(self, turn: Turn) -> None:
        with anyio.CancelScope() as scope:
            self.scopes[turn.id] = (turn, scope)
            try:
                await anyio.sleep(0.002)
                await self.answer_it(turn)
            except LostTurn:
                return
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await self.ended(turn)
                raise
            finally:
                del self.scopes[turn.id]

    async def ended(self, turn: Turn) -> None:
        try:
            if self.life.control == "stops-by-heart":
                await self.store.turns.complete(turn, Completion())
            else:
                await self.store.turns.release(turn)
        except LostTurn:
            return

    async def answer_it(self, turn: Turn) -> None:
        head = turn.head.message
        if head.context.noted is not None:
            line = Message(role="system", content=f"undoes {head.context.noted.undoes}", id=f"{turn.id}.0")
            kept = [] if self.life.control == "forgets-notes" else [line]
            await self.store.turns.complete(turn, Completion(history=kept))
        elif is_stop(int(head.text[1:])):
            said = {"for": [head.text], "part": "stop", "stopped": head.context.notes.stopped}
            answer = NewOutbound("test", BOT, turn.session, json.dumps(said))
            await self.store.turns.complete(turn, Completion(outbound=[answer]))
        else:
            await super().turn(turn)

    @staticmethod
    def answer(turn: Turn, texts: list[str], part: str) -> NewOutbound:
        made = Worker.answer(turn, texts, part)
        return replace(made, hold=part == "2" and int(texts[0][1:]) % 2 == 0)

    async def send(self, row: OutboxRow) -> None:
        with suppress(IllegalMove):  # the bot has left meanwhile
            await super().send(row)

    # ── the person ──
    async def decide(self) -> None:
        while True:
            for row in await self.store.outbox.rows(states=[OutboxState.HELD], limit=100):
                self.point("person.approving")
                if not approved(json.loads(row.message.text)):
                    await self.once(partial(self.store.outbox.reject, row.id, "no"))
                elif self.life.control == "approves-anew":
                    told = row.message
                    await self.store.outbox.post([NewOutbound("test", BOT, told.session, told.text)])
                    await self.once(partial(self.store.outbox.reject, row.id, "sent anew"))
                else:
                    await self.once(partial(self.store.outbox.approve, row.id))
                self.kick.set()
            for row in await self.store.inbox.rows(states=[InboxState.QUARANTINED], limit=100):
                self.point("person.admitting")
                session: SessionKey | None = row.message.session
                if self.life.control == "admits-anew":
                    again = row.message.model_copy(
                        update={"native_id": f"{row.message.native_id}~{os.getpid()}"}
                    )
                    await self.store.inbox.accept("test", BOT, [Pending(again)], {})
                    await self.store.inbox.drop(row.id)
                else:
                    session = await self.once(partial(self.store.inbox.admit, row.id))
                if session is not None:
                    self.dispatcher.wake(session)
            await anyio.sleep(0.004)

    @staticmethod
    async def once(decision: Any) -> Any:
        """It may have been taken back meanwhile."""
        try:
            return await decision()
        except IllegalMove:
            return None
