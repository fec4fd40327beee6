"""Opens connections to the mail server; all connections of a mailbox verify the server in the same way."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from channels.base import ChannelAuthFailed, ChannelMisconfigured, ChannelUnavailable
from channels.email.config import EmailConfig
from channels.email.imap.imap_connect import Timing
from channels.email.imap.mailbox import Mailbox
from channels.email.mail_credentials import Credentials, verifying_context


class Connections:
    """Opens connections to one mailbox."""

    def __init__(self, config: EmailConfig, credentials: Credentials) -> None:
        self._config = config
        self.timing = Timing()
        self._credentials = credentials
        self._context: ssl.SSLContext | None = None
        self._context_lock = anyio.Lock()

    async def tls(self) -> ssl.SSLContext | None:
        """The TLS context; None if neither server uses TLS."""
        if self._config.imap.security == "none" and self._config.smtp.security == "none":
            return None
        async with self._context_lock:
            if self._context is None:
                self._context = await anyio.to_thread.run_sync(verifying_context, self._config.tls_ca_file)
            return self._context

    @asynccontextmanager
    async def open_mailbox(self) -> AsyncIterator[Mailbox]:
        """A logged-in connection. Raises `ChannelError`: there is none; it says why, in plain words."""
        context = await self.tls()
        async with Mailbox.open(self._config, context, self.timing, self._credentials) as mailbox:
            yield mailbox

    async def find_copy(self, message_id: str) -> bool:
        """Search a mail of ours, INBOX first: filing moves it to Sent. Raises ChannelUnavailable."""
        own = self._config.address
        try:
            async with self.open_mailbox() as mailbox:
                await mailbox.select("INBOX", read_only=True)
                if await mailbox.find(message_id, own):
                    return True
                await mailbox.select(await mailbox.sent_folder(), read_only=True)
                return bool(await mailbox.find(message_id, own))
        except (ChannelAuthFailed, ChannelMisconfigured) as exc:
            raise ChannelUnavailable(f"cannot look for the copy: {exc}") from exc
