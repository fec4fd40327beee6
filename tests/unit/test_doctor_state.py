"""`squidbot check --state`: each kind of damage is found and put right without a loss; without damage, nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from agent_core.storage.jsonl import JsonlMemory
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from gateway.backup.listing import known_backups
from gateway.doctor import Verdict, check_state
from gateway.home import Home
from gateway.lock import hold_home
from tests.clock import ManualClock
from tests.home_world import ALICE, BOB, fill, tree

OLD = time.time() - 30 * 86_400


async def _indexed(root):
    index = SearchIndex(root / "search.db", Layout(root, root / "workspace"))
    await index.update_all()
    await index.aclose()


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    """A home with something of everything, made once."""
    root = tmp_path_factory.mktemp("pattern") / "h"
    anyio.run(fill, root)
    anyio.run(_indexed, root)
    return root


@pytest.fixture
def root(pattern, tmp_path):
    import shutil

    shutil.copytree(pattern, tmp_path / "h", copy_function=shutil.copy2)
    # Copies are other files than the index has read.
    (tmp_path / "h" / "search.db").unlink()
    anyio.run(_indexed, tmp_path / "h")
    return tmp_path / "h"


def examine(root, *, fix=False):
    return check_state(Home(root), root / "squidbot.yaml", fix=fix)


def failing(report):
    return {one.part for one in report.findings if one.verdict is Verdict.FAILED}


def history(root, session=ALICE) -> Path:
    return root / "sessions" / f"{session.file_name}.jsonl"


def record(root, session=ALICE) -> Path:
    return root / "sessions" / f"{session.file_name}.meta.json"


# ── each kind of damage: what is done to a sound home, which part notices, and whether it can be mended ──


def a_line_of_rubbish(root):
    with history(root).open("ab") as lines:
        lines.write(b"\x00\x00rubbish\n")
    return "histories"


def a_line_in_the_middle(root):
    raw = history(root).read_bytes()
    history(root).write_bytes(raw.replace(b'{"id"', b'{"id', 1))
    return "histories"


def a_torn_last_line(root):
    raw = history(root, BOB).read_bytes()
    history(root, BOB).write_bytes(raw[:-20])
    return "histories"


def a_missing_newline(root):
    raw = history(root, BOB).read_bytes()
    history(root, BOB).write_bytes(raw[:-1])
    return "histories"


def a_version_of_memory(root):
    path = root / "memory" / "owner" / "MEMORY.history.jsonl"
    path.write_bytes(b'{"version": 1\n' + path.read_bytes())
    return "histories"


def a_document_that_is_a_folder(root):
    path = root / "workspace" / "MEMORY.md"
    path.unlink(missing_ok=True)
    path.mkdir()
    return "memory"


def a_document_that_is_a_link_to_itself(root):
    path = root / "workspace" / "MEMORY.md"
    path.unlink(missing_ok=True)
    path.symlink_to(path)
    return "memory"


def a_summary_that_is_a_folder(root):
    path = root / "memory" / ALICE.file_name / "summary.md"
    path.unlink()
    path.mkdir()
    return "records"


def a_record(root):
    record(root).write_text("{")
    return "records"


def a_summary(root):
    (root / "memory" / ALICE.file_name / "summary.md").write_text("something else")
    return "records"


def a_spare(root):
    (root / "memory" / ALICE.file_name / "meta.json").write_text("{}")
    return "records"


def a_cursor_beyond_the_end(root):
    said = json.loads(record(root).read_text())
    for path in (record(root), root / "memory" / ALICE.file_name / "meta.json"):
        path.write_text(json.dumps({**said, "last_consolidated": 500, "offset": -1}) + "\n")
    return "records"


def an_index_of_the_database(root):
    with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
        sql, page = db.execute("SELECT sql, rootpage FROM sqlite_master WHERE name = 'inbox_work'").fetchone()
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_master WHERE name = 'inbox_work'")
    with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
        db.execute("UPDATE inbox SET state = 'dead'")
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_master VALUES ('index', 'inbox_work', 'inbox', ?, ?)", (page, sql))
    return "database"


def a_row_without_its_message(root):
    with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
        db.execute("UPDATE outbox SET inbox_id = 4711 WHERE id = (SELECT MIN(id) FROM outbox)")
    return "database"


def words_of_the_index(root):
    with closing(sqlite3.connect(root / "search.db", isolation_level=None)) as db:
        db.execute("DELETE FROM words_idx")
        db.execute("DELETE FROM words_data WHERE id > 10")
    return "search index"


def the_head_of_the_index(root):
    with (root / "search.db").open("r+b") as file:
        file.write(b"\x00" * 4096)
    return "search index"


def a_changed_file(root):
    next(path for path in root.glob("attachments/??/*")).write_bytes(b"another content")
    return "attachments"


MENDABLE = [
    a_line_of_rubbish, a_line_in_the_middle, a_torn_last_line, a_missing_newline, a_version_of_memory, a_document_that_is_a_folder,
    a_document_that_is_a_link_to_itself, a_summary_that_is_a_folder, a_record,
    a_summary, a_spare, a_cursor_beyond_the_end, an_index_of_the_database, a_row_without_its_message,
    words_of_the_index, the_head_of_the_index, a_changed_file,
]  # fmt: skip


class TestWhole:
    @pytest.mark.parametrize("fix", [False, True])
    def test_nothing_is_found_and_nothing_changed(self, root, fix):
        """Not a byte, not a file more, not the time of one: also with --fix, and after a daemon was killed."""
        before = tree(root)
        times = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        report = examine(root, fix=fix)
        assert [one for one in report.findings if one.verdict in (Verdict.FAILED, Verdict.WARNING)] == []
        assert {"histories", "records", "memory", "database", "search index", "attachments"} <= {
            one.part for one in report.findings
        }
        assert report.exit_code == 0
        assert tree(root) == before
        assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == times

    def test_a_log_of_the_database_counts(self, root):
        """What was committed last may stand in it alone; it is read, and stays where it is."""
        db = sqlite3.connect(root / "gateway.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE outbox SET inbox_id = 4711 WHERE id = (SELECT MIN(id) FROM outbox)")
        before = (root / "gateway.db-wal").read_bytes()
        report = examine(root)
        assert failing(report) == {"database"}
        assert (root / "gateway.db-wal").read_bytes() == before
        db.close()


class TestDamage:
    @pytest.mark.parametrize("damage", MENDABLE, ids=lambda one: one.__name__)
    def test_it_is_found_and_changes_nothing_by_being_looked_at(self, root, damage):
        """The part is named, with what to do; looking mends nothing by itself."""
        part = damage(root)
        before = tree(root)
        report = examine(root)
        assert failing(report) == {part}
        assert report.exit_code == 1
        assert all(one.what_to_do for one in report.findings if one.verdict is Verdict.FAILED)
        assert tree(root) == before

    @pytest.mark.parametrize("damage", MENDABLE, ids=lambda one: one.__name__)
    def test_it_is_put_right_and_nothing_is_lost(self, root, damage):
        """Afterwards nothing is found; every file that was touched is kept as it was, byte for byte."""
        damage(root)
        before = tree(root)
        report = examine(root, fix=True)
        assert failing(report) == set(), report.as_text()
        assert any(one.text.startswith("put right") for one in report.findings)
        [(_, kept)] = known_backups(root)
        after = tree(root)
        for name, content in before.items():
            if after.get(name) != content and not name.startswith("run/"):
                copies = [path.read_bytes() for path in kept.rglob("*") if path.is_file()]
                assert content in copies, name
        assert failing(examine(root)) == set()
        again = examine(root, fix=True)
        assert again.exit_code == 0
        assert len(known_backups(root)) == 1  # nothing was left to do

    async def test_lines_keep_their_places(self, root):
        """A line in the middle that cannot be read is kept aside, and what comes after it is where it was."""
        clock = ManualClock()
        whole = await JsonlMemory(root, clock=clock).load_history(str(ALICE))
        a_line_in_the_middle(root)
        await anyio.to_thread.run_sync(lambda: examine(root, fix=True))
        mended = await JsonlMemory(root, clock=clock).load_history(str(ALICE))
        assert mended.total == whole.total
        assert (mended.messages[-1], mended.positions[-1]) == (whole.messages[-1], whole.positions[-1])
        assert (mended.skipped_lines, mended.cursor) == (0, whole.cursor)
        [aside] = (root / "backups").rglob("lines-that-could-not-be-read.jsonl")
        kept = json.loads(aside.read_text())
        assert kept["byte"] == 0
        assert '{"id' in kept["line"]

    def test_a_database_that_is_beyond_mending_is_left_alone(self, root):
        """Pages of zeros: it is said, with what to do, and not a byte is changed."""
        with (root / "gateway.db").open("r+b") as file:
            file.seek(4096)
            file.write(b"\x00" * 4096 * 6)
        before = (root / "gateway.db").read_bytes()
        report = examine(root, fix=True)
        assert failing(report) == {"database"}
        assert "backup" in next(one.what_to_do for one in report.findings if one.part == "database")
        assert (root / "gateway.db").read_bytes() == before

    def test_a_later_schema_and_a_foreign_database_are_told(self, root):
        """Neither is ours to touch."""
        with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
            db.execute("PRAGMA user_version = 99")
        assert "a later one wrote it" in examine(root, fix=True).as_text()
        with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
            db.execute("PRAGMA application_id = 7")
        assert "not a database of squidbot's" in examine(root, fix=True).as_text()

    def test_a_payload_that_cannot_be_read_is_told(self, root):
        """The row goes its own way (the queue apologises); a machine cannot know what stood there."""
        with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
            db.execute("UPDATE inbox SET payload = '{\"half' WHERE id = 1")
        assert "content of row 1 of inbox" in examine(root).as_text()


class TestFiles:
    def attach(self, root, name="b"):
        import hashlib

        content = name.encode()
        digest = hashlib.sha256(content).hexdigest()
        path = root / "attachments" / digest[:2] / f"{digest}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path, {
            "name": name, "media_type": "text/plain", "size_bytes": 1,
            "path": str(path.relative_to(root)), "sha256": digest,
        }  # fmt: skip

    def name_it(self, root, file, at):
        line = {"id": "x", "role": "user", "content": "look", "timestamp": at, "attachments": [file]}
        with history(root, BOB).open("a") as lines:
            lines.write(json.dumps(line) + "\n")

    def test_a_missing_file_is_told_while_it_should_be_there(self, root):
        """One that a young message names; after `keep_days` it is removed in order, and nobody misses it."""
        path, file = self.attach(root)
        path.unlink()
        self.name_it(root, file, "2020-01-01T00:00:00Z")
        assert examine(root).exit_code == 0
        self.name_it(root, file, "2099-01-01T00:00:00Z")
        report = examine(root)
        assert failing(report) == {"attachments"}
        assert file["path"] in report.as_text()

    def test_an_old_file_that_nobody_names_is_put_aside(self, root):
        """A warning, no damage; a young one may belong to a message that is just coming in."""
        path, file = self.attach(root)
        assert examine(root).exit_code == 0
        os.utime(path, (OLD, OLD))
        assert "named by no message" in examine(root).as_text()
        assert examine(root).exit_code == 0
        self.name_it(root, file, "2020-01-01T00:00:00Z")
        assert "named by no message" not in examine(root).as_text()
        history(root, BOB).write_text("")
        examine(root, fix=True)
        assert not path.exists()
        assert [each.read_bytes() for each in (root / "backups").rglob(path.name)] == [b"b"]


class TestDaemon:
    def test_nothing_is_put_right_while_one_runs(self, root):
        """It is said, and not a byte is changed; looking is allowed."""
        a_line_of_rubbish(root)
        with hold_home(Home(root)):
            before = tree(root)
            report = examine(root, fix=True)
            assert "so nothing was put right" in report.as_text()
            assert report.exit_code == 1
            # What every reader of a database in use brings along.
            assert {name: text for name, text in tree(root).items() if "gateway.db-" not in name} == before
        assert failing(examine(root, fix=True)) == set()

    def test_what_is_just_being_written_is_no_damage(self, root):
        """A line without an end may be half-way; when nobody writes it is torn."""
        a_torn_last_line(root)
        with hold_home(Home(root)):
            assert failing(examine(root)) == set()
        assert failing(examine(root)) == {"histories"}
