"""
`squidbot migrate --to …`: moves queue, histories, memory and logins of a home into PostgreSQL. A
note in ``gateway.db`` comes first (`gateway.store.copy_marker`): from then on nobody
begins to work there. Then everything is copied in one transaction, so a move that is killed or fails has left
nothing there, or all of it. Whatever the same command finds, it goes on to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.ports import Clock
from agent_core.state_folder import DiskFolder
from agent_core.storage.history_paging import PageMark
from agent_core.storage.layout import Layout
from gateway.errors import ConfigInvalid
from gateway.operations.privacy.erasure_journal import interrupted_erasures
from gateway.plugins import channel_kinds
from gateway.store.copied_home import EmbeddedTables, HomeFiles
from gateway.store.copy_marker import Marker
from gateway.store.lease import Holders
from gateway.store.opening import open_postgres
from gateway.store.sql.tables import COLUMNS
from gateway.store.state_key import StateKey
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home

if TYPE_CHECKING:
    from gateway.store.postgres.copying_into_postgres import AccountTables, PostgresTables

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

    def text(self) -> str:
        """Describe the move for people."""
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
        told.append(
            f'Change the configuration now: gateway: {{store: "{self.target}"}}, with the user and the'
            " password in it"
        )
        told.append(
            f"{self.source} is unchanged, but squidbot no longer starts on it. To undo the move, restore "
            "the backup from before it."
        )
        told.append(
            "Remove gateway.db*, sessions/, memory/ and workspace/MEMORY.md there, and nothing else, once"
            " everything works: `squidbot forget` does not erase the personal data in it."
        )
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


@dataclass(slots=True)
class HomeAccounts:
    """Logins and keys in the folders of a home. ``notes`` says what cannot be moved."""

    home: Home
    key: StateKey
    notes: list[str] = field(default_factory=list)

    def copy(self, target: AccountTables) -> None:
        """Put all of it into the database."""
        target.clear()
        encryption = target.encryption(self.key)
        for folder, name, content in self._documents():
            target.add(encryption, folder, name, content)
        for folder, plugin in product(self._folders(), channel_kinds().values()):
            for device, generation, rows in plugin.read_row_files(folder, self.notes.append):
                target.add_file(folder.name, device, generation, rows)

    def _documents(self) -> Iterator[tuple[str, str, bytes]]:
        from gateway.store.postgres.account_documents import document_names

        for folder in self._folders():
            for name in document_names(folder):
                if (content := DiskFolder(folder).read(name)) is not None:
                    yield folder.name, name, content

    def _folders(self) -> list[Path]:
        places = self.home.state("").glob("*")
        return sorted(path for path in places if path.is_dir() and not path.is_symlink())


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
    """Yield rows as PostgreSQL can have them, without NUL in texts, and count them."""
    changed = 0
    for row in rows:
        kept = tuple(value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in row)
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
