"""Histories and memory in the database of the queue: with the answer or not at all, and under every command."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core.errors import StorageUnavailable
from agent_core.memory_ports import SearchRequest
from agent_core.messages import Attachment, Sender, SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.provenance import untrusted_origin
from agent_core.storage.layout import Layout
from channels.attachments import AttachmentStore
from gateway.operations.privacy.export import export_person
from gateway.operations.privacy.inventory import people
from gateway.operations.privacy.person_erasure import MARKER, forget_person
from gateway.routing.attachment_retention import ORPHAN_AFTER_S, AttachmentSweeper
from gateway.store.opening import memory_in_database
from gateway.store.personal_rows import table_problems
from gateway.store.place import ServerDatabase, place_of_queue
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.sql import outbox_statements
from gateway.store.sql.engine import journal_lines
from gateway.store.stores import Completion, LostTurn, MemoryInDatabase
from gateway.turns.history_writer import HistoryWriter
from tests.clock import EPOCH, ManualClock
from tests.contract.queue_data import BOT, OTHER, ROOM, accept, answer, claim, out
from tests.integration.test_postgres_refusals import squidbot
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]

BOB = Sender(address="@bob:hs.test", verified=True)
ALICE = Sender(address="@alice:hs.test", verified=True)
DIRECT = SessionKey("matrix", "!bob:hs.test")
OWNER, BOBS = MemoryScope(ScopeKind.OWNER), MemoryScope(ScopeKind.PERSON, BOB.address)
ROOMS = MemoryScope(ScopeKind.ROOM, str(ROOM))


@pytest.fixture
def url(postgres: PostgresServer, tables: str) -> str:
    return postgres.url(postgres.new_database(template=tables))


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresQueue]:
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        yield store


def beside(store: PostgresQueue) -> MemoryInDatabase:
    found = memory_in_database(store)
    assert found is not None
    return found


async def texts(store: PostgresQueue, session: SessionKey) -> list[str]:
    return [each.content for each in (await beside(store).memory.load_history(str(session))).messages]


# ── with the answer ──


async def test_the_lines_of_an_answer_come_with_it(store: PostgresQueue) -> None:
    """Also those for other conversations, those of what answers nothing, and those of what was sent; none waits."""
    await accept(store, "a")
    turn = await claim(store)
    told = (OTHER, (Message(role="assistant", content="told", id="n.0", timestamp=EPOCH),))
    line = Message(role="user", content="asked", id=f"{turn.id}.0", timestamp=EPOCH)
    await store.turns.complete(turn, Completion(history=[line], outbound=[out("yes")], others=[told]))
    assert (await texts(store, ROOM), await texts(store, OTHER)) == (["asked"], ["told"])

    news = (OTHER, (Message(role="assistant", content="news", id="n.1", timestamp=EPOCH),))
    await store.outbox.post([out("news", session=OTHER)], history=[news])
    [row] = await store.outbox.post([out("by hand", session=OTHER, remembered=True)])
    await store.outbox.sending(row)
    await store.outbox.record_send(row, "$1", into=OTHER)
    await store.outbox.record_send(row, "$1", into=OTHER)
    assert await texts(store, OTHER) == ["told", "news", "by hand"]
    assert await store.journal.lines() == []


async def test_an_older_claim_writes_nothing(store: PostgresQueue) -> None:
    """Whoever lost a turn leaves no line."""
    await accept(store, "a")
    old = await claim(store)
    await store.maintenance.recover()
    new = await claim(store)
    with pytest.raises(LostTurn):
        await answer(store, old)
    assert await texts(store, ROOM) == []
    await answer(store, new)
    assert len(await texts(store, ROOM)) == 2


async def test_without_the_answer_there_is_no_line(
    store: PostgresQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails behind the lines takes them along."""
    await accept(store, "a")
    turn = await claim(store)

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(outbox_statements, "insert", fails)
        await answer(store, turn)
    assert await texts(store, ROOM) == []
    await answer(store, turn)
    assert len(await texts(store, ROOM)) == 2


