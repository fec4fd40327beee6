"""
Outgoing files: uploaded to the homeserver first, then named in an event. In an encrypted room a file is
encrypted with a key of its own before it leaves, and the homeserver learns neither its name nor its kind.
What a homeserver does not take (it says how large a file may be) becomes a sentence in the place of the file.
A file that was stored and not named, because of a crash in between, is stored once more; what people see is
one event all the same, because its transaction id derives from the message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import structlog

from agent_core.bounded import Bounded
from agent_core.messages import Attachment
from channels.attachments import AttachmentDamaged, AttachmentGone, AttachmentStore, Picture
from channels.base import ChannelUnavailable
from channels.matrix.client.homeserver import (
    Homeserver,
    HttpAnswer,
    LinkBroken,
    TokenLost,
    channel_error,
    link_errors,
)
from channels.matrix.events.media_events import FileEncryption

_UPLOAD = "/_matrix/media/v3/upload"
_SETTINGS = ("/_matrix/client/v1/media/config", "/_matrix/media/v3/config")
_log = structlog.get_logger(__name__)


class FileRefused(Exception):
    """This file cannot be sent here. The text is a sentence that anybody may read."""


class Uploads:
    """Uploads files of ``store`` (None: none) to one homeserver."""

    def __init__(self, homeserver: Homeserver, store: AttachmentStore | None) -> None:
        self._homeserver = homeserver
        self._store = store
        self._max_bytes: int | None = None
        self._stored: Bounded[tuple[str, bool], Mapping[str, Any]] = Bounded(20)
        """What was stored lately, so that a repeated delivery does not store it again."""

    async def content(self, attachment: Attachment, *, encrypted: bool) -> dict[str, Any]:
        """Upload a file; return its event content. Raises FileRefused, ChannelUnavailable or TokenLost."""
        if self._store is None:
            raise FileRefused("this bot keeps no files")
        try:
            picture = await self._store.read_picture_header(attachment)
            where = await self._where(self._store, attachment, encrypted=encrypted)
        except AttachmentDamaged as error:
            raise FileRefused("the stored copy is damaged") from error
        except AttachmentGone as error:
            raise FileRefused("it is no longer kept") from error
        except OSError as error:
            raise ChannelUnavailable(f"a file cannot be read: {error.strerror}") from error
        return {
            "msgtype": "m.image" if picture is not None else _message_type(attachment.media_type),
            "body": attachment.name,
            "filename": attachment.name,
            "info": _info(attachment, picture),
            "m.mentions": {},
            **where,
        }

    async def _where(
        self, store: AttachmentStore, attachment: Attachment, *, encrypted: bool
    ) -> Mapping[str, Any]:
        """``url``, or ``file`` with the key."""
        known = self._stored.get((attachment.path, encrypted))
        if known is not None:
            return known
        await self._check_size(attachment)
        encryption = FileEncryption() if encrypted else None
        query = {} if encrypted else {"filename": attachment.name}
        pieces = _Pieces(store, attachment, encryption)
        try:
            # Not closed by us: the answer may come while the connection still asks for a next piece.
            answer = await self._homeserver.upload(
                _UPLOAD,
                pieces.read(),
                size_bytes=attachment.size_bytes,
                media_type="application/octet-stream" if encrypted else attachment.media_type,
                query=query,
                timeout_s=90.0,
            )
        except LinkBroken as error:
            if pieces.trouble is not None:
                raise pieces.trouble from error
            raise ChannelUnavailable(f"a file could not be uploaded: {error}") from error
        mxc = answer.body.get("content_uri")
        if not answer.is_success or not isinstance(mxc, str):
            raise _refusal(answer)
        _log.info("matrix.file_uploaded", size_bytes=attachment.size_bytes, encrypted=encrypted)
        where = {"url": mxc} if encryption is None else {"file": encryption.file(mxc)}
        self._stored[attachment.path, encrypted] = where
        return where

    async def _check_size(self, attachment: Attachment) -> None:
        """Ask how large a file may be before it is sent: many servers only hang up on one that is larger."""
        if self._max_bytes is None:
            self._max_bytes = await self._asked_limit()
        if 0 < self._max_bytes < attachment.size_bytes:
            raise FileRefused(
                f"it has {_megabytes(attachment.size_bytes)}, and this homeserver accepts "
                f"{_megabytes(self._max_bytes)}"
            )

    async def _asked_limit(self) -> int:
        """Return the homeserver's upload limit in bytes, 0 if it names none."""
        for path in _SETTINGS:
            with link_errors():
                answer = await self._homeserver.request("GET", path)
            if answer.is_token_refused:
                raise TokenLost(answer)
            limit = answer.body.get("m.upload.size")
            if answer.is_success:
                return limit if isinstance(limit, int) and limit > 0 else 0
            if answer.errcode != "M_UNRECOGNIZED" and answer.status not in (403, 404):
                raise channel_error(answer)
        return 0


class _Pieces:
    """
    The content as it goes out. ``trouble`` is why it could not be read to its end: for whoever sends it, that
    is nothing but a connection that broke.
    """

    def __init__(
        self, store: AttachmentStore, attachment: Attachment, encryption: FileEncryption | None
    ) -> None:
        self._store = store
        self._attachment = attachment
        self._encryption = encryption
        self.trouble: AttachmentGone | OSError | None = None

    async def read(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._store.chunks(self._attachment):
                yield piece if self._encryption is None else self._encryption.encrypt(piece)
        except (AttachmentGone, OSError) as error:
            self.trouble = error
            raise


def _refusal(answer: HttpAnswer) -> Exception:
    if answer.is_token_refused:
        return TokenLost(answer)
    if answer.errcode == "M_TOO_LARGE" or answer.status == 413:
        return FileRefused("the homeserver rejects it as too large")
    if answer.status == 403 and answer.errcode:
        return FileRefused("the homeserver does not accept it from me")
    return channel_error(answer)


def _message_type(media_type: str) -> str:
    family = media_type.partition("/")[0]
    return {"audio": "m.audio", "video": "m.video"}.get(family, "m.file")


def _info(attachment: Attachment, picture: Picture | None) -> dict[str, Any]:
    info: dict[str, Any] = {"mimetype": attachment.media_type, "size": attachment.size_bytes}
    if picture is not None:
        info |= {"mimetype": picture.media_type, "w": picture.width, "h": picture.height}
    return info


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.3g} MB"
