"""
Bringing a backup back: into an empty home, or into one whose content is put aside first.

Nothing in the file is believed. It is read twice: the first time every member is looked at and hashed and
nothing is written; only what agrees with the manifest in every byte is unpacked by the second reading. Names
that lead out of the home, links, devices, folders, sparse files and anything else that a tar can hold and a
backup does not are refused, and so is what does not fit on the disk. It is unpacked beside the home's content
and then moved into its place, the database last.

Exactly once, afterwards: the database is that of the backup, but the servers are those of today. What was
open in it is parked (`gateway.work.restoring`), and what was sent to the bot between the backup and the
restore may have been answered by the copy that is lost: it is fetched again, taken in, and waits in the
quarantine for a person instead of being answered twice (`gateway.mark`, "gap"). With ``moved`` the operator
says that nothing ran since the backup was made; then there is no such time and nothing is parked. Why a
person and not a probe: what the lost copy answered has ids that nobody knows here.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from gateway.backup.files import DATABASE_NAME
from gateway.backup.making import HEAD_NAME, MANIFEST_NAME
from gateway.backup.reading import (
    BackupRefused,
    Looked,
    checked_name,
    damage_refused,
    hashed,
    look_into,
    members,
)
from gateway.errors import GatewayError
from gateway.home import Home, open_home
from gateway.lock import hold_home
from gateway.mark import Extent, Gap, write_restored_mark
from gateway.schedule.timing import At, TimingInvalid, parse_timing
from gateway.work.errors import StoreUnusable
from gateway.work.restoring import Parked, examine_copy, park_open_work

__all__ = ["HomeInUse", "Restored", "restore"]

_ROOM_LEFT = 32 * 1024 * 1024


class HomeInUse(GatewayError):
    """There is something in the home folder already. Nothing was changed."""

    exit_code = 73


@dataclass(frozen=True, slots=True)
class Restored:
    """What was done."""

    looked: Looked
    home: Path
    parked: Parked
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
    agreed: Callable[[Looked], bool] = lambda _: True,
) -> Restored | None:
    """
    Bring a backup back.

    Args:
        path: The backup.
        root: The home folder.
        now: This moment.
        passphrase: Opens an encrypted backup.
        replace: What is in the home is put aside, but for the backup itself (and what is in its folder), and
            for the secrets, if the backup has none; otherwise it must be empty.
        moved: Nothing ran between the backup and now.
        until: When the lost copy ran at the latest; now, if nobody knows.
        agreed: Asked when the backup is known to be sound, before anything is changed.

    Returns:
        What was done, or None if nobody agreed.

    Raises:
        HomeInUse, AlreadyRunning, BackupRefused, SealBroken, WrongPassphrase, StateUnusable: Nothing was
            changed.
    """
    parent = next(folder for folder in (root, *root.parents) if folder.exists())
    if not replace and _content_of(root):
        raise HomeInUse(
            f"{root} is not empty. Name another home with --home, or say --replace: then what is there is "
            "put aside, not removed"
        )
    looked = look_into(
        path, passphrase=passphrase, most_bytes=max(0, shutil.disk_usage(parent).free - _ROOM_LEFT)
    )
    if not agreed(looked):
        return None
    home = open_home(root, as_guest=True)
    with ExitStack() as stack:
        stack.enter_context(hold_home(home))
        for old in root.glob(".restore-*"):  # of one that was killed
            shutil.rmtree(old, ignore_errors=True)
        stage = root / f".restore-{os.getpid()}"
        stack.callback(shutil.rmtree, stage, ignore_errors=True)
        try:
            _unpack(path, passphrase, looked, stage)
            parked, notes = _prepare(stage, looked, now=now, moved=moved, until=until)
            stays = {path.resolve().relative_to(root.resolve()).parts[0]} if _is_in(path, root) else set()
            if not any(name.startswith("secrets/") for name in looked.files):
                stays.add("secrets")
            put_aside = _put_aside(home, now, but=stays) if replace else None
            _move_in(stage, root)
        except OSError as error:
            raise BackupRefused(
                f"it cannot be unpacked in {root}: {error.strerror or error}; run the same again"
            ) from error
    return Restored(looked, root, parked, put_aside, notes)


@damage_refused()
def _unpack(path: Path, passphrase: str | None, looked: Looked, stage: Path) -> None:
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
            digest = hashed(content, file)
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


def _prepare(
    stage: Path, looked: Looked, *, now: datetime, moved: bool, until: datetime | None
) -> tuple[Parked, tuple[str, ...]]:
    """Make of the unpacked files what a gateway may open."""
    database = stage / DATABASE_NAME
    try:
        _, secret, inbox, outbox = examine_copy(database)
    except StoreUnusable as error:
        raise BackupRefused(str(error)) from error
    extent = Extent.of(secret, inbox, outbox)
    _make_folders(stage, stage / "state")
    mark = stage / "state" / "gateway-db.json"
    notes = [str(note) for note in looked.head.get("notes") or () if isinstance(note, str)]
    if moved:
        write_restored_mark(mark, extent, made_at=looked.made_at, now=now, gap=None)
        return Parked(), tuple(notes)
    gap = Gap(looked.made_at, min(until or now, now))
    parked = park_open_work(
        database, backed_up_at=looked.made_at.timestamp(), now=now.timestamp(), runs_once=_runs_once
    )
    write_restored_mark(mark, extent, made_at=looked.made_at, now=now, gap=gap)
    return parked, tuple(notes)


def _runs_once(timing: str) -> bool:
    try:
        return isinstance(parse_timing(timing), At)
    except TimingInvalid:
        return True


def _content_of(root: Path) -> list[str]:
    """What is in the home and was not made by looking at it."""
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


def _put_aside(home: Home, now: datetime, *, but: Collection[str] = ()) -> Path | None:
    found = [name for name in _content_of(home.root) if name not in but]
    if not found:
        return None
    stamp = f"before-restore-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    names = (home.root / f"{stamp}{f'-{number}' if number else ''}" for number in count())
    aside = next(path for path in names if not path.exists())
    aside.mkdir(mode=0o700)
    kept = [name for name in found if not name.startswith("before-restore-")]
    # The database first: without it nothing else can be taken for the state of today.
    for name in sorted(kept, key=lambda one: (not one.startswith(DATABASE_NAME), one)):
        (home.root / name).rename(aside / name)
    return aside


def _move_in(stage: Path, root: Path) -> None:
    names = sorted((path.name for path in stage.iterdir()), key=lambda name: (name == DATABASE_NAME, name))
    for name in names:
        place = root / name
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
        (stage / name).rename(place)
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    open_home(root, as_guest=True)
