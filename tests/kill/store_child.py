"""
The process that is killed: a durable queue at work, without a gateway around it.

An upstream replays from its last acknowledgement, a handler answers in steps, a provider takes messages and
answers a little later. What really happened stands in files of their own, written before anybody is told:
``effects`` (the provider), ``tools`` (the tool), ``history.*`` and ``broken`` (promises seen broken from
inside). ``python -m tests.kill.store_child`` loads everything once and forks a life for each line of JSON on
its standard input; it answers each with how that life ended. A life ends by itself when all is done.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agent_core.memory_ports import MemoryPort
from agent_core.messages import InboundMessage, Sender, SessionKey
from agent_core.models import Message
from gateway.store.opening import memory_in_database, opened_queue
from gateway.store.sql.row_codec import new_outbox
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import Completion, NewOutbound, OutboxRow, Pending, Queue, Step, Turn
from gateway.system.clock import SystemClock
from gateway.turns.dispatcher import SessionDispatcher
from tests.kill.forking import serve
from tests.kill.points import Striker, StrikingQueue, append_line

EVENTS = 18
SESSIONS = 4
BOT = "@bot:hs.test"
POINTS = ["upstream.ack.before", "upstream.ack.after", "tool.ran", "provider.taken", "history.appended"]

Opened = Callable[[Path], Awaitable[Queue]]


async def _sqlite(folder: Path) -> Queue:
    return await SqliteQueue.open(folder / "gateway.db", clock=SystemClock())


ADAPTERS: dict[str, Opened] = {"sqlite": _sqlite}
"""Every adapter of the port that is held to these tests."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the process: where it works, where or when it dies, and the defect that it has."""

    folder: str
    seed: int
    policy: str
    strike: str = ""
    kill_after_s: float = 30.0
    control: str = ""
    adapter: str = "sqlite"
    url: str = ""
    """Of a database of PostgreSQL, in the place of an adapter's."""
    story: str = "plain"


def events(seed: int) -> list[tuple[str, SessionKey]]:
    """What the upstream has to say: native ids in order, each in a session."""
    chance = random.Random(seed)
    sessions = [SessionKey("test", f"room{number}") for number in range(SESSIONS)]
    return [(f"e{number:03}", chance.choice(sessions)) for number in range(EVENTS)]


class Upstream:
    """Gives what is behind the last acknowledgement, in batches, and keeps that in a file."""

    def __init__(self, folder: Path, seed: int, point: Striker) -> None:
        self._file = folder / "ack"
        self._point = point
        self.events = events(seed)
        self.acked = int(self._file.read_text()) if self._file.exists() else 0

    def ack(self, position: int) -> None:
        self._point("upstream.ack.before")
        new = self._file.with_suffix(".new")
        new.write_text(str(position))
        new.replace(self._file)
        self.acked = position
        self._point("upstream.ack.after")


class Provider:
    """Takes messages. What it has taken is in its log before it says so, and it takes its time to say so."""

    def __init__(self, folder: Path, point: Striker) -> None:
        self._log = folder / "effects"
        self._point = point

    async def take(self, row: OutboxRow, key: str) -> str:
        record = {"key": key, "session": str(row.message.session), "text": row.message.text}
        append_line(self._log, json.dumps(record))
        self._point("provider.taken")
        await anyio.sleep(random.random() * 0.004)
        return f"taken-{key}"

    def has(self, key: str) -> bool:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return any(json.loads(line)["key"] == key for line in lines)


