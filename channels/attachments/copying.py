"""
From one storage into another: all contents and whose they are, each compared with its hash on both sides.

It can be broken off at any moment and begun again: what is in the target already, and is right, is not
copied. Nothing is removed anywhere. In the target each content counts as saved when it was copied.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from agent_core.files import write_all
from channels.attachments.storage import Damaged, Storage, StoredFile

_BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class Copied:
    """How many were copied, how many were there already, and the paths of those that are damaged."""

    copied: int = 0
    there: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)


def whole(storage: Storage, path: str, size: int) -> Iterator[bytes]:
    """
    A content in pieces. Only when the last one was taken it is known to be right.

    Raises:
        FileNotFoundError: It is not there.
        Damaged: It is something else.
    """
    digest = hashlib.sha256()
    offset = 0
    while offset < size or offset == 0:
        piece = storage.read(path, size, offset=offset, max_bytes=_BLOCK_BYTES)
        digest.update(piece)
        yield piece
        offset += _BLOCK_BYTES
    if digest.hexdigest() != PurePosixPath(path).stem:
        raise Damaged(path)


def copy_all(
    source: Storage, target: Storage, *, spool: Path, told: Callable[[Copied], None] = lambda _: None
) -> Copied:
    """
    Copy everything. It blocks.

    Args:
        source: Where it is; nobody needs to be stopped, but what is saved meanwhile may be missed.
        spool: A folder on a disk of this machine for one content at a time.
        told: Called after each content.

    Raises:
        OSError: One of them cannot be used now, or the target does not give back what it was given; the same
            once more does the rest.
    """
    done = Copied()
    source.prepare()
    target.prepare()
    for file in source.stored():
        if _is_right(target, file):
            done.there += 1
        else:
            try:
                _copy(source, target, file, spool)
            except FileNotFoundError:
                continue  # it was removed meanwhile
            except Damaged:
                done.damaged.append(file.path)
                continue
            if not _is_right(target, file):
                raise OSError(f"{target.name} returns something other than what was written ({file.path})")
            done.copied += 1
            done.bytes += file.size_bytes
        told(done)
    for whose, name, _ in source.marks():
        target.mark(whose, name)
    return done


def _copy(source: Storage, target: Storage, file: StoredFile, spool: Path) -> None:
    temporary = spool / secrets.token_hex(16)
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for piece in whole(source, file.path, file.size_bytes):
            write_all(handle, piece)
        if target.find(file.path) is not None:
            target.erase(file.path)  # of the same size, perhaps, and not the same
        target.put(handle, temporary, file.path, file.size_bytes)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def _is_right(storage: Storage, file: StoredFile) -> bool:
    """Whether a content is there, byte for byte."""
    found = storage.find(file.path)
    if found is None or found.size_bytes != file.size_bytes:
        return False
    try:
        for _ in whole(storage, file.path, file.size_bytes):
            pass
    except (FileNotFoundError, Damaged):
        return False
    return True
