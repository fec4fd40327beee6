"""
Stores the files of a mail before the mail is accepted. Files are stored only for people who may write, and
not for ignored mails. A quarantined mail keeps few of them, because whoever forges an address could fill the
disk. The text of the mail names each file that is not stored, with the reason; a mail never fails because of
a file. Only a disk that accepts nothing stops everything, before anything is acknowledged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import anyio.to_thread
import structlog

from agent_core.language import _
from agent_core.messages import Attachment, InboundMessage
from channels.attachments import AttachmentGone, AttachmentRefused, AttachmentStore
from channels.email.config import EmailConfig
from channels.email.mail_route import route_of
from channels.email.parse.inbound_mail import AttachmentNote, ParsedMail

MAX_NAMED = 20
QUARANTINED_BYTES = 200_000
"""Of all files of a mail that is in quarantine."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Room:
    """The room left for the attachments of one mail."""

    files: int
    bytes: int


class MailAttachmentKeeper:
    """Stores the files of mails in ``store`` (None: names only), for addresses that it ``knows``."""

    def __init__(
        self, config: EmailConfig, store: AttachmentStore | None, knows: Callable[[str], bool]
    ) -> None:
        self._store = store
        self._knows = knows
        self._max_files = config.max_files
        self._max_bytes = int(config.max_files_mb * 1_000_000)

    async def keep(self, message: InboundMessage, mail: ParsedMail | None) -> InboundMessage:
        """
        Return the message with its files, and a note about those not stored.

        Raises AttachmentsUnavailable: do not accept the mail.
        """
        if mail is None or not mail.attachments or not message.addressed:
            return message
        if not self._knows(message.sender.address):
            return message  # the gateway keeps nothing of it
        if self._store is None:
            return _noted(message, [(note, "") for note in mail.attachments])
        quarantined = bool(message.context.quarantine)
        room = _Room(
            self._max_files, min(self._max_bytes, QUARANTINED_BYTES) if quarantined else self._max_bytes
        )
        kept: list[Attachment] = []
        missing: list[tuple[AttachmentNote, str]] = []
        for note in mail.attachments:
            found = await self._one(self._store, message, note, room)
            if isinstance(found, Attachment):
                kept.append(found)
            else:
                missing.append((note, found))
        if missing:
            _log.warning(
                "mail.files_left", uid=route_of(message.context).uid, kept=len(kept), left=len(missing)
            )
        return _noted(message.model_copy(update={"attachments": tuple(kept)}), missing)

    async def _one(
        self, store: AttachmentStore, message: InboundMessage, note: AttachmentNote, room: _Room
    ) -> Attachment | str:
        if room.files <= 0:
            return f"a mail may have at most {self._max_files} files"
        try:
            kept = await store.save(
                note.name, note.media_type, _decoded(note), limit_bytes=room.bytes, message=message
            )
        except AttachmentRefused as error:
            return str(error)
        room.files -= 1
        room.bytes -= kept.size_bytes
        return kept


async def _decoded(note: AttachmentNote) -> AsyncIterator[bytes]:
    """The content, each piece decoded in a worker thread."""
    pieces = iter(note.chunks())
    while (piece := await anyio.to_thread.run_sync(next, pieces, None)) is not None:
        yield piece


def _noted(message: InboundMessage, missing: list[tuple[AttachmentNote, str]]) -> InboundMessage:
    if not missing:
        return message
    named = "; ".join(_described(note, why) for note, why in missing[:MAX_NAMED])
    more = f"; and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    remark = f"[Attached, but not kept: {named}{more}]"
    context = replace(message.context, others_words=True)  # whoever made a file has named it
    return message.model_copy(update={"text": f"{message.text}\n\n{remark}".strip(), "context": context})


def _described(note: AttachmentNote, why: str) -> str:
    size = f"{note.size_bytes} bytes" if note.size_bytes < 1_000 else f"{note.size_bytes // 1_000} kB"
    return f"{note.name} ({note.media_type}, {size}{f': {why}' if why else ''})"


async def read_files(
    attachments: tuple[Attachment, ...], store: AttachmentStore | None, *, max_bytes: int
) -> tuple[list[tuple[Attachment, bytes]], list[str]]:
    """Read files up to ``max_bytes`` in all; return a sentence per missing one. Raises OSError."""
    found: list[tuple[Attachment, bytes]] = []
    missing: list[str] = []
    left = max_bytes
    for each in attachments:
        if store is None or each.size_bytes > left:
            missing.append(
                _(
                    "{name} is too large to be sent by mail ({size})",
                    name=each.name,
                    size=_megabytes(each.size_bytes),
                )
            )
            continue
        try:
            content = await store.read(each, max_bytes=each.size_bytes + 1)
        except AttachmentGone as error:
            missing.append(str(error))
            continue
        left -= len(content)
        found.append((each, content))
    return found, missing


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.3g} MB"
