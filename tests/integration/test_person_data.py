"""One person's data: all of it comes out, all of it goes, and nothing of anybody else."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_core.messages import Audience, MessageContext, SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from gateway.operations.backup.contents import note_backup
from gateway.operations.privacy.export import ExportRefused, export_person
from gateway.operations.privacy.inventory import PersonUnclear, people
from gateway.operations.privacy.person_erasure import MARKER, forget_person
from gateway.store.background_job_rows import job_id_of, job_message
from gateway.store.model import JobKind, LedgerEntry, RunOutcome
from gateway.store.shared import SHARED
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.stores import Completion, NewOutbound, Pending
from tests.home_world import ALICE, BOB, BOT, ROOM, fill, tree
from tests.persons import find_person

NOW = datetime(2026, 2, 1, tzinfo=UTC)
CANARIES = [
    "canary-direct-question",
    "canary-direct-answer",
    "canary-room-question",
    "canary-room-answer",
    "canary-waiting",
    "canary-summary",
    "canary-room-summary",
    "canary-memory-old",
    "canary-memory-new",
    "canary-room-memory",
    "canary-file",
    "canary-to-be-sent",
]


async def planted(root):
    """A home in which Bob has left a canary wherever something of him can be."""
    filled = await fill(root)
    memory = JsonlMemory(root, clock=filled.clock)
    file = filled.attach(b"canary-file", "bob.txt")
    shared = filled.attach(b"a picture of all", "all.txt")
    await filled.say(
        BOB, "@bob:hs.test", "canary-direct-question", "canary-direct-answer", native_id="$b2",
        attachments=(file, shared),
    )  # fmt: skip
    await filled.say(ROOM, "@bob:hs.test", "canary-room-question", "canary-room-answer", native_id="$r3")
    await filled.say(ROOM, "@alice:hs.test", "we go on", "we do", native_id="$r4", attachments=(shared,))
    await filled.say(BOB, "@bob:hs.test", "canary-waiting", None, native_id="$b3")
    bob, room = MemoryScope(ScopeKind.PERSON, "@bob:hs.test"), MemoryScope(ScopeKind.ROOM, str(ROOM))
    turn = next(
        json.loads(line)["turn"]
        for line in (root / "sessions" / f"{ROOM.file_name}.jsonl").read_text().splitlines()
        if "canary-room" in line
    )
    for text in ("canary-memory-old", "canary-memory-new"):
        await memory.save_global_memory(bob, text, session_id=str(BOB), turn="x")
    await memory.save_global_memory(room, "we meet on friday\n", session_id=str(ROOM), turn="other")
    await memory.save_global_memory(
        room, "we meet on friday\ncanary-room-memory\n", session_id=str(ROOM), turn=turn
    )
    await memory.save_global_memory(
        room, "we meet on friday\ncanary-room-memory\nbring tea\n", session_id=str(ROOM), turn="other2"
    )
    await memory.save_consolidation(str(BOB), summary="canary-summary", cursor=2)
    await memory.save_consolidation(str(ROOM), summary="canary-room-summary", cursor=4)
    await memory.save_consolidation(str(ROOM), summary="canary-room-summary again", cursor=5)
    # The spare record of an earlier squidbot.
    Layout(root, root / "workspace").summary(ROOM).with_name("meta.json").write_text("canary-room-summary")
    async with await SqliteQueue.open(filled.home.database, clock=filled.clock) as store:
        await store.outbox.post([NewOutbound("matrix", BOT, BOB, "canary-to-be-sent")])
    index = SearchIndex(root / "search.db", Layout(root, root / "workspace"))
    await index.update_all()
    await index.aclose()
    return filled


def holding(root, texts):
    """Which of the texts stand in any byte of any file below."""
    everything = b"\0".join(tree(root).values())
    return sorted(text for text in texts if text.encode() in everything)


@pytest.fixture
async def home(tmp_path):
    return await planted(tmp_path / "home")


def layout_of(home):
    return Layout(home.home.root, home.home.root / "workspace")


def bob():
    return people(["@bob:hs.test"], ["@alice:hs.test"])


async def test_no_byte_of_the_person_is_left(home):
    """
    Every canary is found in the bytes of the home before, none after: not in histories, summaries, documents
    and their versions, files, the index, nor in free pages of the database. The same look finds all of the
    others' words both times.
    """
    root = home.home.root
    others = [
        "I like tea",
        "noted: tea",
        "hello room",
        "we go on",
        "we do",
        "we meet on friday",
        "a picture of all",
    ]
    assert holding(root, CANARIES) == sorted(CANARIES)
    assert holding(root, others) == sorted(others)
    seen = forget_person(layout_of(home), home.home.database, bob(), now=NOW)
    assert holding(root, CANARIES) == []
    assert holding(root, ["I like rum", "rum for all", "rum it is", "$b1", "$b2", "$r2", str(BOB)]) == []
    assert holding(root, others) == sorted(others)
    assert seen.still_named == ("squidbot.yaml",)
    assert seen.kept_files == 1
    again = forget_person(layout_of(home), home.home.database, bob(), now=NOW)
    assert sum(again.counts.values()) == 0


async def test_deleting_rows_alone_would_not_do(home):
    """The control: rows that are deleted as usual leave their bytes in the file, and the same look finds them."""
    with closing(sqlite3.connect(home.home.database, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("DELETE FROM turn_steps")
        db.execute("DELETE FROM outbox")
        db.execute("DELETE FROM inbox")
    database = home.home.database.read_bytes()
    assert b"canary-waiting" in database


async def test_conversations_of_others_stay_whole(home):
    """Places, order and times are as before; the person's lines are markers; prompts and searches still work."""
    root = home.home.root
    path = root / "sessions" / f"{ROOM.file_name}.jsonl"
    before = [json.loads(line) for line in path.read_text().splitlines()]
    alice = tree(root)[f"sessions/{ALICE.file_name}.jsonl"]
    forget_person(layout_of(home), home.home.database, bob(), now=NOW)
    after = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["n"], line["id"], line["timestamp"]) for line in after] == [
        (line["n"], line["id"], line["timestamp"]) for line in before
    ]
    assert [line["content"] for line in after] == [
        "hello room", "hello alice", MARKER, MARKER, MARKER, MARKER, "we go on", "we do",
    ]  # fmt: skip
    assert tree(root)[f"sessions/{ALICE.file_name}.jsonl"] == alice
    memory = JsonlMemory(root, clock=home.clock)
    tail = await memory.load_history(str(ROOM))
    assert (tail.total, tail.cursor, tail.summary) == (8, 0, "")
    room = MemoryScope(ScopeKind.ROOM, str(ROOM))
    assert (await memory.load_global_memory(room)).text == "we meet on friday\nbring tea\n"
    assert len(await memory.memory_versions(room)) == 3
    assert str(BOB) not in await memory.sessions()