class Worker:
    """The queue at work in one life."""

    open_in: tuple[InboxState, ...] = (InboxState.READY, InboxState.RUNNING, InboxState.ANSWERED)
    open_out: tuple[OutboxState, ...] = (OutboxState.PENDING, OutboxState.SENDING, OutboxState.UNCERTAIN)

    def __init__(self, life: Life, store: Any, point: Striker) -> None:
        self.folder = Path(life.folder)
        self.life = life
        self.point = point
        self.store = store
        self.upstream = Upstream(self.folder, life.seed, point)
        self.provider = Provider(self.folder, point)
        self.dispatcher = SessionDispatcher(concurrency=3)
        self.kick = anyio.Event()
        self.busy: set[SessionKey] = set()
        self.seen: set[str] = set()
        self.tries = 0

    def broken(self, what: str) -> None:
        append_line(self.folder / "broken", what)

    async def run(self) -> None:
        await self.store.maintenance.recover()
        await self.flush(None)
        for session, due_s in await self.store.turns.open_sessions():
            self.dispatcher.wake(session, after_s=due_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.dispatcher.run, self.work)
            tasks.start_soon(self.deliver)
            await self.receive()
            while not await self.all_done():
                await anyio.sleep(0.01)
            self.dispatcher.stop()
            tasks.cancel_scope.cancel()

    # ── in ──
    async def receive(self) -> None:
        position = int(await self.store.inbox.position("test", BOT, "up") or 0)
        if position < self.upstream.acked and self.life.control != "ack-first":
            self.broken(f"acknowledged {self.upstream.acked}, committed {position}")
        at = max(0, self.upstream.acked - 2)  # an upstream may also repeat what was acknowledged
        while at < EVENTS:
            batch = self.upstream.events[at : at + 3]
            at += len(batch)
            if self.life.control == "ack-first":
                self.upstream.ack(at)
            rows = await self.store.inbox.accept(
                "test", BOT, [self.pending(*event) for event in batch], {"up": str(at)}
            )
            for row in rows:
                self.dispatcher.wake(row.message.session)
            if at > self.upstream.acked:
                self.upstream.ack(at)
            await anyio.sleep(0.002)

    def pending(self, native_id: str, session: SessionKey) -> Pending:
        if self.life.control == "memory-dedupe" and native_id not in self.seen:
            self.seen.add(native_id)
            native_id += f"~{os.getpid()}"
        message = InboundMessage(
            channel="test",
            account=BOT,
            native_id=native_id,
            session=session,
            sender=Sender(address="@alice:hs.test"),
            text=native_id.partition("~")[0],
            received_at=datetime.now(UTC),
        )
        return Pending(message)

    # ── turns ──
    async def work(self, session: SessionKey) -> None:
        while (turn := await self.store.turns.claim(session, merge=2)) is not None:
            await self.turn(turn)
            await self.flush(session)
            self.kick.set()
        due_s = await self.store.turns.due_in(session)
        if due_s is not None:
            self.dispatcher.wake(session, after_s=due_s)

    async def turn(self, turn: Turn) -> None:
        texts = [row.message.text for row in turn.rows]
        numbers = [int(text[1:]) for text in texts]
        done = {step.number: step for step in await self.store.turns.steps(turn)}
        if any(number % 7 == 3 for number in numbers) and not turn.deferrals:
            await self.store.turns.retry(turn, "away", delay_s=0.01, deferral=True)
            return
        if 0 not in done:
            await self.store.turns.record_step_result(
                turn, Step(0, "model", "d", {}, {"text": "call the tool"})
            )
        if 1 not in done or self.life.control == "forget-steps":
            await self.store.turns.record_step_start(turn, Step(1, "tool", "d", {"for": texts}, None))
            append_line(self.folder / "tools", json.dumps(texts))
            self.point("tool.ran")
            await self.store.turns.record_step_result(turn, Step(1, "tool", "d", {}, {"ok": True}))
        if any(number % 8 == 5 for number in numbers):
            await self.store.turns.dead_letter(turn, "no", [self.answer(turn, texts, "apology")])
            return
        parts = [self.answer(turn, texts, part) for part in ("1", "2")]
        lines = [Message(role="user", content=text, id=f"{turn.id}.{n}") for n, text in enumerate(texts)]
        if self.life.control == "send-first":
            for number, part in enumerate(parts):
                row = OutboxRow(0, None, _made(part), OutboxState.PENDING, 0, None, None, None)
                await self.provider.take(row, f"{turn.id}-{turn.fence}-{number}")
            parts = []
        await self.store.turns.complete(turn, Completion(outbound=parts, history=lines))

    @staticmethod
    def answer(turn: Turn, texts: list[str], part: str) -> NewOutbound:
        return NewOutbound("test", BOT, turn.session, json.dumps({"for": texts, "part": part}))

    async def flush(self, session: SessionKey | None) -> None:
        lines = await self.store.journal.lines(session)
        for line in lines:
            path = self.folder / f"history.{line.session.file_name}"
            known = path.read_text().splitlines() if path.exists() else []
            record = json.dumps([line.message.id, line.message.content])
            if record not in known or self.life.control == "history-twice":
                append_line(path, record)
        if lines:
            self.point("history.appended")
            await self.store.journal.delete_filed_lines([line.id for line in lines])

    # ── out ──
    async def deliver(self) -> None:
        async with anyio.create_task_group() as senders:
            while True:
                self.kick = anyio.Event()
                rows = await self.store.outbox.next_sends("test", BOT, busy=list(self.busy))
                if self.life.control == "newest-first":
                    rows = await self.newest(rows)
                for row in rows:
                    self.busy.add(row.message.session)
                    senders.start_soon(self.send, row)
                due_s = await self.store.outbox.next_send_in("test", BOT, busy=list(self.busy))
                with anyio.move_on_after(1.0 if due_s is None else due_s):
                    await self.kick.wait()

    async def newest(self, rows: list[OutboxRow]) -> list[OutboxRow]:
        pending = await self.store.outbox.rows(states=[OutboxState.PENDING], limit=1000)
        newest = {row.message.session: row for row in reversed(pending)}
        return [newest.get(row.message.session, row) for row in rows]

    async def send(self, row: OutboxRow) -> None:
        key = row.message.id
        if self.life.control == "fresh-keys":
            self.tries += 1
            key = f"{key}-{os.getpid()}-{self.tries}"
        try:
            probing = self.life.policy == "probe" and self.life.control != "no-probe"
            if row.state is OutboxState.UNCERTAIN and probing and self.provider.has(key):
                await self.store.outbox.record_send(row, f"taken-{key}")
                return
            await self.store.outbox.sending(row)
            if row.attempts == 0 and int(key[:2], 16) % 4 == 0:
                await self.store.outbox.record_failure(row, "503", delay_s=0.005)
                return
            await self.store.outbox.uncertain(row)
            await self.store.outbox.record_send(row, await self.provider.take(row, key))
        finally:
            self.busy.discard(row.message.session)
            self.kick.set()

    async def all_done(self) -> bool:
        stats = await self.store.maintenance.stats()
        return not (
            any(stats.inbox[state] for state in self.open_in)
            or any(stats.outbox[state] for state in self.open_out)
            or stats.journal_lines
        )


