"""
Reads and checks the pictures of a request before anything is sent to a model that accepts pictures.

The limits are the narrowest among the providers, so that a picture does not make the whole request fail. A
file that is too large, not a picture or no longer stored is left out, and the model gets a note instead. If
not all pictures fit, the newest are sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from agent_core.models import Message
from agent_core.ports import AttachmentPort

MAX_PICTURE_BYTES = 3_750_000
"""In base64 it is a third more, and five million is where the first provider says no."""
MAX_PIXELS = 40_000_000
MAX_TOTAL_BYTES = 18_000_000
_log = structlog.get_logger(__name__)


async def pictures_of(
    messages: Sequence[Message], attachments: AttachmentPort | None
) -> dict[str, tuple[str, bytes]]:
    """
    Media type and content by `Attachment.sha256` of the pictures in ``messages`` that can be shown.

    Empty without ``attachments``: a model that does not look at pictures is built without them.
    """
    found: dict[str, tuple[str, bytes]] = {}
    if attachments is None:
        return found
    left = MAX_TOTAL_BYTES
    for message in reversed(messages):
        for file in message.attachments:
            if file.sha256 in found:
                continue
            try:
                picture = await attachments.picture(
                    file, max_bytes=min(left, MAX_PICTURE_BYTES), max_pixels=MAX_PIXELS
                )
            except (LookupError, OSError) as error:
                _log.warning("picture.not_read", error=f"{type(error).__name__}: {error}")
                continue
            if picture is None:
                _log.info("picture.left_out", size_bytes=file.size_bytes)
                continue
            left -= len(picture[1])
            found[file.sha256] = picture
    return found
