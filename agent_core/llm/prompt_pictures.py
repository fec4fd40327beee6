"""
Reads and checks the pictures of a request before anything is sent to a model that accepts pictures. The
limits are the narrowest among the providers, so that a picture does not make the whole request fail. A file
that is too large (`ScaledPictures` makes it smaller where it can), not a picture or no longer stored
is left out, and the model gets a note instead, so that it can tell the person. If not all pictures fit, the
newest are sent.
"""

from __future__ import annotations

import base64
import importlib.util
import sys
from collections.abc import Mapping, Sequence

import structlog

from agent_core.children.service import CallFailed, ChildProcess
from agent_core.messages import Attachment
from agent_core.models import Message
from agent_core.ports import AttachmentPort, PicturePort

MAX_PICTURE_BYTES = 3_750_000
"""In base64 it is a third more, and five million is where the first provider says no."""
MAX_SIDE, MAX_SIDE_OF_MANY, MANY = 8000, 2000, 20
"""Pixels on a side: Anthropic refuses the whole request for more, with over 20 pictures for 2,000."""
_log = structlog.get_logger(__name__)


async def pictures_of(
    messages: Sequence[Message], attachments: PicturePort | None
) -> tuple[Sequence[Message], dict[str, tuple[str, bytes]]]:
    """
    The messages, and media type and content by `Attachment.sha256` of the pictures in them that can be shown.

    In the place of a picture that is too large stands a note that says so. No picture is shown without
    ``attachments``: a model that does not look at pictures is built without them.
    """
    if attachments is None:
        return messages, {}
    found, too_large = await _read(messages, attachments, MAX_SIDE)
    if len(found) > MANY:
        found, too_large = await _read(messages, attachments, MAX_SIDE_OF_MANY)
    return [_with_notes(message, too_large) for message in messages], found


async def _read(
    messages: Sequence[Message], attachments: PicturePort, max_side: int
) -> tuple[dict[str, tuple[str, bytes]], dict[str, str]]:
    """The pictures that can be shown, and why others are too large."""
    found: dict[str, tuple[str, bytes]] = {}
    too_large: dict[str, str] = {}
    left = 18_000_000
    for message in reversed(messages):
        for file in message.attachments:
            if file.sha256 in found:
                continue
            try:
                picture = await attachments.picture(
                    file, max_bytes=min(left, MAX_PICTURE_BYTES), max_pixels=40_000_000, max_side=max_side
                )
            except ValueError as error:
                too_large[file.sha256] = str(error)
                continue
            except (LookupError, OSError) as error:
                _log.warning("picture.not_read", error=f"{type(error).__name__}: {error}")
                continue
            if picture is None:
                _log.info("picture.left_out", size_bytes=file.size_bytes)
                continue
            left -= len(picture[1])
            found[file.sha256] = picture
    return found, too_large


def _with_notes(message: Message, too_large: Mapping[str, str]) -> Message:
    notes = [
        f"[Attachment {file.id} cannot be shown to you: {too_large[file.sha256]}.]"
        for file in message.attachments
        if file.sha256 in too_large
    ]
    if not notes:
        return message
    kept = tuple(file for file in message.attachments if file.sha256 not in too_large)
    content = "\n".join(filter(None, [message.content, *notes]))
    return message.model_copy(update={"content": content, "attachments": kept})


_MAX_FILE_BYTES = 12_000_000
"""Largest file in bytes that is scaled: it is in memory three times on its way to the process."""
_SIDE = 2000
"""Pixels: every provider takes so many, and the models see no more."""
_LIMIT_S = 20.0


def can_scale() -> bool:
    """Return True if the library for it is installed (extra ``pictures``)."""
    return importlib.util.find_spec("PIL") is not None


class ScaledPictures:
    """An `AttachmentPort` that scales too large pictures to JPEGs."""

    def __init__(self, attachments: AttachmentPort) -> None:
        self._attachments = attachments
        child = (sys.executable, "-m", "agent_core.llm.scaling_child")
        self.process = ChildProcess("pictures", child, idle_s=60.0)

    async def picture(
        self, attachment: Attachment, *, max_bytes: int, max_pixels: int, max_side: int
    ) -> tuple[str, bytes] | None:
        """Media type and content; see `AttachmentPort.picture`."""
        limits = {"max_bytes": max_bytes, "max_pixels": max_pixels, "max_side": max_side}
        try:
            return await self._attachments.picture(attachment, **limits)
        except ValueError:
            made = await self._scaled(attachment, min(max_side, _SIDE))
            if made is None or len(made) > max_bytes:
                raise
            return "image/jpeg", made

    async def _scaled(self, attachment: Attachment, side: int) -> bytes | None:
        content = await self._attachments.read(attachment, max_bytes=_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            return None
        request = {"picture": base64.b64encode(content).decode(), "side": side}
        try:
            said = await self.process.ask_text(request, task="scale", limit_s=_LIMIT_S)
            return base64.b64decode(said or "", validate=True) or None
        except (CallFailed, ValueError) as error:
            _log.warning("picture.not_scaled", error=str(error))
            return None
