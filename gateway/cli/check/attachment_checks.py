"""Checks attachments: their content, whether any are missing, and whether the storage answers."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_core.ports import Clock
from channels.attachments import Damaged, LocalFiles, Storage, StorageUnreachable
from channels.attachments.attachment_storage import read_pieces
from gateway.cli.check.check_report import Finding, FindingLevel, IntegrityFinding
from gateway.routing.attachment_retention import ORPHAN_AFTER_S
from gateway.system.home import Home

_FILE = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{62})\.[a-z0-9]{1,8}")


def storage_answers(storage: Storage) -> Finding:
    """Write an object into a shared storage, read it, and remove it."""
    began = time.monotonic()
    try:
        storage.probe()
    except OSError as error:
        said = error.strerror or type(error).__name__
        return Finding("attachments", FindingLevel.FAILED, said, "attachments.store; see docs/attachments.md")
    took = f"{(time.monotonic() - began) * 1000:.0f} ms"
    told = f"{storage.name} stores, returns and removes an object ({took})"
    return Finding("attachments", FindingLevel.OK, told)


def attachment_contents(home: Home, storage: Storage | None = None) -> Iterator[IntegrityFinding]:
    """Attachments whose content differs from the digest in their names."""
    if storage is not None and storage.is_shared:
        yield from _shared_contents(storage)
        return
    for path in _stored(home):
        try:
            good = _digest(path) == path.stem
        except OSError as error:
            yield IntegrityFinding(
                "attachments",
                f"{path.name} cannot be read: {error.strerror or error}",
                remedy="look at its rights, and at the disk",
            )
            continue
        if not good:
            yield IntegrityFinding(
                "attachments",
                f"{path.relative_to(home.root)} has changed since it was saved",
                (),
                lambda kept, path=path: moved_aside(path, kept / "moved" / path.name),  # type: ignore[misc]
                remedy="squidbot check --data --repair moves it aside, so that nobody sees it",
            )


def attachment_files(
    home: Home, storage: Storage | None, named: Mapping[str, bool], clock: Clock
) -> Iterator[IntegrityFinding]:
    """Attachments that messages refer to and that are missing, and those that no message refers to."""
    storage = storage or LocalFiles(home.root)
    try:
        there = {file.path: file for file in storage.list_files()}
    except StorageUnreachable as error:
        yield _away(error)
        return
    missing = sorted(name for name, needed in named.items() if needed and name not in there)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        yield IntegrityFinding(
            "attachments",
            f"{len(missing)} files that messages refer to are missing: {', '.join(missing[:3])}{more}",
            remedy="a backup may still have them",
        )
    before = clock.now().timestamp() - ORPHAN_AFTER_S
    for name, file in sorted(there.items()):
        if name not in named and file.saved_at < before:
            path = home.root / name
            yield IntegrityFinding(
                "attachments",
                f"{name}: no message refers to it",
                (),
                None
                if storage.is_shared
                else lambda kept, path=path: moved_aside(path, kept / "moved" / path.name),  # type: ignore[misc]
                serious=False,
                remedy="squidbot removes such files automatically after two days"
                + ("" if storage.is_shared else "; --repair moves it aside now"),
            )


def _stored(home: Home) -> Iterator[Path]:
    for folder in sorted(home.attachments.glob("[0-9a-f][0-9a-f]")):
        for path in sorted(folder.iterdir()):
            if _FILE.fullmatch(f"{folder.name}/{path.name}") and path.is_file() and not path.is_symlink():
                yield path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _shared_contents(storage: Storage) -> Iterator[IntegrityFinding]:
    """The same of a shared storage: everything is fetched."""
    try:
        for file in storage.list_files():
            try:
                for _ in read_pieces(storage, file.path, file.size_bytes):
                    pass
            except FileNotFoundError:
                continue  # it was removed meanwhile
            except Damaged:
                yield IntegrityFinding(
                    "attachments",
                    f"{file.path} in {storage.name} has changed since it was saved",
                    remedy="restore an earlier version of it; squidbot shows nobody the present one",
                )
    except StorageUnreachable as error:
        yield _away(error)


def _away(error: StorageUnreachable) -> IntegrityFinding:
    return IntegrityFinding(
        "attachments",
        f"attachments were not checked: {error.strerror}",
        remedy="squidbot check tests the storage",
    )


def moved_aside(path: Path, target: Path) -> None:
    """Move a file, and make what is missing above its new place."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.replace(target)
