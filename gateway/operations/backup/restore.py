"""
Restores a backup into an empty home, or into one whose content is moved aside first. The file is untrusted
and read twice: first all members are checked against the manifest, then exactly these are unpacked; other
names, links, devices and sparse files are refused. Files move into place, the database last, after a durable
note (`gateway.system.restore_marker`), so that a killed restore can be finished. Open work is parked
(`gateway.store.sqlite.sqlite_restore`); messages since the backup may have been answered by the lost copy,
under unknown ids, and wait for a person (`gateway.store.rollback_guard`), unless ``moved`` says that nothing
ran.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from agent_core.files import replace as replace_file
from agent_core.files import sync
from gateway.errors import GatewayError, NotFound
from gateway.operations.backup.archive import (
    BackupRefused,
    VerifiedBackup,
    checked_name,
    copy_and_hash,
    members,
    refuse_damage,
    verify_backup,
)
from gateway.operations.backup.contents import DATABASE_NAME
from gateway.operations.backup.create import HEAD_NAME, MANIFEST_NAME
from gateway.proactive.jobs.triggers import Once, TriggerInvalid, parse_timing
from gateway.store.lease import Holders
from gateway.store.opening import open_postgres
from gateway.store.rollback_guard import Extent, Gap, write_restore
from gateway.store.sql.quarantine_after_restore import QuarantineCounts, set_aside_open_work
from gateway.store.sqlite.sqlite_restore import examine_copy, quarantine_open_work
from gateway.store.store_errors import StoreUnavailable, StoreUnusable
from gateway.system.home import Home, open_home
from gateway.system.lock import hold_home
from gateway.system.restore_marker import NOTE, RestoreMarker, UnfinishedRestore, read_unfinished_restore


class HomeInUse(GatewayError):
    """The home folder is not empty. Nothing was changed."""

    exit_code = 73


@dataclass(frozen=True, slots=True)
class RestoredBackup:
    """The result. ``looked`` is None if an earlier restore was finished, without reading its backup."""

    looked: VerifiedBackup | None
    home: Path
    parked: QuarantineCounts
    put_aside: Path | None = None
    notes: tuple[str, ...] = ()


def restore(
    path: Path,
    root: Path,
    *,
    now: datetime,
    passphrase: str | None = None,
    replace: bool = False,
    moved: bool = False,
    until: datetime | None = None,
    agreed: Callable[[VerifiedBackup], bool] = lambda _: True,
) -> RestoredBackup | None:
    """
    Restore a backup; return the result, or None without agreement.

    Args:
        replace: Move the home's content aside, except the backup and, if it has none, the secrets; else the
            home must be empty.
        moved: Nothing ran between the backup and now.
        until: The latest time at which the lost copy ran; default: now.
        agreed: Asked once the backup is verified, before any change.

    Raises:
    HomeInUse, AlreadyRunning, BackupRefused, BackupDamaged, WrongPassphrase, StateUnusable: No change.
    """
    parent = next(folder for folder in (root, *root.parents) if folder.exists())
    begun = read_unfinished_restore(root)
    if begun is None and not replace and _content_of(root):
        raise HomeInUse(
            f"{root} is not empty. Name another home with --home, or add --replace, which moves its "
            "content aside and removes nothing"
        )
    looked = verify_backup(
        path, passphrase=passphrase, most_bytes=max(0, shutil.disk_usage(parent).free - (32 * 1024 * 1024))
    )
    if not agreed(looked):
        return None
    if begun is not None and (done := _finish_other(root, begun, looked, replace=replace)) is not None:
        return done
    found = frozenset(each.name for each in root.iterdir()) if root.is_dir() else None
    home = open_home(root, as_guest=True)
    with ExitStack() as stack:
        stack.enter_context(hold_home(home))
        stage = _new_stage(root)
        unpacked = stack.enter_context(ExitStack())
        unpacked.callback(_leave_as_found, root, found)
        unpacked.callback(shutil.rmtree, stage, ignore_errors=True)
        try:
            _unpack(path, passphrase, looked, stage)
            parked, notes = _prepare(stage, looked, now=now, moved=moved, until=until)
            aside = _goes_aside(root, path, looked) if replace else ()
            result = {"parked": asdict(parked), "notes": notes}
            plan = _write_plan(root, stage, looked, aside, result, now=now)
        except OSError as error:
            raise BackupRefused(
                f"it cannot be unpacked in {root}: {error.strerror or error}; run the same command again"
            ) from error
        unpacked.pop_all()  # from now on it is needed, whatever happens
        put_aside = _carry_out(root, plan)
    return RestoredBackup(looked, root, parked, put_aside, notes)


def _new_stage(root: Path) -> Path:
    """The folder into which a backup is unpacked; that of one killed before it moved anything goes."""
    for old in root.glob(".restore-*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    return root / f".restore-{os.getpid()}"


def _finish_other(
    root: Path, begun: UnfinishedRestore, looked: VerifiedBackup, *, replace: bool
) -> RestoredBackup | None:
    """Finish an interrupted restore; return its result if it was of this backup. Raises HomeInUse."""
    done = finish_restore(root)
    if begun.backup == _identity(looked):
        return RestoredBackup(looked, root, done.parked, done.put_aside, done.notes)
    if not replace:
        raise HomeInUse(
            f"{root} is not empty: the restore of another backup was interrupted here and has now "
            "been finished. Add --replace to move its content aside"
        )
    return None


def _write_plan(
    root: Path,
    stage: Path,
    looked: VerifiedBackup,
    aside: tuple[str, ...],
    result: dict[str, Any],
    *,
    now: datetime,
) -> UnfinishedRestore:
    """Make what is unpacked durable, then the note with which the restore can be finished."""
    plan = UnfinishedRestore(
        _identity(looked),
        stage.name,
        _name_for_aside(root, now),
        aside,
        tuple(sorted(entry.name for entry in stage.iterdir())),
        result,
    )
    _make_durable(stage)
    replace_file(root / NOTE, json.dumps(asdict(plan)).encode())
    return plan


def _leave_as_found(root: Path, found: Collection[str] | None) -> None:
    """Remove empty folders that were made for nothing; ``found`` was in the home, None: there was none."""
    if found is None and not _content_of(root):
        shutil.rmtree(root, ignore_errors=True)
        return
    for entry in root.iterdir():
        if entry.name not in (found or ()):
            with suppress(OSError):
                entry.rmdir()


def _goes_aside(root: Path, backup: Path, looked: VerifiedBackup) -> tuple[str, ...]:
    """Return the names in the home that are moved aside; see ``replace`` of `restore`."""
    stays = {backup.resolve().relative_to(root.resolve()).parts[0]} if _is_in(backup, root) else set()
    if not any(name.startswith("secrets/") for name in looked.files):
        stays.add("secrets")
    return tuple(
        name for name in _content_of(root) if name not in stays and not name.startswith("before-restore-")
    )


def finish_restore(root: Path) -> RestoredBackup:
    """Finish an interrupted restore. Raises NotFound, Unfinished, AlreadyRunning or StateUnusable."""
    if read_unfinished_restore(root) is None:
        raise NotFound(f"there is nothing to finish in {root}: no restore was interrupted there")
    with hold_home(open_home(root, as_guest=True), while_unfinished=True):
        plan = read_unfinished_restore(root)
        if plan is None:  # the one who was at work has finished it
            return RestoredBackup(None, root, QuarantineCounts())
        put_aside = _carry_out(root, plan)
    return RestoredBackup(
        None, root, _parked(plan.told), put_aside, tuple(map(str, plan.told.get("notes") or ()))
    )


def _parked(told: dict[str, Any]) -> QuarantineCounts:
    counts = told.get("parked")
    known = {one.name for one in fields(QuarantineCounts)}
    given = counts.items() if isinstance(counts, dict) else ()
    return QuarantineCounts(
        **{name: count for name, count in given if name in known and isinstance(count, int)}
    )


def _identity(looked: VerifiedBackup) -> str:
    """Tells one backup from another by all that it holds."""
    held = json.dumps([looked.head, looked.files], sort_keys=True).encode()
    return hashlib.sha256(held).hexdigest()


def _make_durable(stage: Path) -> None:
    """All that was unpacked, with its names: nothing of it may be missing after a power cut."""
    for folder, _, files in os.walk(stage):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


@refuse_damage()
def _unpack(path: Path, passphrase: str | None, looked: VerifiedBackup, stage: Path) -> None:
    stage.mkdir(mode=0o700)
    for member, content in members(path, passphrase):
        if member.name in (HEAD_NAME, MANIFEST_NAME):
            continue
        name = checked_name(member)
        place = stage / name
        _make_folders(stage, place.parent)
        mode = 0o700 if member.mode & 0o100 else 0o600
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(handle, "wb") as file:
            digest = copy_and_hash(content, file)
            file.flush()
            os.fsync(file.fileno())
        # Somebody could have exchanged the file between the two readings.
        if looked.files.get(name) != {"size": member.size, "sha256": digest}:
            raise BackupRefused(f"it changed while it was read ({name!r})")
        os.utime(place, (member.mtime, member.mtime))


def _make_folders(stage: Path, folder: Path) -> None:
    if folder != stage and not folder.is_dir():
        _make_folders(stage, folder.parent)
        folder.mkdir(mode=0o700)


@refuse_damage()
def _prepare(
    stage: Path, looked: VerifiedBackup, *, now: datetime, moved: bool, until: datetime | None
) -> tuple[QuarantineCounts, tuple[str, ...]]:
    """Make of the unpacked files what a gateway may open."""
    database = stage / DATABASE_NAME
    try:
        _, secret, inbox, outbox = examine_copy(database)
    except (StoreUnusable, StoreUnavailable) as error:
        raise BackupRefused(str(error)) from error
    extent = Extent.from_counts(secret, inbox, outbox)
    _make_folders(stage, stage / "state")
    mark = stage / "state" / "gateway-db.json"
    notes = [str(note) for note in looked.head.get("notes") or () if isinstance(note, str)]
    if moved:
        write_restore(mark, extent, made_at=looked.made_at, now=now, gap=None)
        return QuarantineCounts(), tuple(notes)
    gap = Gap(looked.made_at, min(until or now, now))
    parked = quarantine_open_work(
        database, backed_up_at=looked.made_at.timestamp(), now=now.timestamp(), runs_once=runs_once
    )
    write_restore(mark, extent, made_at=looked.made_at, now=now, gap=gap)
    return parked, tuple(notes)


def runs_once(timing: str) -> bool:
    """Return True if a job with this trigger runs only once; also for an invalid one."""
    try:
        return isinstance(parse_timing(str(timing)), Once)
    except TriggerInvalid:
        return True


def _content_of(root: Path) -> list[str]:
    """Return the names in the home that are not by-products of opening it."""
    try:
        entries = sorted(root.iterdir())
    except FileNotFoundError:
        return []
    return [
        entry.name
        for entry in entries
        if not entry.name.startswith(".restore-")
        and entry.name != "run"
        and not (entry.is_dir() and not entry.is_symlink() and not any(entry.iterdir()))
    ]


def _is_in(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _name_for_aside(root: Path, now: datetime) -> str:
    stamp = f"before-restore-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    names = (f"{stamp}{f'-{number}' if number else ''}" for number in count())
    return next(name for name in names if not (root / name).exists())


def _carry_out(root: Path, plan: UnfinishedRestore) -> Path | None:
    """
    Move what is still to be moved; return the place of the old content. Raises Unfinished.

    Staged files are not moved in yet, so their present namesakes are old. The old database goes first and the
    new one comes last: a home with a database is complete.
    """
    stage, aside = root / plan.stage, root / plan.aside
    try:
        waiting = {entry.name for entry in stage.iterdir()} if stage.is_dir() else set()
        old = [name for name in plan.put_aside if name in waiting or name not in plan.brings]
        old += [name for name in plan.brings if name in waiting and name not in old]
        for name in sorted(old, key=lambda one: (not one.startswith(DATABASE_NAME), one)):
            _put_aside(root / name, aside)
        for name in sorted(waiting, key=lambda one: (one == DATABASE_NAME, one)):
            (stage / name).rename(root / name)
        if missing := [name for name in plan.brings if not os.path.lexists(root / name)]:
            raise FileNotFoundError(errno.ENOENT, "the unpacked files are gone", str(stage / missing[0]))
        for folder in (aside, root):
            if folder.is_dir():
                sync(folder)
        open_home(root, as_guest=True)
        (root / NOTE).unlink(missing_ok=True)
        shutil.rmtree(stage, ignore_errors=True)
        sync(root)
    except OSError as error:
        raise RestoreMarker(
            f"{error.strerror or error} ({error.filename}); fix that, then finish the restore with: "
            f"squidbot restore --finish --home {shlex.quote(str(root))}"
        ) from error
    return aside if aside.is_dir() else None


def _put_aside(place: Path, aside: Path) -> None:
    if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
        place.rmdir()  # made by looking at the home
    elif os.path.lexists(place):
        aside.mkdir(mode=0o700, exist_ok=True)
        names = (aside / f"{place.name}{f'-{number}' if number else ''}" for number in count())
        place.rename(next(path for path in names if not os.path.lexists(path)))


def accept_restored_server(
    home: Home, url: str, *, now: datetime, until: datetime | None, moved: bool
) -> QuarantineCounts:
    """
    Prepare a restored database for a daemon, in one transaction.

    Open work is quarantined, uncertain answers are probed, Matrix accounts get a new device, and repeated
    messages from before ``until`` (the lost copy's last run, default now) wait for a person. ``moved``:
    nothing is lost, only the server is noted. Raises AlreadyRunning, LeaseTaken, ConfigInvalid or
    StoreUnavailable.
    """
    with open_postgres(), hold_home(open_home(home.root, as_guest=True), purpose="command"):
        from gateway.store.postgres.copying_into_postgres import PostgresTables
        from gateway.store.postgres.postgres_queue import HOME
        from gateway.store.postgres.restore_detection import AcceptedRestore, write_accepted_restore

        # A daemon that goes on with the new server need not be stopped to be told that it is the right one.
        with PostgresTables.open(url, HOME, None if moved else Holders(home.lease_holders)) as tables:
            if moved:
                write_accepted_restore(tables.db, AcceptedRestore(now, None))
                return QuarantineCounts()
            last = min(until or now, now)
            parked = set_aside_open_work(
                tables.db, backed_up_at=last.timestamp(), now=now.timestamp(), runs_once=runs_once
            )
            tables.accounts.make_older()
            write_accepted_restore(tables.db, AcceptedRestore(now, Gap(last, last)))
            return parked


def accept_copy(home: Home, *, now: datetime, until: datetime | None, moved: bool) -> QuarantineCounts:
    """Do the same for an older embedded copy. Raises AlreadyRunning, NotFound or StoreUnusable."""
    with hold_home(open_home(home.root, as_guest=True), purpose="command"):
        if not home.database.exists():
            raise NotFound(f"there is no database in {home.root}")
        _, secret, inbox, outbox = examine_copy(home.database)
        last, parked = min(until or now, now), QuarantineCounts()
        if not moved:
            parked = quarantine_open_work(
                home.database, backed_up_at=last.timestamp(), now=now.timestamp(), runs_once=runs_once
            )
        gap = None if moved else Gap(last, last)
        extent = Extent.from_counts(secret, inbox, outbox)
        write_restore(home.high_water_mark, extent, made_at=None, now=now, gap=gap)
        return parked
