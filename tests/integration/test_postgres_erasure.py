"""A person is exported and erased although the queue is in PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import anyio.to_thread
import psycopg
import pytest

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, Message, ScopeKind
from agent_core.storage.layout import Layout
from gateway.operations.privacy.export import export_person
from gateway.operations.privacy.inventory import people
from gateway.operations.privacy.person_erasure import forget_person
from gateway.store.lease import DAEMON
from gateway.store.place import ServerDatabase, place_of_queue
from gateway.store.postgres import postgres_connection
from gateway.store.postgres.histories.personal_lines import KeptTables
from gateway.store.postgres.postgres_queue import PostgresQueue
from gateway.store.store_errors import Fenced
from tests.clock import EPOCH, ManualClock
from tests.command_line import squidbot
from tests.contract.erasure import EVE, MAIL
from tests.contract.queue_data import accept, claim, reply
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration]


async def test_a_person_is_exported_and_erased(postgres: PostgresServer, tmp_path: Path):
    """The export has their rows; after forgetting no table holds their words or address, and others stay."""
    url = postgres.with_tables()
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        await accept(store, "secret-of-eve", sender=EVE, session=MAIL)
        await accept(store, "others")
        turn = await claim(store, MAIL)
        line = Message(
            role="user", content="secret-of-eve", id=f"{turn.id}.0", turn=turn.id, sender=EVE.address
        )
        await store.turns.complete(turn, reply("yes", session=MAIL, history=[line]))
    layout = Layout(tmp_path, tmp_path / "workspace")
    place = place_of_queue(tmp_path / "gateway.db", url)
    person = people([EVE.address], [])

    found = export_person(layout, place, person, tmp_path / "export", now=EPOCH)
    assert found.counts()["queue_inbox"] == 1
    assert "secret-of-eve" in "".join(
        path.read_text() for path in (tmp_path / "export").rglob("*.json*") if path.is_file()
    )
    seen = forget_person(layout, place, person, now=EPOCH)
    assert seen.counts["queue_inbox"] == 1
    with psycopg.connect(url) as db:
        tables = [
            name for (name,) in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'squidbot'")
        ]
        left = json.dumps(
            [
                row
                for table in tables
                for row in db.execute(f"SELECT t::text FROM squidbot.{table} AS t").fetchall()
            ]
        ).lower()
        assert "secret-of-eve" not in left and "eve@example.org" not in left
        assert "others" in left
    assert forget_person(layout, place, person, now=EPOCH).counts["queue_inbox"] == 0


async def test_looking_through_long_histories_needs_no_long_statement(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    """They have ten seconds, and histories have any length; in one statement this takes several times what is allowed here."""
    url = postgres.with_tables()
    line = '{"role": "user", "content": "' + "words of all kinds " * 200 + '"}'
    with postgres.admin(url.rpartition("/")[2]) as db:
        db.execute("SET session_replication_role = replica")  # without the triggers
        db.execute(
            "INSERT INTO squidbot.all_history (home, session, seq, line, at)"
            " SELECT 1, 'matrix/' || n / 1000, n %% 1000, %s, 0 FROM generate_series(0, 19999) AS n",
            (line,),
        )
        db.execute(
            "UPDATE squidbot.all_history SET line = %s WHERE session IN ('matrix/3', 'matrix/19') AND seq = 999",
            (f'{{"sender": "{EVE.address}", "attachments": [{{"path": "attachments/ab/{"c" * 64}.png"}}]}}',),
        )
    monkeypatch.setitem(postgres_connection._LIMITS, "statement_timeout", "300ms")

    with KeptTables(ServerDatabase(url), 1) as kept:
        assert list(kept.places_naming([EVE.address, "nobody@example.org"])) == [
            "the history of matrix/19",
            "the history of matrix/3",
        ]
        assert len(kept.named_files()) == 1


async def test_whoever_has_lost_the_database_removes_nothing(postgres: PostgresServer, tmp_path: Path):
    """Another daemon may have begun. The control: with the lease it is removed."""
    url = postgres.with_tables()
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        await accept(store, "secret-of-eve", sender=EVE, session=MAIL)
        fence = await store.maintenance.lease(DAEMON, holder="we", ttl_s=30)
        said = Message(role="user", content="hello", id="1", sender=EVE.address, scope="owner")
        assert fence is not None
        await store.memory_in_database().memory.append_message(str(MAIL), said)
    layout, person = Layout(tmp_path, tmp_path), people([EVE.address], [])
    lost = ServerDatabase(url, needs=(DAEMON, "we", fence + 1))
    with pytest.raises(Fenced, match="taken over"):
        forget_person(layout, lost, person, now=EPOCH)
    with KeptTables(lost, 1) as kept, pytest.raises(Fenced, match="taken over"):
        kept.history(MAIL).remove()
    still = forget_person(layout, lost, person, now=EPOCH, only_look=True)
    assert still.counts["queue_inbox"] == 1
    forget_person(layout, ServerDatabase(url, needs=(DAEMON, "we", fence)), person, now=EPOCH)
    assert forget_person(layout, lost, person, now=EPOCH, only_look=True).counts["queue_inbox"] == 0


SAMPLES = (
    "SELECT tablename, attname, most_common_vals::text, histogram_bounds::text, most_common_elems::text"
    " FROM pg_stats WHERE schemaname = 'squidbot'"
)


def index_of_words(postgres: PostgresServer, url: str) -> bytes:
    """The file of the index of the search."""
    with postgres.admin(url.rpartition("/")[2]) as db:
        db.execute("CHECKPOINT")
        found = db.execute("SELECT pg_relation_filepath('squidbot.history_words')").fetchone()
    assert found is not None
    return (postgres.data / found[0]).read_bytes()


async def test_neither_the_planner_nor_the_index_keeps_what_was_removed(
    postgres: PostgresServer, tmp_path: Path
):
    """
    The server has sampled the tables while the texts were there; afterwards nearly all of them are empty. Of an
    index of words it removes no word by itself.
    """
    url = postgres.with_tables()
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        for text in ("secret-of-eve", "another secret"):
            await accept(store, text, sender=EVE, session=MAIL)
            turn = await claim(store, MAIL)
            said = Message(
                role="user", content=text, id=turn.id, turn=turn.id, sender=EVE.address, scope="owner"
            )
            await store.turns.complete(turn, reply(text, session=MAIL, history=[said]))
    with psycopg.connect(url, autocommit=True) as db:
        step = "INSERT INTO squidbot.all_turn_steps (home, turn, number, kind, digest, request)"
        db.execute(f"{step} VALUES (1, 't', 1, '', '', 'secret step'), (1, 't', 2, '', '', 'secret step')")
        db.execute("ANALYZE")
        db.execute("DELETE FROM squidbot.all_turn_steps")
        before = {(table, column) for table, column, *told in db.execute(SAMPLES) if "secret" in str(told)}
        assert {("all_inbox", "payload"), ("all_history", "line"), ("all_turn_steps", "request")} <= before
        assert b"secret" in index_of_words(postgres, url)

        forget_person(
            Layout(tmp_path, tmp_path / "workspace"),
            place_of_queue(tmp_path / "gateway.db", url),
            people([EVE.address], []),
            now=EPOCH,
        )

        assert b"secret" not in index_of_words(postgres, url)
        left = str(db.execute(SAMPLES).fetchall()).lower()
        assert "secret" not in left and EVE.address not in left
        for table in ("turn_steps", "history"):
            assert db.execute(f"SELECT count(*) FROM squidbot.all_{table}").fetchone() == (0,)


async def test_a_person_gets_a_new_address(postgres: PostgresServer, tmp_path: Path):
    """Rows, history, summary, memory and thread go along, also by the command; others and all words stay."""
    url = postgres.with_tables()
    old, new, thread = "eve@example.org", "eve@new.example", SessionKey("email", "t1", "eve@example.org")
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        await accept(store, f"from {old}", sender=EVE, session=thread)
        await accept(store, "others")
        memory = store.memory_in_database().memory
        for session in (thread, MAIL):
            said = Message(role="user", content=f"I am {old}", id="1", sender=old, scope=f"person:{old}")
            await memory.append_message(str(session), said)
        await memory.save_consolidation(str(thread), summary=f"{old} asked", cursor=1)
        scope = MemoryScope(ScopeKind.PERSON, old)
        await memory.save_global_memory(scope, "likes tea", session_id=str(thread), turn="x")
    home, place = tmp_path / "home", place_of_queue(tmp_path / "gateway.db", url)
    home.mkdir(0o700)
    (home / "squidbot.yaml").write_text(f"gateway:\n  store: {url}\n  state_key: a-state-key-of-the-tests\n")

    def counts(address: str) -> dict[str, int]:
        person = people([address], [])
        return forget_person(Layout(home, home), place, person, now=EPOCH, only_look=True).counts

    before = counts(old)
    assert before["queue_inbox"] == before["memory_documents"] == 1
    moved = await anyio.to_thread.run_sync(squidbot, home, "person", "move", old, new)
    assert moved.returncode == 0, moved.stderr
    again = await anyio.to_thread.run_sync(squidbot, home, "person", "move", old, new)
    assert "nothing is known of eve@example.org" in again.stderr
    assert counts(new) == before
    assert not any(counts(old).values())
    renamed = SessionKey("email", "t1", new)
    async with await PostgresQueue.open(url, clock=ManualClock()) as store:
        memory = store.memory_in_database().memory
        assert await memory.load_session_summary(str(renamed)) == f"{old} asked"
        assert (await memory.load_global_memory(MemoryScope(ScopeKind.PERSON, new))).text == "likes tea"
    with psycopg.connect(url) as db:
        lines = db.execute(
            "SELECT session, line, scope FROM squidbot.all_history ORDER BY session"
        ).fetchall()
        assert [session for session, *_ in lines] == [str(renamed), str(MAIL)]
        assert all(f"I am {old}" in line and f'"sender":"{new}"' in line for _, line, _ in lines)
        assert {name for *_, name in lines} == {f"person:{new}"}
