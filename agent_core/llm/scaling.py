"""Makes pictures smaller that are too large for a model, as photos often are, in a confined process."""

from __future__ import annotations

import base64
import importlib.util
import sys

import structlog

from agent_core.children.service import CallFailed, ChildProcess
from agent_core.messages import Attachment
from agent_core.ports import AttachmentPort

_MAX_FILE_BYTES = 12_000_000
"""Largest file in bytes that is scaled: it is in memory three times on its way to the process."""
_SIDE = 2000
"""Pixels: every provider takes so many, and the models see no more."""
_LIMIT_S = 20.0
_IDLE_S = 60.0
_log = structlog.get_logger(__name__)


def can_scale() -> bool:
    """Return True if the library for it is installed (extra ``pictures``)."""
    return importlib.util.find_spec("PIL") is not None


class ScaledPictures:
    """An `AttachmentPort` that scales too large pictures to JPEGs."""

    def __init__(self, attachments: AttachmentPort) -> None:
        self._attachments = attachments
        child = (sys.executable, "-m", "agent_core.llm.scaling_child")
        self.process = ChildProcess("pictures", child, idle_s=_IDLE_S)

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
