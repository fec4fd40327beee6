"""
`Storage`: where the bytes of attachments lie. Local files and a shared folder are one implementation
(``file_storage.py``), objects of an S3-compatible store the other (``object_storage.py``).

A storage knows nothing of limits, kinds and people. It keeps a content under a path that is made of the
content's hash (`PATH`), so putting the same again changes nothing, and no name can reach another place. One
that several processes use at once (``is_shared``) is not believed: `AttachmentStore` compares what it gives
with the hash. Everything here blocks and is called in worker threads; each call ends by itself in bounded
time unless a network file system hangs.
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

FOLDER = "attachments"
PATH = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.[a-z0-9]{{1,8}}")


_BLOCK_BYTES = 4 * 1024 * 1024


class Damaged(Exception):
    """What is kept under a path is not what was put there."""


class StorageAway(OSError):
    """A shared storage cannot be used now. The text says why and holds no secret."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EAGAIN, why)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a storage: its `Attachment.path`, when it was last saved (seconds since 1970), its size."""

    path: str
    saved_at: float
    size_bytes: int


class Storage(Protocol):
    """
    Keeps contents by their paths. Whatever cannot be done now is an `OSError`, and worth another try.

    A *mark* says that a file counts on somebody's share; it holds a digest and no name.
    """

    name: str
    """For people: what it is and where, without secrets."""
    is_shared: bool
    """Whether other processes use it, too."""

    def prepare(self) -> None:
        """Make it ready for use."""
        ...

    def put(self, handle: int, temporary: Path, path: str, size: int) -> bool:
        """
        Keep a content durably; False: it was there already, and counts as saved at this moment.

        ``handle`` and ``temporary`` are a file on a disk of this machine that may be moved away.
        """
        ...

    def read(self, path: str, size: int, *, offset: int, max_bytes: int) -> bytes:
        """
        Up to ``max_bytes`` from ``offset`` on of a content with ``size`` bytes.

        Raises:
            FileNotFoundError: It is not kept.
            Damaged: It has another size.
        """
        ...

    def find(self, path: str) -> StoredFile | None:
        """A content, if it is there."""
        ...

    def stored(self) -> Iterator[StoredFile]:
        """All contents, in no particular order."""
        ...

    def remove(self, file: StoredFile) -> bool:
        """Remove a content unless it was saved again since it was listed; whether it was removed."""
        ...

    def erase(self, path: str) -> bool:
        """Remove a content, whenever it was saved; whether it was there."""
        ...

    def marks(self) -> Iterator[tuple[str, str, float]]:
        """Whose share each marked file counts on, its name, and when that was noted."""
        ...

    def mark(self, whose: str, name: str) -> bool:
        """Note that a file counts on a share. False: that was known."""
        ...

    def unmark(self, whose: str, name: str) -> None:
        """Remove a mark."""
        ...

    def forget(self, whose: str) -> None:
        """Remove all marks of somebody."""
        ...

    def owner(self, wanted: str) -> str:
        """To which squidbot it belongs: to the first one that has asked."""
        ...

    def probe(self) -> None:
        """Write something, read it, and remove it again; raises what is wrong."""
        ...


def checked(path: str) -> str:
    """The path, which names a content and nothing else. Raises `ValueError`: it does not."""
    if not PATH.fullmatch(path):
        raise ValueError(f"not the path of an attachment: {path!r}")
    return path


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
