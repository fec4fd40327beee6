"""A person with a new address: everything of theirs goes along, nothing of anybody else, whatever is killed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

from agent_core.messages import MessageContext, SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from gateway.app.daemon import log_interrupted_erasures
from gateway.cli.check.all_checks import _check_home, check_data
from gateway.cli.check.check_report import CheckReport
from gateway.errors import NotFound, StateUnusable
from gateway.operations.privacy import moved_person
from gateway.operations.privacy.inventory import Person, PersonUnclear
from gateway.operations.privacy.moved_person import move_person
from gateway.settings import Settings
from gateway.store.model import Job, JobKind
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from tests.clock import EPOCH
from tests.home_world import BOB, BOT, ROOM, fill
from tests.persons import find_person

OLD, NEW = "@bob:hs.test", "@robert:elsewhere.example"
OWNER = ("@alice:hs.test",)
MAIL = SessionKey("email", "thread-3f2a", "bob@mail.test")


async def planted(root):
    """A home in which Bob has something wherever somebody can have something, in a mail thread too."""
    filled = await fill(root)
    memory = JsonlMemory(root, clock=filled.clock)
    await filled.say(BOB, OLD, "my question", "my answer", native_id="$b2")
    await filled.say(ROOM, OLD, f"write to {OLD}", "noted", native_id="$r3")
    await filled.say(BOB, OLD, "waiting", None, native_id="$b3")
    await filled.say(MAIL, "bob@mail.test", "a mail", "its answer", native_id="<m1>")
    await memory.save_global_memory(
        MemoryScope(ScopeKind.PERSON, OLD), "likes tea", session_id=str(BOB), turn="x"
    )
    await memory.save_consolidation(str(BOB), summary=f"{OLD} asked", cursor=2)
    await memory.save_consolidation(str(MAIL), summary="of mails", cursor=1)
    async with await SqliteQueue.open(filled.home.database, clock=filled.clock) as store:
        for number, (session, person) in enumerate(((BOB, OLD), (MAIL, "bob@mail.test"))):
            job = Job(
                id=f"job{number}", kind=JobKind.REMIND, text=f"call {OLD}", timing="at 2030-01-01T00:00:00Z",
                session=session, account=BOT, person=person, created_at=EPOCH, context=MessageContext(cc=(person,)),
                next_at=EPOCH + timedelta(days=1),
            )  # fmt: skip
            await store.jobs.add_job(job, at_most=50)
    with closing(sqlite3.connect(filled.home.database)) as db, db:
        db.execute(
            "INSERT INTO grants (id, kind, tool, what, session, people, given_by, at, until, turn, origins)"
            " VALUES ('g1', 'call', 'x', '', ?, ?, ?, 1, 2, '', '[]')",
            (str(BOB), json.dumps([OLD]), OLD),
        )
        db.execute("INSERT INTO state VALUES (?, ?)", (f"trusted:{MAIL}", "1"))
        db.execute("INSERT INTO once VALUES (?, ?)", (f"digest matrix {OLD}", "1"))
    return filled


def layout_of(home):
    return Layout(home.home.root, home.home.root / "workspace")


def move(home, old=OLD, new=NEW):
    return move_person(layout_of(home), home.home.database, old, new, OWNER)


def rows(home, query):
    with closing(sqlite3.connect(home.home.database)) as db:
        return db.execute(query).fetchall()


def found(home, address):
    return find_person(layout_of(home), home.home.database, Person(frozenset({address}))).counts()


async def test_everything_goes_along_and_nothing_of_anybody_else(tmp_path):
    """The same counts under the new address as under the old one before, and the words stay as they were written."""
    home = await planted(tmp_path / "home")
    before, others = found(home, OLD), found(home, "@alice:hs.test")
    assert before["memory_documents"] == before["queue_jobs"] == before["queue_grants"] == 1
    move(home)
    assert found(home, NEW) == before
    assert not any(found(home, OLD).values())
    assert found(home, "@alice:hs.test") == others
    memory = JsonlMemory(home.home.root, clock=home.clock)
    assert (await memory.load_global_memory(MemoryScope(ScopeKind.PERSON, NEW))).text == "likes tea"
    assert await memory.load_session_summary(str(BOB)) == f"{OLD} asked"
    told = (home.home.root / "sessions" / f"{ROOM.file_name}.jsonl").read_text()
    assert f"write to {OLD}" in told
    assert f'"sender":"{NEW}"' in told
    assert rows(home, "SELECT person, text, context FROM jobs WHERE id = 'job0'") == [
        (NEW, f"call {OLD}", json.dumps({"cc": [NEW]}, separators=(",", ":")))
    ]
    assert rows(home, "SELECT people, given_by FROM grants") == [(json.dumps([NEW]), NEW)]
    assert (f"digest matrix {NEW}",) in rows(home, "SELECT topic FROM once")
    assert not list((home.home.root / "state").glob("moving*"))


async def test_a_thread_by_mail_goes_on_under_the_new_address(tmp_path):
    """The session of a thread has the person in its name: history, summary, reminders and trust follow."""
    home = await planted(tmp_path / "home")
    move(home, "Bob@mail.test", "bob@new.test")
    moved = SessionKey(MAIL.channel, MAIL.conversation, "bob@new.test")
    layout = layout_of(home)
    assert not layout.history(MAIL).exists()
    assert "a mail" in layout.history(moved).read_text()
    memory = JsonlMemory(home.home.root, clock=home.clock)
    assert await memory.load_session_summary(str(moved)) == "of mails"
    assert not layout.record(MAIL).exists()
    assert rows(home, "SELECT session, person FROM jobs WHERE id = 'job1'") == [(str(moved), "bob@new.test")]
    assert (f"trusted:{moved}",) in rows(home, "SELECT topic FROM state")
    assert rows(
        home, "SELECT count(*) FROM inbox WHERE session LIKE '%bob@mail%' OR payload LIKE '%bob@mail%'"
    ) == [(0,)]


def _home_report(home):
    report = CheckReport()
    try:
        _check_home(report, home)
    except StateUnusable as error:
        report.fail("home", error)
    return report


STEPS = ("_move_history", "_move_documents", "rename_person")


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("old", [OLD, "bob@mail.test"])
async def test_killed_in_between_the_same_command_does_the_rest(tmp_path, monkeypatch, name, when, old):
    """Dying before and after each step, at each history: then all is as if nobody had died."""
    home = await planted(tmp_path / "home")
    before, do, left = found(home, old), getattr(moved_person, name), [2 if name == "_move_history" else 1]

    class KilledError(BaseException):
        pass

    def dying(*arguments):
        left[0] -= 1
        if when == "after" or left[0]:
            do(*arguments)
        if not left[0]:
            raise KilledError

    new = NEW if old == OLD else "bob@new.test"
    with monkeypatch.context() as patched:
        patched.setattr(moved_person, name, dying)
        with pytest.raises(KilledError):
            move(home, old, new)
    with pytest.raises(PersonUnclear, match="finish that"):
        move(home, "@carol:hs.test", "@c:x.test")
    with pytest.raises(StateUnusable, match=f"squidbot person move {old} {new}"):
        log_interrupted_erasures(Settings(), home.home)
    (home.home.root / "squidbot.yaml").write_text("")
    for report in (check_data(home.home, home.home.config_file), _home_report(home.home)):
        assert any(f"squidbot person move {old} {new}" in each.text for each in report.findings)
        assert report.exit_code
    move(home, old, new)
    log_interrupted_erasures(Settings(), home.home)
    assert found(home, new) == before
    assert not any(found(home, old).values())
    assert not [path for path in home.home.root.rglob("*") if path.suffix in (".moving", ".tmp")]


async def test_whoever_is_somebody_already_stays_themselves(tmp_path):
    """Nobody becomes the owner or another person, and nothing is changed by what is refused."""
    home = await planted(tmp_path / "home")
    before = found(home, OLD)
    for new, why in (
        ("@alice:hs.test", "is the owner already"),
        ("bob@mail.test", "is somebody here already"),
        (OLD, "the same address"),
        ("nobody", "is not an address"),
    ):
        with pytest.raises(PersonUnclear, match=why):
            move(home, OLD, new)
    with pytest.raises(NotFound):
        move(home, "@carol:hs.test", NEW)
    assert found(home, OLD) == before


async def test_a_conversation_of_the_new_address_is_not_replaced(tmp_path):
    """The owner has written from both addresses in one thread: the move would have replaced one history by the other."""
    home = await planted(tmp_path / "home")
    there = SessionKey(MAIL.channel, MAIL.conversation, "bob@new.test")
    await home.say(there, "bob@new.test", "another mail", "another answer", native_id="<m2>")
    owner = ("bob@mail.test", "bob@new.test")
    with pytest.raises(PersonUnclear, match="same thread"):
        move_person(layout_of(home), home.home.database, "bob@mail.test", "bob@new.test", owner)
    assert "another mail" in layout_of(home).history(there).read_text()
    assert "a mail" in layout_of(home).history(MAIL).read_text()
