"""The paths of attachments, which derive from the hashes of their contents, and their storage's errors."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from channels.base import AttachmentRefused, ChannelUnavailable

FOLDER = "attachments"
PATH = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})\.[a-z0-9]{{1,8}}")


class Damaged(Exception):
    """The content under a path is not what was stored there."""


class StorageUnreachable(OSError):
    """A folder outside of the home is not mounted, or does not answer."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EAGAIN, why)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a storage: its `Attachment.path`, when it was last saved (seconds since 1970), its size."""

    path: str
    saved_at: float
    size_bytes: int


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
    """My disk accepts no files at the moment; nothing is lost, I will try again."""


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
