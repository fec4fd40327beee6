"""Makes an outbox row into a mail and submits it; without its files if the mail would be too large."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.to_thread
import structlog

from agent_core.messages import OutboundMessage
from channels.attachments import AttachmentStore
from channels.base import ChannelUnavailable
from channels.email.compose.outbound_mail import OutgoingMail, compose
from channels.email.config import EmailConfig
from channels.email.receive.mail_attachments import read_files
from channels.email.smtp.submission import MailTooLarge, Submission

_FORMAT_LIMIT_S = 20.0
_log = structlog.get_logger(__name__)


class Posting:
    """Composes mails and submits them, with files if there are ``attachments``."""

    def __init__(
        self,
        config: EmailConfig,
        submitter: Submission,
        attachments: AttachmentStore | None,
        tls: Callable[[], Awaitable[ssl.SSLContext | None]],
    ) -> None:
        self._config = config
        self._submitter = submitter
        self._attachments = attachments
        self._tls = tls

    async def post(
        self, message: OutboundMessage, uncertain: Callable[[], Awaitable[None]]
    ) -> tuple[OutgoingMail, str]:
        """Submit a mail, without its files if it is too large; return the reply. Raises ChannelError."""
        mail = await self._built(message, int(self._config.max_reply_mb * 1_000_000))
        try:
            said = await self._submitter.submit(
                mail.envelope, mail.raw, context=await self._tls(), uncertain=uncertain
            )
        except MailTooLarge as exc:
            if not message.attachments:
                raise
            _log.warning("mail.files_left_out", bytes=len(mail.raw), error=str(exc))
            mail = await self._built(message, 0)
            said = await self._submitter.submit(
                mail.envelope, mail.raw, context=await self._tls(), uncertain=uncertain
            )
        return mail, said

    async def _built(self, message: OutboundMessage, room: int) -> OutgoingMail:
        """Built in a thread, unformatted where that takes long; ``room`` is what its files may take."""
        try:
            files, missing = await read_files(message.attachments, self._attachments, max_bytes=room)
        except OSError as exc:
            raise ChannelUnavailable(f"a file cannot be read: {exc.strerror}") from exc
        self_copy = self._config.sent_copy == "self"
        build = partial(compose, message, address=self._config.address, self_copy=self_copy)
        build = partial(build, files=files, missing=missing)
        with anyio.move_on_after(_FORMAT_LIMIT_S):
            return await anyio.to_thread.run_sync(build, abandon_on_cancel=True)
        _log.warning("mail.sent_unformatted", row=message.id, chars=len(message.text))
        return await anyio.to_thread.run_sync(partial(build, formatted=False))
