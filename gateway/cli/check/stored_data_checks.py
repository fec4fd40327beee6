"""
`squidbot check --data`: checks the data in the home folder for damage; `--repair` repairs what it can.
Looking changes no byte. Mending first copies every file that it will touch into a folder of its own
(``HOME/backups/check-…``), then works on the files, and never throws anything away: lines that cannot be read
are kept there, files that are wrong are moved there, what is derived is made again. It wants the home for
itself, so no daemon may run.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.files import write_new
from agent_core.messages import SessionKey
from agent_core.ports import Clock
from agent_core.storage import storage_integrity
from agent_core.storage.durable_files import is_file_or_nothing
from agent_core.storage.history_file import SET_ASIDE
from agent_core.storage.layout import Layout
from agent_core.storage.memory_files import DocumentFile
from agent_core.storage.search_index.indexed_files import examine_index, index_files
from agent_core.storage.storage_integrity import documents, last_text, left_in_files
from channels.attachments import Storage
from gateway.cli.check.attachment_checks import attachment_contents, attachment_files, moved_aside
from gateway.cli.check.check_report import IntegrityFinding
from gateway.errors import StateUnusable
from gateway.operations.backup.contents import note_backup
from gateway.operations.privacy.erasure_journal import check_no_move_pending, interrupted_erasures
from gateway.store.opening import open_sqlite
from gateway.store.personal_rows import table_problems
from gateway.store.place import ServerDatabase
from gateway.store.sqlite.database_integrity import examine_database, names_in_rows, repair_database
from gateway.system.home import Home

_KEPT_LINES = "lines-that-could-not-be-read.jsonl"


@dataclass(slots=True)
class Repaired:
    """The result of `repair_state`: the place of the copies (None: nothing to do), repairs, and failures."""

    kept: Path | None = None
    done: list[IntegrityFinding] = field(default_factory=list)
    left: list[tuple[IntegrityFinding, str]] = field(default_factory=list)


def examine_state(
    home: Home,
    layout: Layout,
    *,
    clock: Clock,
    keep_days: float = 180.0,
    in_use: bool = False,
    storage: Storage | None = None,
    server: ServerDatabase | None = None,
) -> Iterator[IntegrityFinding]:
    """
    Check all data of the home. It reads everything and changes nothing.

    Args:
        keep_days: How long files of messages are kept.
        in_use: A daemon works on it: what it is just writing is not looked at.
        storage: Where files of messages are; by default in the home.
        server: Where the queue is, and with it histories and memory, if they are not in the home; then
            nothing is said about which files are needed.

    Raises:
        OSError: The home itself cannot be read.
        StoreUnavailable, ConfigInvalid: The server cannot be asked.
    """
    if server is not None:
        yield from _tables(layout, server)
        yield from _erasures(layout)
        yield from attachment_contents(home, storage)
        return
    named: dict[str, bool] = {}
    since = clock.now() - timedelta(days=keep_days)
    for key, path in storage_integrity.histories(layout):
        yield from _lines(path, in_use=in_use)
        try:
            for one in storage_integrity.files_in(path):
                named[one.file.path] = named.get(one.file.path, False) or _after(one.at, since)
        except OSError:
            continue  # told above
        if key is None:
            yield IntegrityFinding(
                "histories",
                f"{path.name} is a history without a known session",
                serious=False,
                remedy=(
                    "its .meta.json names the session; without that file squidbot does not read the history"
                ),
            )
        elif layout.name(key) == path.stem:
            yield from _record(layout, key, path, clock)
    yield from _set_aside(layout)
    yield from unusable_documents(layout)
    yield from _erasures(layout)
    for path in filter(Path.is_file, storage_integrity.version_files(layout)):
        yield from _lines(path, in_use=in_use)
    all_named = yield from _queue(home, named, in_use=in_use)
    yield from _index(home, in_use=in_use)
    yield from attachment_contents(home, storage)
    if all_named:
        yield from attachment_files(home, storage, named, clock)


def _tables(layout: Layout, server: ServerDatabase) -> Iterator[IntegrityFinding]:
    for trouble in table_problems(server):
        yield IntegrityFinding(trouble.part, trouble.text, serious=trouble.serious, remedy=trouble.remedy)
    if left := left_in_files(layout):
        yield IntegrityFinding("histories", left, serious=False, remedy="see docs/postgres.md")


def _queue(home: Home, named: dict[str, bool], *, in_use: bool) -> Generator[IntegrityFinding, None, bool]:
    """Yield the findings about the database; return True if its file names are all in ``named``."""
    if not home.database.exists():
        return True
    yield from _database(home, in_use=in_use)
    rows = names_in_rows(home.database, in_use=in_use)
    for name, needed in (rows or {}).items():
        named[name] = named.get(name, False) or needed
    return rows is not None  # else it was told above


def repair_state(home: Home, troubles: Iterable[IntegrityFinding], *, now: datetime) -> Repaired:
    """Repair each finding by itself, holding the home's lock. Raises StateUnusable if no copy can be made."""
    repaired = Repaired()
    wanted = list(troubles)
    able = [one for one in wanted if one.repair is not None]
    repaired.left += [(one, one.remedy) for one in wanted if one.repair is None]
    if not able:
        return repaired
    kept = _folder(home, now)
    try:
        kept.mkdir(parents=True, mode=0o700)
        for path in dict.fromkeys(path for one in able for path in one.files if path.exists()):
            _copied(
                path, kept / "copies" / path.relative_to(home.root if path.is_relative_to(home.root) else "/")
            )
    except OSError as error:
        shutil.rmtree(kept, ignore_errors=True)
        raise StateUnusable(
            f"the files cannot be copied to {kept}, so nothing was changed: {error}"
        ) from error
    repaired.kept = kept
    note_backup(home.root, kept, now=now)
    for one in able:
        assert one.repair is not None, "chosen above"
        try:
            one.repair(kept)
        except Exception as error:  # noqa: BLE001 - one that cannot be repaired must not stop the others
            repaired.left.append((one, f"it could not be repaired: {type(error).__name__}: {error}"))
        else:
            repaired.done.append(one)
    return repaired