async def test_the_queue_goes_on_and_knows_what_it_has_seen(home):
    """Numbers are not given out again, a message that is offered once more is not taken, sums stay the same."""

    def looked(query):
        with closing(sqlite3.connect(home.home.database)) as db:
            return db.execute(query).fetchone()

    sums = "SELECT SUM(prompt_tokens), SUM(calls) FROM usage"
    highest = "SELECT (SELECT MAX(id) FROM inbox), (SELECT MAX(id) FROM outbox)"
    before = looked(sums), looked(highest)
    forget_person(layout_of(home), home.home.database, bob(), now=NOW)
    assert (looked(sums), looked(highest)) == before
    assert looked("PRAGMA integrity_check") == ("ok",)
    assert looked("PRAGMA foreign_key_check") is None
    number = before[1][0]
    await home.say(BOB, "@bob:hs.test", "new", None, native_id="$new")
    assert looked("SELECT MAX(id) FROM inbox") == (number + 1,)
    with pytest.raises(ValueError, match="not enough values"):
        await home.say(BOB, "@bob:hs.test", "again", None, native_id="$b2")


async def test_what_is_noted_of_having_told_them_goes_too(home):
    """Their address and their conversation name what was posted once; those of others stay, and are not posted again."""
    of_bob = [f"budget {BOB}", "place matrix @bob:hs.test"]
    of_others = [f"budget {ALICE}", "place matrix @alice:hs.test", "place matrix mr@bob:hs.test", "digest"]
    async with await SqliteQueue.open(home.home.database, clock=home.clock) as store:
        for topic in (*of_bob, *of_others):
            await store.outbox.post([], once=(topic, "today"))
        await store.state.write("conversations.anew_after", json.dumps({str(BOB): 7, str(ALICE): 8}))
    assert holding(home.home.root, of_bob) == sorted(of_bob)
    forget_person(layout_of(home), home.home.database, bob(), now=NOW)
    assert holding(home.home.root, [*of_bob, str(BOB)]) == []
    with closing(sqlite3.connect(home.home.database)) as db:
        assert {topic for (topic,) in db.execute("SELECT topic FROM once")} == set(of_others)
        [(value,)] = db.execute("SELECT value FROM state WHERE topic = 'conversations.anew_after'")
    assert json.loads(value) == {str(ALICE): 8}