async def test_what_an_earlier_version_left_in_the_journal_is_taken_over(url: str) -> None:
    """At the next start, once."""
    clock = ManualClock()
    async with await PostgresQueue.open(url, clock=clock, journal=journal_lines) as before:
        await accept(before, "a")
        await answer(before, await claim(before))
    async with await PostgresQueue.open(url, clock=clock) as store:
        assert len(await store.journal.lines()) == 2
        for _ in range(2):
            writer = HistoryWriter(store, beside(store).memory)
            await writer.recover()
            await writer.sync()
        assert (len(await texts(store, ROOM)), await store.journal.lines()) == (2, [])


async def test_a_server_that_is_away_is_a_storage_that_is_away(postgres: PostgresServer) -> None:
    """Turns wait for it, as they wait for a full disk."""
    with PostgresServer.start() as server:
        url = server.with_tables()
        async with await PostgresQueue.open(url, clock=ManualClock()) as store:
            memory = beside(store).memory
            await memory.save_global_memory(OWNER, "one")
            server.kill()
            for call in (
                memory.load_history(str(ROOM)),
                memory.save_global_memory(OWNER, "two"),
                beside(store).named_files(),
                beside(store).search.search(SearchRequest(OWNER, "one")),
            ):
                with pytest.raises(StorageUnavailable):
                    await call


# ── of a person ──


async def said(
    store: PostgresQueue, session: SessionKey, who: Sender, text: str, told: str, **more: Any
) -> str:
    """A question and its answer; the id of the turn."""
    await accept(store, f"{who.address} {text}", sender=who, session=session)
    turn = await claim(store, session)
    scope = str(ROOMS) if session == ROOM else str(BOBS) if who == BOB else str(OWNER)
    shared = {"turn": turn.id, "scope": scope, "timestamp": EPOCH}
    lines = [
        Message(role="user", content=text, id=f"{turn.id}.0", sender=who.address, **shared, **more),
        Message(role="assistant", content=told, id=f"{turn.id}.1", **shared),
    ]
    await store.turns.complete(turn, Completion(history=lines, outbound=[out(told, session=session)]))
    return turn.id


def file_of(number: int) -> Attachment:
    digest = f"{number:064x}"
    path = f"attachments/{digest[:2]}/{digest}.txt"
    return Attachment(name="a.txt", media_type="text/plain", size_bytes=1, path=path, sha256=digest)


async def planted(url: str) -> None:
    """Bob and Alice in a room, Bob alone, with memories, summaries and files."""
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        memory = beside(store).memory
        await said(store, DIRECT, BOB, "canary-direct", "canary-direct-answer", attachments=(file_of(1),))
        await said(store, ROOM, ALICE, "who comes", "nobody yet", attachments=(file_of(2),))
        turn = await said(
            store, ROOM, BOB, "canary-room bring the heavy green boat tomorrow evening", "canary-noted",
            attachments=(file_of(2), file_of(3)),
        )  # fmt: skip
        await said(
            store, ROOM, ALICE, "what is brought", "bring the heavy green boat tomorrow evening, he says"
        )
        for text in ("canary-old", "canary-new"):
            await memory.save_global_memory(BOBS, text, session_id=str(DIRECT))
        await memory.save_global_memory(ROOMS, "friday\n", session_id=str(ROOM), turn="other")
        await memory.save_global_memory(ROOMS, "friday\ncanary-memory\n", session_id=str(ROOM), turn=turn)
        origins = (untrusted_origin("person", BOB.address, EPOCH),)
        await memory.save_global_memory(ROOMS, "friday\ncanary-memory\ntea\n", turn="o2", origins=origins)
        await memory.save_consolidation(str(DIRECT), summary="canary-summary", cursor=2)
        await memory.save_consolidation(str(ROOM), summary="canary-room-summary", cursor=4)