# ── what is looked at ──


def _lines(path: Path, *, in_use: bool) -> Iterator[IntegrityFinding]:
    try:
        bad = storage_integrity.bad_lines(path, still_written=in_use)
    except OSError as error:
        if not path.is_symlink() and is_file_or_nothing(path):
            yield IntegrityFinding(
                "histories",
                f"{path.name} cannot be read: {error.strerror or error}",
                remedy="look at its rights, and at the disk",
            )
            return
        yield IntegrityFinding(
            "histories",
            f"{path.name} is not a file, so squidbot begins a new history in its place",
            (),
            lambda kept: moved_aside(path, kept / "moved" / path.name),
            remedy="if you have the file, put it back; squidbot check --data --repair moves aside "
            "what is there",
        )
        return
    if not bad:
        return

    def repair(kept: Path) -> None:
        with (kept / _KEPT_LINES).open("a", encoding="utf-8") as out, path.open("rb") as source:
            for one in bad:
                source.seek(one.offset)
                raw = source.read(one.length)
                text = raw.decode("utf-8", "backslashreplace")
                out.write(
                    json.dumps({"file": path.name, "byte": one.offset, "why": one.why, "line": text}) + "\n"
                )
            out.flush()
            os.fsync(out.fileno())
        for one in bad:
            storage_integrity.blank_out(path, one)

    where = ", ".join(f"byte {one.offset} ({one.why})" for one in bad[:3])
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    count = "1 line" if len(bad) == 1 else f"{len(bad)} lines"
    yield IntegrityFinding(
        "histories",
        f"{path.name}: {count} cannot be read: {where}{more}",
        (path,),
        repair,
        remedy="squidbot check --data --repair moves them aside; everything else stays in its place",
    )


def _record(layout: Layout, key: SessionKey, path: Path, clock: Clock) -> Iterator[IntegrityFinding]:
    try:
        said = storage_integrity.record_troubles(layout, key)
    except OSError as error:
        said = [f"cannot be read: {error.strerror or error}"]
    files = (layout.record(key), layout.summary(key))

    def repair(kept: Path) -> None:
        for each in files:
            if not is_file_or_nothing(each):
                moved_aside(each, kept / "moved" / path.stem / each.name)
        storage_integrity.repair_record(layout, key, clock)

    for text in said[:1]:
        more = f"; {'; '.join(said[1:])}" if said[1:] else ""
        yield IntegrityFinding(
            "records",
            f"{path.stem}: {text}{more}",
            tuple(filter(Path.is_file, files)),
            repair,
            remedy="squidbot check --data --repair repairs them; without a record squidbot summarises again",
        )


