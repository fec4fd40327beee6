"""
`AttachmentStore`: stores the files that come with messages and the files that go out.

    HOME/attachments/<aa>/<sha256><.ext>    one file for each content; <aa> are the first two digits
    HOME/attachments/tmp/                   what is just being written

Theory of operation. A file is named by the hash of its content, never by what a sender calls it, so no name
can reach another place, the same content is kept once, and saving the same thing again after a crash changes
nothing. The sender's name, made safe, is in the `Attachment` alone. What is written goes to a temporary file
first, is synced, and appears under its final name complete or not at all. Files have mode 0600 and an ending
from a list of kinds that nothing runs when they are opened; nothing is ever unpacked.

For a channel that receives. Save every file **before** `Inbox.accept`, and put what `save` returns into
`InboundMessage.attachments`:

- `AttachmentTooLarge` and `AttachmentsFull`: the message is accepted all the same, with the error's `public`
  text in the place of the file.
- `AttachmentsUnavailable` (a full disk) is a `ChannelUnavailable`: let it go up, so that nothing is accepted
  and nothing acknowledged, and the message is fetched again later.
- An exception of the iterator goes through `save` unchanged, and nothing is kept: check a hash at the end of
  the iterator and raise there if it is wrong.

A crash between `save` and `accept` leaves a file that nobody names. If the message is fetched again it has
its owner; otherwise the gateway's sweeper removes it after a day.

For a channel that sends: `chunks` reads in pieces, `read` a piece, `path` says where the file is.
"""

from channels.attachments.attachment_pictures import Picture, picture_in
from channels.attachments.attachment_storage import (
    FOLDER,
    PATH,
    AttachmentDamaged,
    AttachmentGone,
    AttachmentsFull,
    AttachmentsUnavailable,
    AttachmentTooLarge,
    Damaged,
    Storage,
    StorageUnreachable,
    StoredFile,
)
from channels.attachments.attachment_store import AttachmentStore
from channels.attachments.file_kinds import media_type_of, safe_extension, safe_name
from channels.attachments.file_storage import LocalFiles
from channels.base import AttachmentRefused

__all__ = [
    "FOLDER",
    "PATH",
    "AttachmentDamaged",
    "AttachmentGone",
    "AttachmentRefused",
    "AttachmentStore",
    "AttachmentTooLarge",
    "AttachmentsFull",
    "AttachmentsUnavailable",
    "Damaged",
    "LocalFiles",
    "Picture",
    "Storage",
    "StorageUnreachable",
    "StoredFile",
    "media_type_of",
    "picture_in",
    "safe_extension",
    "safe_name",
]