def everything(url: str) -> str:
    """All rows of all tables."""
    with psycopg.connect(url) as db:
        found = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'squidbot'").fetchall()
        rows = [db.execute(f"SELECT t::text FROM squidbot.{table} AS t").fetchall() for (table,) in found]
    return json.dumps(rows).lower()


async def test_a_person_is_exported_and_forgotten(url: str, tmp_path: Path) -> None:
    """All that is theirs comes out, as from files; then nothing of it is left, and all of the others is."""
    await planted(url)
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True)
    layout, place, bob = (
        Layout(home, home / "workspace"),
        place_of_queue(home / "x", url),
        people([BOB.address], []),
    )

    found = export_person(layout, place, bob, tmp_path / "out", now=EPOCH)

    assert found.counts()["conversations"] == found.counts()["shared_conversations"] == 1
    assert found.attachments == {file_of(number).path for number in (1, 2, 3)}
    made = {
        str(path.relative_to(tmp_path / "out")): path.read_text()
        for path in (tmp_path / "out").rglob("*.*")
        if path.is_file()
    }
    names = "\n".join(made)
    for name in ("history.jsonl", "history.md", "summary.md", "MEMORY.md", "versions.jsonl"):
        assert name in names
    told = "".join(made.values())
    assert "canary-direct" in told and "canary-room" in told and "canary-new" in told
    assert "who comes" not in told and "canary-room-summary" not in told
    [direct] = [json.loads(line) for name, text in made.items() if "bob" in name and name.endswith("history.jsonl")
                for line in text.splitlines()[:1]]  # fmt: skip
    assert (direct["n"], direct["content"], direct["sender"]) == (0, "canary-direct", BOB.address)

    before = everything(url)
    assert "canary-memory" in before and BOB.address in before
    looked = forget_person(layout, place, bob, now=EPOCH, only_look=True)
    assert any("the history of" in where for where in looked.repeated)
    assert everything(url) == before

    done = forget_person(layout, place, bob, now=EPOCH)

    left = everything(url)
    assert "canary" not in left and BOB.address not in left
    assert "heavy green boat" in left, "an answer to Alice, which is listed"
    assert "who comes" in left and "nobody yet" in left and "friday" in left and "tea" in left
    assert done.kept_files == 1 and done.still_named == ()
    assert not list((home / "state").iterdir())
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        memory, search = beside(store).memory, beside(store).search
        tail = await memory.load_history(str(ROOM))
        assert (tail.cursor, tail.summary, tail.total, tail.skipped_lines) == (0, "", 6, 0)
        assert [each.content for each in tail.messages][2:4] == [MARKER, MARKER]
        assert tail.positions == tuple(range(6))
        assert await memory.sessions() == [str(ROOM)] and await memory.memory_scopes() == [ROOMS]
        assert [one.text for one, *_ in await memory.memory_versions(ROOMS)] == [
            "friday\n",
            "friday\n",
            "friday\ntea\n",
        ]
        assert (await search.search(SearchRequest(ROOMS, "nobody"))).hits and not (
            await search.search(SearchRequest(ROOMS, "canary"))
        ).hits
    assert not forget_person(layout, place, bob, now=EPOCH).counts["lines"]
    assert not [one for one in table_problems(ServerDatabase(url)) if one.serious]


# ── files of messages ──


async def test_files_that_a_history_names_are_not_swept(store: PostgresQueue, tmp_path: Path) -> None:
    """Of two files that are old enough, the one that a line in the database names stays."""
    clock = ManualClock()
    files = AttachmentStore(tmp_path)
    kept, gone = [await files.save(f"{n}.txt", "text/plain", bytes([n])) for n in (65, 66)]
    await said(store, ROOM, ALICE, "look", "yes", attachments=(kept,))
    for row in await store.outbox.next_sends("matrix", BOT, busy=(), limit=9):
        await store.outbox.sending(row)
        await store.outbox.record_send(row, "$1")
    there = [file.saved_at for file in await files.list_files()]
    clock.advance(max(there) + ORPHAN_AFTER_S + 60 - clock.now().timestamp())
    sweeper = AttachmentSweeper(files, store, beside(store).named_files, clock=clock, keep_days=180)

    assert await sweeper.sweep() == 1

    assert [file.path for file in await files.list_files()] == [kept.path]
    assert gone.path != kept.path