def _made(new: NewOutbound) -> Any:
    ((message, _),) = new_outbox([new], secret="x", origin="x", now=0.0)
    return message


def _worker(story: str) -> type[Worker]:
    if story == "plain":
        return Worker
    from tests.kill.person_child import PersonWorker

    return PersonWorker


async def live(life: Life) -> int:
    """One life; returns 0 when everything is done."""
    random.seed(life.seed + os.getpid())
    point = Striker(life.strike, Path(life.folder) / "trace")
    if life.url:
        store = await opened_queue(Path(life.folder), life.url, clock=SystemClock())
    else:
        store = await ADAPTERS[life.adapter](Path(life.folder))
    try:
        await _worker(life.story)(life, StrikingQueue(store, point), point).run()
        if (beside := memory_in_database(store)) is not None:
            await _shown_as_files(beside.memory, Path(life.folder))
    finally:
        await store.aclose()
    return 0


async def _shown_as_files(memory: MemoryPort, folder: Path) -> None:
    """Histories in tables as the oracle reads them."""
    for session in await memory.sessions():
        told = (await memory.load_history(session)).messages
        lines = [json.dumps([line.id, line.content]) for line in told]
        path = folder / f"history.{SessionKey.parse(session).file_name}"
        path.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    serve(Life, partial(anyio.run, live))