async def test_a_dry_run_changes_nothing(home, tmp_path):
    """It counts, and names the backups that are there."""
    (tmp_path / "b.tar.gz").touch()
    note_backup(home.home.root, tmp_path / "b.tar.gz", now=NOW)
    before = {
        name: data for name, data in tree(home.home.root).items() if not name.endswith(("-shm", "-wal"))
    }
    seen = forget_person(layout_of(home), home.home.database, bob(), now=NOW, only_look=True)
    after = {name: data for name, data in tree(home.home.root).items() if not name.endswith(("-shm", "-wal"))}
    assert before == after
    assert seen.counts["conversations"] == 1
    assert seen.counts["shared_conversations"] == 1
    assert seen.counts["queue_inbox"] == 5
    assert seen.backups == (str(tmp_path / "b.tar.gz"),)


async def test_jobs_and_their_runs_go_too(home):
    """A reminder of theirs and its line in the run ledger; those of others stay."""
    with closing(sqlite3.connect(home.home.database)) as db:
        for name, person in (("j1", "@bob:hs.test"), ("j2", "@alice:hs.test")):
            db.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, 'at 2026-03-01T00:00:00Z', ?, ?, ?, 'direct', '{}', 'active',"
                " 0, 1, NULL, NULL, 1, '')",
                (name, JobKind.REMIND.value, f"text-of-{name}", str(BOB), BOT, person),
            )
            db.execute(
                "INSERT INTO ledger (name, instant, until, ticks, at, outcome, reason, tokens, calls, took_s, said)"
                " VALUES (?, 0, 0, 1, 0, 'ran', '', 0, 0, 0, '')",
                (f"job:{name}",),
            )
            db.execute(
                "INSERT INTO collected (channel, person, text, at) VALUES ('matrix', ?, 'x', 0)", (person,)
            )
        db.commit()
    forget_person(layout_of(home), home.home.database, bob(), now=NOW)
    with closing(sqlite3.connect(home.home.database)) as db:
        assert db.execute("SELECT id FROM jobs").fetchall() == [("j2",)]
        assert db.execute("SELECT name FROM ledger").fetchall() == [("job:j2",)]
        assert db.execute("SELECT person FROM collected").fetchall() == [("@alice:hs.test",)]


async def test_background_jobs_go_too(home):
    """The task, its line in the run ledger, its own history and its answer in a room; those of others stay."""
    root, jobs = home.home.root, {}
    for person in ("@bob:hs.test", "@alice:hs.test"):
        job = job_message(
            f"a turn of {person}", text=f"task-of-{person}", place=ROOM, account=BOT, person=person,
            audience=Audience.GROUP, at=NOW, context=MessageContext(),
        )  # fmt: skip
        jobs[person] = job_id_of(job.session)
        async with await SqliteQueue.open(home.home.database, clock=home.clock) as store:
            await store.inbox.accept("matrix", BOT, [Pending(job)], {})
            turn = await store.turns.claim(job.session)
            said = Message(
                role="assistant", content=f"done for {person}", id=f"{turn.id}.result", turn=turn.id
            )
            asked = said.model_copy(
                update={"role": "user", "content": job.text, "id": f"{turn.id}.0", "sender": person}
            )
            entry = LedgerEntry(f"job:{jobs[person]}", NOW, RunOutcome.DELIVERED)
            await store.turns.complete(
                turn, Completion(history=(asked, said), others=((ROOM, (said,)),), entry=entry)
            )
            lines = await store.journal.lines()
        memory = JsonlMemory(root, clock=home.clock)
        for line in lines:
            if line.message.turn == turn.id:
                await memory.append_message(str(line.session), line.message)
    export_person(layout_of(home), home.home.database, bob(), root.parent / "of-bob", now=NOW)
    assert holding(root.parent / "of-bob", ["task-of-@bob:hs.test", "done for @bob:hs.test"]) != []
    assert holding(root.parent / "of-bob", ["task-of-@alice:hs.test", "done for @alice:hs.test"]) == []
    forget_person(layout_of(home), home.home.database, bob(), now=NOW)
    assert holding(root, ["task-of-@bob:hs.test", "done for @bob:hs.test", jobs["@bob:hs.test"]]) == []
    kept = ["done for @alice:hs.test", "task-of-@alice:hs.test"]
    assert holding(root, kept) == sorted(kept)
    with closing(sqlite3.connect(home.home.database)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM ledger WHERE name LIKE 'job:%'")]
    assert names == [f"job:{jobs['@alice:hs.test']}"]


async def test_the_export_has_all_of_it_and_nothing_of_others(home, tmp_path):
    """Each canary is in it, no word of Alice's; it can be read by its owner alone; nothing is overwritten."""
    found = export_person(layout_of(home), home.home.database, bob(), tmp_path / "out", now=NOW)
    assert holding(
        tmp_path / "out",
        [text for text in CANARIES if "room-summary" not in text and "room-memory" not in text],
    ) == sorted(text for text in CANARIES if "room-summary" not in text and "room-memory" not in text)
    assert holding(tmp_path / "out", ["I like tea", "hello room", "we go on", "likes tea"]) == []
    assert found.counts()["attachments"] == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "out").rglob("*"))
    with pytest.raises(ExportRefused):
        export_person(layout_of(home), home.home.database, bob(), tmp_path / "out", now=NOW)