# ── whether it is whole ──


async def test_damage_is_told(url: str, postgres: PostgresServer) -> None:
    """Lines, records, versions and words that are not what they should be; nothing before that."""
    await planted(url)
    place = ServerDatabase(url)
    assert table_problems(place) == []
    with postgres.admin(url.rpartition("/")[2]) as db:
        where = f"session = '{ROOM}' AND seq"
        db.execute(f"UPDATE squidbot.all_history SET line = 'no line' WHERE {where} = 1")
        db.execute(f"UPDATE squidbot.all_history SET said = NULL WHERE {where} = 2")
        db.execute(f"DELETE FROM squidbot.all_history WHERE {where} = 4")
        db.execute(f"DELETE FROM squidbot.all_history WHERE session = '{DIRECT}' AND seq = 1")
        db.execute(f"UPDATE squidbot.all_consolidation SET record = '{{' WHERE session = '{ROOM}'")
        db.execute(f"UPDATE squidbot.all_memory SET line = '' WHERE scope = '{BOBS}' AND version = 2")
    told = [f"{one.part}: {one.text}" for one in table_problems(place)]
    assert told == [
        f"histories: {ROOM}: lines 4 to 4 are missing",
        f"histories: {ROOM}: 1 lines cannot be read: 1",
        f"search index: {ROOM}: 1 lines cannot be found by their words",
        f"records: {DIRECT}: its cursor (2) is beyond the end (1)",
        f"records: {ROOM}: its record cannot be read",
        f"memory: {BOBS}: version 2 cannot be read",
    ]
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        memory = beside(store).memory
        tail = await memory.load_history(str(ROOM))
        assert (len(tail.messages), tail.total, tail.skipped_lines) == (4, 6, 1)
        assert await memory.load_consolidated_cursor(str(DIRECT)) == 1
        assert (await memory.load_global_memory(BOBS)).text == "canary-old"
        assert (await memory.save_global_memory(BOBS, "new")).version == 3


# ── commands ──


async def test_the_commands_work_on_the_tables(url: str, tmp_path: Path) -> None:
    """Without a daemon; no history, no document and no index appears in the home."""
    await planted(url)
    home = tmp_path / "home"

    def run(*command: str) -> dict[str, Any]:
        code, told = squidbot(home, url, *command, "--json")
        assert code == 0, told
        answered: dict[str, Any] = json.loads(told[told.index("{") :])
        return answered

    listed = run("sessions", "list")
    assert {one["session"]: one["messages"] for one in listed["sessions"]} == {str(DIRECT): 2, str(ROOM): 6}
    shown = run("sessions", "show", str(ROOM))
    assert (shown["cursor"], shown["summary"]) == (4, "canary-room-summary")
    assert run("memory", "show", str(BOBS))["text"] == "canary-new"
    assert run("memory", "undo", str(BOBS))["text"] == "canary-old"
    assert run("memory", "write", str(BOBS))["text"] == ""  # the standard input is empty
    assert len(run("memory", "history", str(BOBS))["versions"]) == 4
    assert run("sessions", "reindex")["messages"] == 8
    assert run("sessions", "reset", str(ROOM), "--yes")["forgotten"] == 2
    code, told = squidbot(home, url, "check", "--data")
    assert code == 0 and "histories" in told, told
    assert run("forget", BOB.address, "--yes")["removed"]
    assert run("status")
    written = [path for path in home.rglob("*") if path.is_file() and path.name != "squidbot.yaml"]
    assert not [path for path in written if "jsonl" in path.name or path.name in ("MEMORY.md", "search.db")]
    (home / "sessions" / "matrix=.=21old.jsonl").write_text("{}\n")
    code, told = squidbot(home, url, "check", "--data")
    assert "which are not used" in told
