"""Checks attachments: their content, whether any are missing, and whether the storage answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent_core.ports import Clock
from channels.attachments import Damaged, LocalFiles, Storage, StorageUnreachable, StoredFile
from channels.attachments.file_storage import read_pieces
from gateway.cli.check.check_report import Finding, FindingLevel, IntegrityFinding
from gateway.routing.attachment_retention import ORPHAN_AFTER_S
from gateway.system.home import Home


def storage_answers(storage: Storage) -> Finding:
    """Write a file into a storage outside of the home, read it, and remove it."""
    began = time.monotonic()
    try:
        storage.probe()
    except OSError as error:
        said = error.strerror or type(error).__name__
        return Finding("attachments", FindingLevel.FAILED, said, "attachments.store; see docs/attachments.md")
    took = f"{(time.monotonic() - began) * 1000:.0f} ms"
    told = f"{storage.name} stores, returns and removes a file ({took})"
    return Finding("attachments", FindingLevel.OK, told)


def attachment_contents(home: Home, storage: Storage | None = None) -> Iterator[IntegrityFinding]:
    """Attachments whose content differs from the digest in their names."""
    storage = storage or LocalFiles(home.root)
    try:
        for file in storage.list_files():
            yield from _content(home, storage, file)
    except StorageUnreachable as error:
        yield _away(error)


def _content(home: Home, storage: Storage, file: StoredFile) -> Iterator[IntegrityFinding]:
    path = home.root / file.path
    try:
        for _ in read_pieces(storage, file.path, file.size_bytes):
            pass
    except FileNotFoundError:
        return  # it was removed meanwhile
    except Damaged:
        repairs = "squidbot check --data --repair moves it aside, so that nobody sees it"
        yield IntegrityFinding(
            "attachments",
            f"{file.path} has changed since it was saved",
            (),
            None if storage.is_elsewhere else lambda kept: moved_aside(path, kept / "moved" / path.name),
            remedy=f"restore an earlier version of it in {storage.name}" if storage.is_elsewhere else repairs,
        )
    except StorageUnreachable:
        raise
    except OSError as error:
        yield IntegrityFinding(
            "attachments",
            f"{path.name} cannot be read: {error.strerror or error}",
            remedy="look at its rights, and at the disk",
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
                if storage.is_elsewhere
                else lambda kept, path=path: moved_aside(path, kept / "moved" / path.name),  # type: ignore[misc]
                serious=False,
                remedy="squidbot removes such files automatically after two days"
                + ("" if storage.is_elsewhere else "; --repair moves it aside now"),
            )


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
