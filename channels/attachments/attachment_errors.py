"""The errors of attachments: a file that cannot be used, and a storage that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from channels.attachments.attachment_storage import StorageAway
from channels.base import ChannelUnavailable


class AttachmentRefused(Exception):
    """This file cannot be kept. ``public`` is a sentence that anybody may read."""

    temporary = False

    def __init__(self, public: str, /, **fields: object) -> None:
        self.public = public
        self.fields = fields
        super().__init__(public)


class AttachmentTooLarge(AttachmentRefused):
    """The file is larger than the limit; nothing of it was kept."""


class AttachmentsFull(AttachmentRefused):
    """All attachments together have reached their limit; nothing of this one was kept."""


class AttachmentsUnavailable(ChannelUnavailable):
    """My disk accepts no files at the moment; nothing is lost, I will try again."""


class AttachmentsAway(AttachmentsUnavailable):
    """My file storage cannot be reached at the moment; nothing is lost, I will try again."""


class AttachmentGone(LookupError):
    """The file is no longer kept. The text names it, and anybody may read it."""


class AttachmentDamaged(AttachmentGone):
    """The stored content is not what was saved."""


@contextmanager
def disk_errors() -> Iterator[None]:
    """Translate an `OSError` into `AttachmentsUnavailable`, for a shared storage into `AttachmentsAway`."""
    try:
        yield
    except StorageAway as error:
        raise AttachmentsAway(f"files cannot be kept: {error.strerror}") from error
    except OSError as error:
        raise AttachmentsUnavailable(
            f"the attachments folder cannot be used: {error.strerror or type(error).__name__}",
            errno=error.errno,
        ) from error
