"""`squidbot check --data`: each kind of damage is found and repaired without a loss; without damage, nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing

import anyio
import pytest

from agent_core.storage.jsonl_memory import JsonlMemory
from agent_core.storage.layout import Layout
from agent_core.storage.search_index import SearchIndex
from gateway.cli.check.all_checks import check_data
from gateway.cli.check.check_report import FindingLevel
from gateway.operations.backup.contents import known_backups
from gateway.system.home import Home
from gateway.system.lock import hold_home
from tests.clock import ManualClock
from tests.home_damage import MENDABLE, a_line_in_the_middle, a_line_of_rubbish, a_torn_last_line, history
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


def examine(root, *, repair=False):
    return check_data(Home(root), root / "squidbot.yaml", repair=repair)


def failing(report):
    return {one.part for one in report.findings if one.verdict is FindingLevel.FAILED}


class TestWhole:
    @pytest.mark.parametrize("repair", [False, True])
    def test_nothing_is_found_and_nothing_changed(self, root, repair):
        """Not a byte, not a file more, not the time of one: also with --repair, and after a daemon was killed."""
        before = tree(root)
        times = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
        report = examine(root, repair=repair)
        assert [
            one for one in report.findings if one.verdict in (FindingLevel.FAILED, FindingLevel.WARNING)
        ] == []
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
        assert all(one.what_to_do for one in report.findings if one.verdict is FindingLevel.FAILED)
        assert tree(root) == before

    @pytest.mark.parametrize("damage", MENDABLE, ids=lambda one: one.__name__)
    def test_it_is_put_right_and_nothing_is_lost(self, root, damage):
        """Afterwards nothing is found; every file that was touched is kept as it was, byte for byte."""
        damage(root)
        before = tree(root)
        report = examine(root, repair=True)
        assert failing(report) == set(), report.as_text()
        assert any(one.text.startswith("repaired") for one in report.findings)
        [(_, kept)] = known_backups(root)
        after = tree(root)
        for name, content in before.items():
            if after.get(name) != content and not name.startswith("run/"):
                copies = [path.read_bytes() for path in kept.rglob("*") if path.is_file()]
                assert content in copies, name
        assert failing(examine(root)) == set()
        again = examine(root, repair=True)
        assert again.exit_code == 0
        assert len(known_backups(root)) == 1  # nothing was left to do

    async def test_lines_keep_their_places(self, root):
        """A line in the middle that cannot be read is kept aside, and what comes after it is where it was."""
        clock = ManualClock()
        whole = await JsonlMemory(root, clock=clock).load_history(str(ALICE))
        a_line_in_the_middle(root)
        await anyio.to_thread.run_sync(lambda: examine(root, repair=True))
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
        report = examine(root, repair=True)
        assert failing(report) == {"database"}
        assert "backup" in next(one.what_to_do for one in report.findings if one.part == "database")
        assert (root / "gateway.db").read_bytes() == before

    def test_a_later_schema_and_a_foreign_database_are_told(self, root):
        """Neither is ours to touch."""
        with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
            db.execute("PRAGMA user_version = 99")
        assert "another one wrote it" in examine(root, repair=True).as_text()
        with closing(sqlite3.connect(root / "gateway.db", isolation_level=None)) as db:
            db.execute("PRAGMA application_id = 7")
        assert "not a database of squidbot's" in examine(root, repair=True).as_text()

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
        assert "no message refers to" in examine(root).as_text()
        assert examine(root).exit_code == 0
        self.name_it(root, file, "2020-01-01T00:00:00Z")
        assert "no message refers to" not in examine(root).as_text()
        history(root, BOB).write_text("")
        examine(root, repair=True)
        assert not path.exists()
        assert [each.read_bytes() for each in (root / "backups").rglob(path.name)] == [b"b"]


class TestDaemon:
    def test_nothing_is_put_right_while_one_runs(self, root):
        """It is said, and not a byte is changed; looking is allowed."""
        a_line_of_rubbish(root)
        with hold_home(Home(root)):
            before = tree(root)
            report = examine(root, repair=True)
            assert "so nothing was repaired" in report.as_text()
            assert report.exit_code == 1
            # What every reader of a database in use brings along.
            assert {name: text for name, text in tree(root).items() if "gateway.db-" not in name} == before
        assert failing(examine(root, repair=True)) == set()

    def test_what_is_just_being_written_is_no_damage(self, root):
        """A line without an end may be half-way; when nobody writes it is torn."""
        a_torn_last_line(root)
        with hold_home(Home(root)):
            assert failing(examine(root)) == set()
        assert failing(examine(root)) == {"histories"}
