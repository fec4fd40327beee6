"""
Writes a home folder as today's version leaves it: something of everything, and a row in every state.

Today's schema is kept in ``tests/data/home-vN``, and later commits are held to it
(`tests/unit/gateway/store/test_kept_home.py`). When the schema gets a new number, keep
what the new one writes: ``python -m tests.state_writer``.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import anyio

from agent_core.messages import Audience, MessageContext, OrderNote, SessionKey
from agent_core.models import MemoryScope, Message, Purpose, ScopeKind, Usage
from agent_core.provenance import untrusted_origin
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.tools.grants import Grant, GrantKind, Scope
from gateway.store.background_job_rows import job_message
from gateway.store.model import (
    APPROVAL,
    APPROVED,
    CollectedAlert,
    EffectReceipt,
    Job,
    JobKind,
    JobState,
    LedgerEntry,
    RunOutcome,
)
from gateway.store.sql.tables import VERSION
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.states import InboxState, OutboxState
from gateway.store.stores import Completion, NewOutbound, Pending, Step
from gateway.system.home import open_home
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import BOT, claim, out, pending
from tests.home_world import ALICE, ROOM, fill

FIXTURES = Path(__file__).parent / "data"
LATER = EPOCH + timedelta(days=1)


def fixture_of(version: int) -> Path:
    """Where the home folder of a schema is kept."""
    return FIXTURES / f"home-v{version}"


async def write_home(root: Path) -> None:
    """Fill a folder that does not exist yet."""
    home = open_home(root)
    clock = ManualClock()
    async with await SqliteQueue.open(home.database, clock=clock) as store:
        for name in ("$long-ago", "$a-while-ago"):  # of the first only a digest stays
            await store.inbox.accept("matrix", BOT, [pending(name, ignore="sender_not_allowed")], {})
        clock.advance(2.0)
        await store.maintenance.prune(older_than_s=1.0)
        await store.inbox.accept("matrix", BOT, [pending("$died-once", session=_session("died"))], {})
        await claim(store, _session("died"))
        await store.maintenance.recover()
    filled = await fill(root)
    memory = JsonlMemory(root, clock=filled.clock)
    owner = MemoryScope(ScopeKind.OWNER)
    await memory.save_global_memory(owner, "likes tea and rum", base_version=1)
    await memory.save_global_memory(MemoryScope(ScopeKind.PERSON, "@bob:hs.test"), "is Bob")
    await memory.save_global_memory(MemoryScope(ScopeKind.ROOM, str(ROOM)), "a room")
    file = filled.attach(b"another file", "b.txt")
    await filled.say(ROOM, "@bob:hs.test", "look at this", "a file", native_id="$r3", attachments=(file,))
    async with await SqliteQueue.open(filled.home.database, clock=filled.clock) as store:
        await _questions_in_every_state(store)
        await _answers_in_every_state(store)
        await _plans(store)
        job = job_message(
            "a turn and a step", text="count the sheep", place=ALICE, account=BOT, person="@alice:hs.test",
            audience=Audience.DIRECT, at=LATER, context=MessageContext(), note=OrderNote(name="sheep"),
        )  # fmt: skip
        await store.inbox.accept("matrix", BOT, [Pending(job)], {})
    (root / "run").rmdir()


def _session(name: str) -> SessionKey:
    return SessionKey("matrix", f"!{name}:hs.test")


async def _questions_in_every_state(store: SqliteQueue) -> None:
    async def came(name: str, **more: str) -> None:
        await store.inbox.accept("matrix", BOT, [pending(f"${name}", session=_session(name), **more)], {})

    for name in ("waits", "runs", "granted", "answered", "asks", "deferred", "dead"):
        await came(name)
    await came("ignored", ignore="sender_not_allowed")
    await came("quarantined", quarantine="nobody vouches for it")
    running = await claim(store, _session("runs"))
    receipt = EffectReceipt(
        _session("runs"), "memory_write", "persist", {"content": "- tea"}, asked_by="alice@mail.test"
    )
    await store.turns.record_step_start(running, Step(0, "tool", "d", {"name": "send_file"}, None, receipt))
    await store.turns.record_step_result(running, Step(0, "tool", "d", {"name": "send_file"}, {"done": True}))
    grant_or_refusal = await claim(store, _session("granted"))
    later = (EPOCH + timedelta(days=400)).isoformat()
    request = {"name": "a11111", "asked": [], "call": {"name": "web_fetch"}, "until": later}
    await store.approvals.ask(
        grant_or_refusal, Step(0, APPROVAL, "d", request, None), [], why="asks", delay_s=60
    )
    grant = Grant(
        "g11111",
        Scope(GrantKind.HOST, "", "https://example.org"),
        str(_session("granted")),
        ("@alice:hs.test",),
        "@alice:hs.test",
        LATER,
        LATER + timedelta(days=1),
        origins=(untrusted_origin("web", "https://example.org", EPOCH),),
    )
    await store.approvals.decide("a11111", {"verdict": APPROVED}, grant=grant)
    await store.turns.complete(await claim(store, _session("granted")), Completion())
    answered = await claim(store, _session("answered"))
    reply = NewOutbound("matrix", BOT, _session("answered"), "yes")
    usage, waits = (
        Usage(calls=2, cost_usd=0.01, model="m"),
        CollectedAlert("email", "alice@mail.test", "an alert", EPOCH),
    )
    line = Message(role="assistant", content="yes", id=f"{answered.id}.1", turn=answered.id, timestamp=EPOCH)
    await store.turns.complete(
        answered, Completion(outbound=(reply,), history=(line,), usage=usage, collected=(waits,))
    )
    asks = await claim(store, _session("asks"))
    request = {
        "name": "a3f2c9", "asked": ["@alice:hs.test"], "call": {"name": "send_file"}, "until": LATER.isoformat(),
    }  # fmt: skip
    question = NewOutbound("matrix", BOT, _session("asks"), "May I?")
    await store.approvals.ask(
        asks, Step(0, APPROVAL, "q", request, None), [question], why="waits", delay_s=3600
    )
    deferred = await claim(store, _session("deferred"))
    await store.turns.retry(deferred, "the model is away", delay_s=60, deferral=True)
    dead = await claim(store, _session("dead"))
    await store.turns.dead_letter(
        dead, "three starts", [NewOutbound("matrix", BOT, _session("dead"), "sorry")]
    )


async def _answers_in_every_state(store: SqliteQueue) -> None:
    for state in OutboxState:
        if state is OutboxState.PENDING:
            continue
        [row] = await store.outbox.post(
            [out(f"an answer that is {state}", session=_session(state), hold=state is OutboxState.HELD)]
        )
        if state in (OutboxState.PENDING, OutboxState.HELD):
            continue
        await store.outbox.sending(row)
        if state is OutboxState.SENT:
            await store.outbox.record_send(row, "$sent")
        elif state is OutboxState.DEAD:
            await store.outbox.record_failure(row, "refused", delay_s=None)
        elif state is not OutboxState.SENDING:
            await store.outbox.uncertain(row)
            if state is OutboxState.UNKNOWN:
                await store.outbox.needs_review(row, "nobody knows")


async def _plans(store: SqliteQueue) -> None:
    for kind, state in zip((JobKind.REMIND, JobKind.ASK, JobKind.REMIND), JobState, strict=True):
        job = Job(
            f"job-{state}", kind, "tea", "cron 0 9 * * *", ALICE, BOT, "@alice:hs.test", EPOCH, next_at=LATER
        )
        await store.jobs.add_job(job, at_most=9)
        if state is not JobState.ACTIVE:
            await store.jobs.set_job_state(job.id, state, None)
    for number, outcome in enumerate(RunOutcome):
        instant = EPOCH + timedelta(minutes=number)
        await store.jobs.note(
            LedgerEntry("heartbeat", instant, outcome, "why", tokens=3, calls=1, took_s=0.5, said=f"{number}")
        )
    await store.usage.add(
        ALICE, Usage(prompt_tokens=11, completion_tokens=5, calls=1, model="m"), Purpose.HEARTBEAT
    )
    await store.state.write("owner.alerts/brake", '["2026-01-01T00:00:00+00:00", 0, "pulled", ""]')
    await store.outbox.post([out("the digest")], once=("digest", "2026-01-01"))
    await store.maintenance.lease("matrix", holder="a", ttl_s=60)


def _states(root: Path) -> set[str]:
    with closing(sqlite3.connect(root / "gateway.db")) as db:
        return {
            state for table in ("inbox", "outbox") for (state,) in db.execute(f"SELECT state FROM {table}")
        }


def main() -> int:
    """Keep what today's version writes, unless that is kept already."""
    target = fixture_of(VERSION)
    if target.exists():
        sys.stderr.write(f"{target} is there and is never written again\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "home"
        anyio.run(write_home, root)
        missing = {*InboxState, *OutboxState} - _states(root)
        if missing:
            raise SystemExit(f"no row is {', '.join(sorted(missing))}")
        shutil.copytree(root, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
