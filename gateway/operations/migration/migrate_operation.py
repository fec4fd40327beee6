"""
`squidbot migrate --to …`: moves the queue, the histories and the memory to the other engine. Theory of
operation. A note in the database that is left comes first (`gateway.store.copy_marker`): from then on nobody
begins to work there. Then everything is copied. To PostgreSQL that is one transaction, so a move that is
killed or fails has left nothing there, or all of it. Into a home it is made beside the content and moved into
its place as a backup is, the database last. Whatever the same command finds, it goes on to the end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.files import replace as replace_file
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.ports import Clock
from agent_core.storage.history_paging import PageMark
from agent_core.storage.layout import Layout
from agent_core.storage.session_files import parse_record
from gateway.errors import ConfigInvalid, GatewayError
from gateway.operations.backup.restore import finish_restore, move_into_home
from gateway.operations.migration.moving_accounts import HomeAccounts, write_accounts
from gateway.operations.privacy.erasure_journal import interrupted_erasures
from gateway.store.copied_files import HomeFiles, write_conversation, write_document
from gateway.store.copied_tables import storable_row
from gateway.store.copy_marker import Marker
from gateway.store.lease import Holders
from gateway.store.opening import open_postgres
from gateway.store.sql.tables import COLUMNS
from gateway.store.sqlite.copying_into_sqlite import EmbeddedTables
from gateway.store.state_key import StateKey
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home
from gateway.system.restore_marker import read_unfinished_restore

if TYPE_CHECKING:
    from gateway.store.postgres.copying_into_postgres import PostgresTables

_SHOWN = 20


@dataclass(slots=True)
class Moved:
    """The result of a move. ``already``: an earlier run had done it."""

    source: str
    target: str
    rows: int = 0
    sessions: int = 0
    lines: int = 0
    documents: int = 0
    versions: int = 0
    notes: list[str] = field(default_factory=list)
    already: bool = False

    def text(self, setting: str) -> str:
        """Describe the move for people; ``setting`` is the line that the configuration needs."""
        if self.already:
            told = [f"{self.target} already has everything from {self.source}: an earlier run copied it."]
        else:
            counts = (
                f"{self.rows} rows, {self.sessions} conversations with {self.lines} lines, {self.documents}"
                f" memory documents with {self.versions} versions"
            )
            told = [f"{self.target} has everything from {self.source}: {counts}."]
        told += [f"note: {note}" for note in self.notes[:_SHOWN]]
        if len(self.notes) > _SHOWN:
            told.append(f"note: and {len(self.notes) - _SHOWN} more")
        told.append(f"Change the configuration now: {setting}")
        told.append(
            f"{self.source} is unchanged, but squidbot no longer starts on it. To undo the move, restore "
            "the backup from before it."
        )
        of_home = "gateway.db*, sessions/, memory/ and workspace/MEMORY.md there, and nothing else"
        what = "the schema squidbot there" if self.source.startswith("postgresql:") else of_home
        told.append(
            f"Remove {what}, once everything works: `squidbot forget` does not erase the personal data in it."
        )
        if what == of_home:
            told.append("Keep the rest of the home: workspace, attachments and the state key are still used.")
        return "\n".join(told)


def to_postgres(
    home: Home, workspace: Path, url: str, clock: Clock, *, state_key: str | None = None
) -> Moved:
    """
    Move a home's queue, histories and memory into PostgreSQL; repeat the command to continue.

    Raises AlreadyRunning, LeaseTaken, ConfigInvalid (with the remedy) or StoreUnavailable.
    """
    with open_postgres(), hold_home(open_home(home.root, as_guest=True), purpose="command"):
        from gateway.store.postgres.copying_into_postgres import PostgresTables
        from gateway.store.postgres.postgres_connection import place_of
        from gateway.store.postgres.postgres_queue import HOME, migrate

        files, where = HomeFiles(Layout(home.root, workspace), clock), place_of(url)
        accounts = HomeAccounts(home, StateKey(state_key, home.state_key))
        _refuse_erasure(files.layout)
        with EmbeddedTables.open(home.database) as source:
            marker, wanted = source.marker, Marker(where, f"{clock.now():%Y-%m-%d}")
            _refuse_elsewhere(marker, wanted, str(home.database))
            moved = Moved(str(home.root), where, already=True)
            if marker is None or not marker.done:
                migrate(url)
                with PostgresTables.open(url, HOME, Holders(home.lease_holders)) as target:
                    if not _has_it(target, source, marker):
                        source.set_marker(wanted)
                        try:
                            moved = Moved(str(home.root), where)
                            _copy(source, files, target, moved)
                            accounts.copy(target.accounts)
                            moved.notes += [*files.notes, *accounts.notes]
                        except BaseException:  # nothing was committed there
                            source.set_marker(None)
                            raise
                source.set_marker(replace(wanted, done=True))
            return moved


def move_to_embedded(
    home: Home, workspace: Path, url: str, clock: Clock, *, state_key: str | None = None
) -> Moved:
    """
    Move a PostgreSQL queue, histories and memory into the home; repeat the command to continue.

    Raises AlreadyRunning, LeaseTaken, ConfigInvalid (with the remedy) or StoreUnavailable.
    """
    if read_unfinished_restore(home.root) is not None:
        finish_restore(home.root)
    with open_postgres(), hold_home(open_home(home.root, as_guest=True), purpose="command"):
        from gateway.store.postgres.copying_into_postgres import PostgresTables
        from gateway.store.postgres.postgres_queue import HOME

        layout, wanted = Layout(home.root, workspace), Marker(str(home.root), f"{clock.now():%Y-%m-%d}")
        key = StateKey(state_key, home.state_key)
        _refuse_erasure(layout)
        with PostgresTables.open(url, HOME, Holders(home.lease_holders)) as source:
            marker, secret, where = source.marker, source.secret, source.where
            _refuse_elsewhere(marker, wanted, where)
            source.accounts.encryption(key)
            is_there = _home_has_it(home, layout, secret, marker)
            if marker is None:
                source.set_marker(wanted)
        moved = Moved(where, str(home.root), already=True)
        try:
            with PostgresTables.open(url, HOME, Holders(home.lease_holders)) as source:
                if not is_there:
                    write_accounts(home, source.accounts, key)
                    moved.already = False
                    stage = _make_copy(home, layout, source, clock, moved)
                    is_there = True
                    left = [
                        path.name for name in ("gateway.db*", "search.db*") for path in home.root.glob(name)
                    ]
                    move_into_home(home.root, stage, [*left, "sessions", "memory"], now=clock.now())
                source.set_marker(replace(wanted, done=True))
        except BaseException:
            if not is_there:  # nothing is in its place here
                with (
                    suppress(GatewayError),
                    PostgresTables.open(url, HOME, Holders(home.lease_holders)) as source,
                ):
                    source.set_marker(None)
            raise
        return moved


def _home_has_it(home: Home, layout: Layout, secret: str, marker: Marker | None) -> bool:
    """Return True if an earlier try was killed after all was in place. Raises ConfigInvalid."""
    if not home.database.exists():
        if any(layout.sessions.glob("*.jsonl")):
            raise ConfigInvalid(
                f"{layout.sessions} contains histories of another queue; move them away first"
            )
        return False
    with EmbeddedTables.open(home.database) as there:
        if there.marker is not None and there.marker.done:
            return False  # what was left by a move in the other direction; it is put aside
        if marker is not None and there.secret == secret:
            return True
        if there.has_rows() or any(layout.sessions.glob("*.jsonl")):
            raise ConfigInvalid(
                f"{home.root} already has a queue, which was not touched: name another home, or move "
                "gateway.db, sessions/ and memory/ away"
            )
    return False


def _make_copy(home: Home, layout: Layout, source: PostgresTables, clock: Clock, moved: Moved) -> Path:
    """Write everything into a folder beside the content of the home; return the folder."""
    for old in home.root.glob(".restore-*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    stage = home.root / f".restore-{os.getpid()}"
    stage.mkdir(mode=0o700)
    try:
        with EmbeddedTables.open(stage / home.database.name, new=True) as tables:
            tables.fill(
                source.secret, source.last_line(), lambda table: _storable_rows(source.rows(table), moved)
            )
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=home.root) as workspace:
            made = Layout(stage, Path(workspace))
            _write_files(source, made, clock, moved)
            document = made.document(MemoryScope(ScopeKind.OWNER))
            text = document.read_bytes() if document.exists() else None
            _put_document(text, layout.document(MemoryScope(ScopeKind.OWNER)), clock)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    moved.notes += source.too_long.values()
    return stage


def _write_files(source: PostgresTables, layout: Layout, clock: Clock, moved: Moved) -> None:
    records = source.records()

    def write(name: str, each: Iterable[str]) -> None:
        key = SessionKey.parse(name)
        record = parse_record(records.pop(name, "").encode(), key, str)
        moved.lines += write_conversation(layout, key, each, record, clock)
        moved.sessions += 1

    for name, each in source.histories():
        write(name, each)
    for name in list(records):
        write(name, ())
    for name, versions in source.documents():
        moved.versions += write_document(layout, MemoryScope.parse(name), versions)
        moved.documents += 1


def _put_document(text: bytes | None, place: Path, clock: Clock) -> None:
    """Put the owner's document into the workspace; what is there and differs is kept beside it."""
    if place.exists() and place.read_bytes() != text:
        place.rename(place.with_name(f"{place.name}.before-{clock.now():%Y%m%dT%H%M%S%fZ}"))
    if text is not None:
        replace_file(place, text)