def _set_aside(layout: Layout) -> Iterator[IntegrityFinding]:
    for path in sorted(layout.sessions.glob(f"*{SET_ASIDE}-*")):
        yield IntegrityFinding(
            "histories",
            f"{path.name} was in the place of a history and is not a file",
            serious=False,
            remedy="look at it, then remove it",
        )


def _erasures(layout: Layout) -> Iterator[IntegrityFinding]:
    for addresses in interrupted_erasures(layout):
        whose = ", ".join(addresses)
        yield IntegrityFinding(
            "erasure",
            f"squidbot forget was interrupted: a part of the data of {whose} is still there",
            remedy=f"squidbot forget {shlex.join(addresses)}",
        )
    try:
        check_no_move_pending(layout)
    except StateUnusable as error:
        yield IntegrityFinding("person", str(error))


def _database(home: Home, *, in_use: bool) -> Iterator[IntegrityFinding]:
    path = home.database
    files = tuple(path.with_name(f"{path.name}{suffix}") for suffix in ("", "-wal"))
    with open_sqlite():
        damages = examine_database(path, in_use=in_use)
    for one in damages:
        if not one.mendable:
            remedy = "it was not touched; keep a copy of the file, then restore a backup (squidbot restore)"
            yield IntegrityFinding("database", one.text, remedy=remedy)
    mendable = [one.text for one in damages if one.mendable]
    if mendable and len(mendable) == len(damages):

        def repair(_kept: Path) -> None:
            repair_database(path)
            left = examine_database(path)
            if left:
                raise StateUnusable("; ".join(one.text for one in left[:3]))

        yield IntegrityFinding(
            "database",
            "\n".join(mendable),
            files,
            repair,
            remedy="squidbot check --data --repair rebuilds its indexes",
        )
    elif mendable:
        yield IntegrityFinding(
            "database", "\n".join(mendable), remedy="restore a backup, because of the other damage"
        )


def _index(home: Home, *, in_use: bool) -> Iterator[IntegrityFinding]:
    path = home.root / "search.db"
    if in_use:
        return  # the daemon notices by itself, and makes it again
    if said := examine_index(path):
        files = tuple(index_files(path))

        def repair(kept: Path) -> None:
            for each in files:
                moved_aside(each, kept / "moved" / each.name)

        yield IntegrityFinding(
            "search index",
            said,
            (),
            repair,
            remedy="squidbot check --data --repair moves it aside; squidbot then rebuilds it",
        )


def _after(at: str, since: datetime) -> bool:
    """Return True if a file named at that time should still exist; False without a valid time."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return False
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) > since


# ── what is kept ──


def _folder(home: Home, now: datetime) -> Path:
    base = home.root / "backups" / f"check-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    names = (base.with_name(f"{base.name}{f'-{n}' if n else ''}") for n in range(1000))
    return next(path for path in names if not path.exists())


def _copied(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copy2(path, target)
    target.chmod(0o600)
    with target.open("rb") as file:
        os.fsync(file.fileno())  # before anything is changed in the original


def unusable_documents(layout: Layout) -> Iterator[IntegrityFinding]:
    """Memory documents and versions that are not files; the daemon answers without them."""
    for document, versions in documents(layout):
        wrong = DocumentFile(document, versions).unusable()
        if wrong is None:
            continue

        def repair(kept: Path, document: Path = document, versions: Path = versions) -> None:
            for path in (document, versions):
                if DocumentFile(path, path).unusable() is not None:
                    aside = kept / "moved" / path.parent.name / path.name
                    aside.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(path, aside)
            if not document.exists() and (text := last_text(versions)) is not None:
                write_new(document, text.encode())

        yield IntegrityFinding(
            "memory",
            f"{wrong}; squidbot answers without this memory",
            (),
            repair,
            remedy="squidbot check --data --repair moves it aside and restores the last text",
        )
