"""
`Storage`: where the bytes of attachments lie, as files (``file_storage.py``) or S3 objects
(``object_storage.py``), and its errors. Paths derive from the hashes of contents.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from channels.base import AttachmentRefused, ChannelUnavailable

FOLDER = "attachments"
PATH = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.[a-z0-9]{{1,8}}")


class Damaged(Exception):
    """The content under a path is not what was stored there."""


class StorageUnreachable(OSError):
    """A storage outside of the home cannot be used now. The text says why and holds no secret."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EAGAIN, why)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a storage: its `Attachment.path`, when it was last saved (seconds since 1970), its size."""

    path: str
    saved_at: float
    size_bytes: int


class Storage(Protocol):
    """Stores contents under their paths. Calls block. What fails for now is an `OSError`."""

    name: str
    """For people: what it is and where, without secrets."""
    is_elsewhere: bool
    """It is not in the home folder, so it can be away, or hang."""

    def prepare(self) -> None:
        """Make the storage ready for use."""
        ...

    def save(self, handle: int, temporary: Path, path: str, size: int) -> bool:
        """Store a content durably from a file that may be moved; False if it existed (now as new)."""
        ...

    def read(self, path: str, size: int, *, offset: int, max_bytes: int) -> bytes:
        """Read up to ``max_bytes`` from ``offset``. Raises FileNotFoundError, or Damaged (other size)."""
        ...

    def find(self, path: str) -> StoredFile | None:
        """Look a content up."""
        ...

    def list_files(self) -> Iterator[StoredFile]:
        """List all contents, in no particular order."""
        ...

    def remove(self, file: StoredFile) -> bool:
        """Remove a content unless it was saved again after it was listed."""
        ...

    def erase(self, path: str) -> bool:
        """Remove a content, whenever it was saved. Returns whether it existed."""
        ...

    def owner(self, wanted: str) -> str:
        """Return the squidbot that the storage belongs to: the first that asked."""
        ...

    def probe(self) -> None:
        """Write, read and remove something."""
        ...


def check_path(path: str) -> str:
    """Check that a path names a content and nothing else. Raises `ValueError`: it does not."""
    if not PATH.fullmatch(path):
        raise ValueError(f"not the path of an attachment: {path!r}")
    return path


class AttachmentTooLarge(AttachmentRefused):
    """The file is larger than the limit; nothing of it was kept."""


class AttachmentsFull(AttachmentRefused):
    """All attachments together have reached their limit; nothing of this one was kept."""


class AttachmentsUnavailable(ChannelUnavailable):
    """I cannot keep files at the moment; nothing is lost, I will try again."""


class AttachmentGone(LookupError):
    """The file is no longer kept. The text names it, and anybody may read it."""


class AttachmentDamaged(AttachmentGone):
    """The stored content is not what was saved."""


@contextmanager
def disk_errors() -> Iterator[None]:
    """Translate an `OSError` to `AttachmentsUnavailable`."""
    try:
        yield
    except StorageUnreachable as error:
        raise AttachmentsUnavailable(f"files cannot be kept: {error.strerror}") from error
    except OSError as error:
        raise AttachmentsUnavailable(
            f"the attachments folder cannot be used: {error.strerror or type(error).__name__}",
            errno=error.errno,
        ) from error