def _refuse_erasure(layout: Layout) -> None:
    if interrupted_erasures(layout):
        raise ConfigInvalid(
            "a `squidbot forget` was interrupted and would not find everything after a move; run it "
            "again first (squidbot check --data names it)"
        )


def _refuse_elsewhere(marker: Marker | None, wanted: Marker, where: str) -> None:
    if marker is not None and marker.to != wanted.to:
        did = "was moved" if marker.done else "is being moved"
        raise ConfigInvalid(
            f"{where} {did} to {marker.to}, not to {wanted.to}; to undo that move, restore "
            "the backup from before it"
        )


def _has_it(target: PostgresTables, source: EmbeddedTables, marker: Marker | None) -> bool:
    """Return True if an earlier try was killed after its commit there. Raises ConfigInvalid."""
    if target.marker is not None:
        raise ConfigInvalid(
            f"{target.where} has a queue that was moved to {target.marker.to}, and was not touched: name "
            "another database, or remove that copy (DROP SCHEMA squidbot CASCADE)"
        )
    if marker is not None and target.secret == source.secret:
        return True
    if not (used := target.filled_tables()):
        return False
    whose = "an earlier copy of this queue" if target.secret == source.secret else "another queue"
    raise ConfigInvalid(
        f"{target.where} is not empty: it has {whose} (rows in {', '.join(used[:3])}). It was not touched:"
        " name another database, or remove what is there (DROP SCHEMA squidbot CASCADE)"
    )


def _storable_rows(rows: Iterable[tuple[object, ...]], moved: Moved) -> Iterator[tuple[object, ...]]:
    """Yield rows as PostgreSQL can have them, and count them."""
    changed = 0
    for row in rows:
        kept = storable_row(row)
        changed += kept != tuple(row)
        moved.rows += 1
        yield kept
    if changed:
        moved.notes.append(f"{changed} rows have a NUL in a text, which became U+FFFD in {moved.target}")


def _copy(source: EmbeddedTables, files: HomeFiles, target: PostgresTables, moved: Moved) -> None:
    from gateway.store.postgres.histories.session_records import encode

    for table in COLUMNS:
        target.add(table, _storable_rows(source.rows(table), moved))
    target.set_next_numbers(source.last_line())
    for one in files.conversations():
        target.add_history(str(one.key), one.lines())
        moved.sessions, moved.lines = moved.sessions + 1, moved.lines + one.count
        if one.record is not None:
            target.add_record(
                str(one.key), encode(str(one.key), replace(one.record, place=PageMark(one.cursor, -1)))
            )
    for scope, versions in files.documents():
        target.add_versions(str(scope), versions)
        moved.documents, moved.versions = moved.documents + 1, moved.versions + len(versions)
    target.set_secret(source.secret)