async def test_the_owner_can_be_forgotten_too(home):
    """Their document, its versions and conversations; the other person's stay."""
    alice = people(["owner"], ["@alice:hs.test"])
    forget_person(layout_of(home), home.home.database, alice, now=NOW)
    assert holding(home.home.root, ["I like tea", "likes tea", "hello room", "we go on"]) == []
    assert "canary-direct-question" in holding(home.home.root, CANARIES)


def test_who_is_meant():
    """Spelling of mail addresses does not matter, that of Matrix ids does; the owner is meant whole."""
    assert people(["Bob@Mail.Test "], []).addresses == {"bob@mail.test"}
    assert people(["@Bob:hs"], []).addresses == {"@Bob:hs"}
    whole = people(["a@mail.test"], ["@a:hs", "A@mail.test"])
    assert (whole.owner, whole.addresses) == (True, {"@a:hs", "a@mail.test"})
    for names in (["bob"], [], ["owner"], ["@a:hs", "bob@mail.test"]):
        with pytest.raises(PersonUnclear):
            people(names, ["@a:hs"] if len(names) == 2 else [])


async def test_the_commands_say_what_they_do(home, tmp_path):
    """From the shell: a dry run, the real thing with --yes, and refusal while somebody holds the home."""

    def squidbot(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments, "--home", str(home.home.root)],
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    done = squidbot("export", "@bob:hs.test", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path / "out" / "README.md").exists()
    done = squidbot("forget", "@bob:hs.test", "--dry-run")
    assert (done.returncode, "would be removed" in done.stdout) == (0, True), done.stderr
    assert squidbot("forget", "@bob:hs.test").returncode == 1
    assert holding(home.home.root, CANARIES) == sorted(CANARIES)
    done = squidbot("forget", "@bob:hs.test", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["still_named_in"] == ["squidbot.yaml"]
    assert holding(home.home.root, CANARIES) == []
    assert find_person(layout_of(home), home.home.database, bob()).shares == []
    assert SessionKey.parse(str(ROOM)) == ROOM


async def test_the_shared_conversation_is_the_owners_whole(home, tmp_path):
    """
    What was said in it on Matrix and at the terminal, where the owner has no address, is exported and forgotten by the
    commands; another person sees nothing of it, and is not touched.
    """
    words = [f"heron-{what}-{place}" for place in ("matrix", "terminal") for what in ("asked", "answered")]
    for place, sender in ((ALICE, "@alice:hs.test"), (SessionKey("terminal", "main"), "local")):
        name = place.channel
        await home.say(
            place,
            sender,
            f"heron-asked-{name}",
            f"heron-answered-{name}",
            native_id=f"${name}",
            within=SHARED,
        )
    root = home.home.root
    assert holding(root, words) == sorted(words)

    def squidbot(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments, "--home", str(root)],
            capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    for who, expected in (("owner", sorted(words)), ("@bob:hs.test", [])):
        done = squidbot("export", who, "--output", str(tmp_path / who))
        assert done.returncode == 0, done.stderr
        assert holding(tmp_path / who, words) == expected
        assert holding(tmp_path / who, ["canary-direct-question"]) == ["canary-direct-question"] * (
            who != "owner"
        )
    done = squidbot("forget", "@bob:hs.test", "--yes")
    assert done.returncode == 0, done.stderr
    assert holding(root, words) == sorted(words)
    done = squidbot("forget", "owner", "--yes")
    assert done.returncode == 0, done.stderr
    assert holding(root, words) == []
