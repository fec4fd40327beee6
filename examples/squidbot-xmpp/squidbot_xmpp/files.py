"""
Files over HTTP (XEP-0363): fetched before their messages are accepted, stored before ours are sent.

A message names any address, so what is fetched is bounded: over HTTPS, from the account's own domain or a
host that the settings name, without following to another place.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from urllib.parse import unquote, urlsplit

import aiohttp
import anyio

from squidbot_api.channel import (
    Attachment,
    AttachmentRefused,
    ChannelServices,
    ChannelUnavailable,
    InboundMessage,
)
from squidbot_xmpp import XmppConfig
from squidbot_xmpp.link import Link, Refused

LIMIT_S = 45.0
_PIECE = 64 * 1024


class FileRefused(Exception):
    """A file cannot be fetched or sent. The text is a sentence that anybody may read."""


class Files:
    """The files of one account."""

    def __init__(self, config: XmppConfig, services: ChannelServices) -> None:
        self._config, self._store = config, services.attachments

    def may_fetch(self, url: str) -> bool:
        """Return True for an address from which files are fetched."""
        try:
            parts = urlsplit(url)
            host, _ = (parts.hostname or "").lower(), parts.port
        except ValueError:
            return False
        ours = (self._config.domain, *(each.lower() for each in self._config.file_hosts))
        known = host in ours or host.endswith(f".{self._config.domain}")
        return known and parts.scheme in self._schemes and not parts.username

    @property
    def _schemes(self) -> tuple[str, ...]:
        return ("https",) if self._config.tls else ("https", "http")

    async def fetch(self, url: str, message: InboundMessage) -> Attachment:
        """Fetch and store the file of a message. Raises `FileRefused` or, for now, `ChannelUnavailable`."""
        name = unquote(urlsplit(url).path.rpartition("/")[2]) or "file"
        try:
            with anyio.fail_after(LIMIT_S):
                async with self._http() as http, http.get(url, allow_redirects=False) as answer:
                    if answer.status != 200:
                        raise FileRefused(f"its server answers {answer.status}")
                    media_type = answer.content_type or "application/octet-stream"
                    return await self._store.save(
                        name, media_type, answer.content.iter_chunked(_PIECE), message=message
                    )
        except AttachmentRefused as error:
            raise FileRefused(error.public) from error
        except (aiohttp.ClientError, ValueError) as error:
            raise FileRefused("its server cannot be reached") from error
        except TimeoutError as error:
            raise FileRefused("its server takes too long") from error

    async def send(self, link: Link, attachment: Attachment) -> str:
        """Store a file at the server and return its address. Raises `FileRefused` or `ChannelUnavailable`."""
        try:
            slot = await link.slot(attachment.name, attachment.size_bytes, attachment.media_type)
        except Refused as error:
            if error.temporary:
                raise ChannelUnavailable(f"the server takes no file now: {error.condition}") from error
            raise FileRefused(f"the server refuses it ({error.condition})") from error
        if {urlsplit(slot.put).scheme, urlsplit(slot.get).scheme} - set(self._schemes):
            raise FileRefused("the server offers only a place without encryption")
        headers = {
            **slot.headers,
            "Content-Length": str(attachment.size_bytes),
            "Content-Type": attachment.media_type,
        }
        try:
            with anyio.fail_after(LIMIT_S):
                async with (
                    self._http() as http,
                    http.put(
                        slot.put, data=self._pieces(attachment), headers=headers, allow_redirects=False
                    ) as answer,
                ):
                    if answer.status >= 500:
                        raise ChannelUnavailable(f"the server does not take a file now: {answer.status}")
                    if answer.status not in (200, 201):
                        raise FileRefused(f"the server refuses it ({answer.status})")
        except LookupError as error:
            raise FileRefused("it is no longer kept") from error
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is one
            raise ChannelUnavailable("a file could not be sent") from error
        return slot.get

    async def _pieces(self, attachment: Attachment) -> AsyncIterator[bytes]:
        async for piece in self._store.chunks(attachment):
            yield piece

    def _http(self) -> aiohttp.ClientSession:
        trust = ssl.create_default_context(cafile=self._config.ca_file)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust), timeout=aiohttp.ClientTimeout(total=LIMIT_S)
        )
