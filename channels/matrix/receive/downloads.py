"""
The files of received messages: fetched, decrypted, checked and stored before the messages are accepted.
`read_event` leaves a note (`FileNote`) in the route. `Downloads` fetches a few files at a time within
`ALL_LIMIT_S`, and gives the messages back with attachments or the reason: no message is lost for its file.
While the store takes nothing, `fetch_files` waits and `fetch_file` raises. Files of people who may not talk
to the bot, and in talk not meant for it, are not fetched.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import anyio
import structlog

from agent_core.backoff import Backoff, BackoffPolicy
from agent_core.messages import Attachment, InboundMessage
from channels.attachments import AttachmentRefused, AttachmentStore, AttachmentsUnavailable
from channels.matrix.client.homeserver import RETRY, Download, Homeserver, HttpAnswer, LinkBroken, quote_path
from channels.matrix.events.inbound_events import MatrixRoute
from channels.matrix.events.media_events import (
    VOICE_MESSAGE,
    FileDecryption,
    FileNote,
    Media,
    MediaInvalid,
    media_in,
    media_kind,
)

ALL_LIMIT_S = 45.0
"""For all files that are fetched together."""

_NEW_DOOR = "/_matrix/client/v1/media/download"
_OLD_DOOR = "/_matrix/media/v3/download"
_SERVER_WAITS_MS = 20_000
_SOUND_ENDINGS = frozenset({".ogg", ".oga", ".opus", ".mp3", ".m4a", ".mp4", ".wav", ".webm", ".flac"})
_log = structlog.get_logger(__name__)


class _Later(Exception):
    """It did not work and may do so at another try."""

    def __init__(self, public: str, wait_s: float | None = None) -> None:
        self.wait_s = wait_s
        super().__init__(public)


class Downloads:
    """Downloads files for one account into ``store`` (None: mentioned only), within `ALL_LIMIT_S`."""

    def __init__(
        self, homeserver: Homeserver, store: AttachmentStore | None, *, allows: Callable[[str], bool]
    ) -> None:
        self._homeserver = homeserver
        self._store = store
        self._allows = allows
        self._door = _NEW_DOOR

    async def fetch_files(self, messages: Sequence[InboundMessage]) -> list[InboundMessage]:
        """The messages, in order, with their files or with the reason why not; waits for the storage."""
        wanted = [number for number, message in enumerate(messages) if self.needs_fetch(message)]
        brought = await self._bring(self._store, messages, wanted) if self._store and wanted else {}
        return [
            self._finished(message, brought.get(number) if number in wanted else None)
            for number, message in enumerate(messages)
        ]

    async def fetch_file(self, message: InboundMessage) -> InboundMessage:
        """Return the message with its file or the reason why not. Raises AttachmentsUnavailable."""
        found: dict[int, Attachment | str] = {}
        if self._store is not None and self.needs_fetch(message):
            try:
                await self._round(self._store, [message], [0], found)
            except* AttachmentsUnavailable as group:
                raise _first(group) from group
        return self._finished(message, found.get(0))

    def without_file(self, message: InboundMessage) -> InboundMessage:
        """The message without its file, for which there is no time."""
        wanted = self.needs_fetch(message)
        return self._finished(message, "there is too much to fetch at once" if wanted else None)

    def needs_fetch(self, message: InboundMessage) -> bool:
        """Return True if the message has a file to fetch."""
        here, file = message.context.allowed_here, message.context.read_route(MatrixRoute).media
        allowed = self._allows(message.sender.address) if here is None else here
        return file is not None and message.addressed and allowed and self._store is not None

    async def _bring(
        self, store: AttachmentStore, messages: Sequence[InboundMessage], wanted: Sequence[int]
    ) -> dict[int, Attachment | str]:
        """Fetch the files; return each, or why it failed, by the number of its message."""
        found: dict[int, Attachment | str] = {}
        backoff = Backoff(RETRY)
        while missing := [number for number in wanted if number not in found]:
            try:
                await self._round(store, messages, missing, found)
            except* AttachmentsUnavailable as group:
                pause_s = backoff.note_failure(random=random.random())
                _log.error("matrix.file_blocked", error=str(_first(group)), retry_in_s=round(pause_s, 1))
                await anyio.sleep(pause_s)
        return found

    async def _round(
        self,
        store: AttachmentStore,
        messages: Sequence[InboundMessage],
        missing: Sequence[int],
        found: dict[int, Attachment | str],
    ) -> None:
        await store.ready()  # listing what is there is no part of fetching either
        limiter = anyio.Semaphore(4)
        until = anyio.current_time() + ALL_LIMIT_S

        async def fetch_one(number: int) -> None:
            with anyio.CancelScope(deadline=until) as scope:
                with ExitStack() as slot:
                    await limiter.acquire()
                    slot.callback(limiter.release)

                    def came() -> None:
                        scope.deadline = math.inf
                        slot.close()

                    found[number] = await self._one(store, messages[number], came)
            if scope.cancelled_caught:
                found.setdefault(number, "the homeserver took too long to deliver it")

        async with anyio.create_task_group() as group:
            for number in missing:
                group.start_soon(fetch_one, number)

    async def _one(
        self, store: AttachmentStore, message: InboundMessage, came: Callable[[], None]
    ) -> Attachment | str:
        """The file, or why it could not be had; ``came`` is called when only keeping it is left."""
        try:
            media = media_in(*_event_in(message))
            if media is None:
                return "it is not a file"
            attachment = await self._fetched(store, message, media, came)
        except (MediaInvalid, AttachmentRefused, _Later) as error:
            _log.warning("matrix.file_refused", event_id=message.native_id, reason=str(error))
            return str(error)
        except AttachmentsUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - strangers write events; none may stop the others
            _log.error("matrix.file_unreadable", event_id=message.native_id, error=type(error).__name__)
            return "it is malformed"
        _log.info("matrix.file_stored", event_id=message.native_id, size_bytes=attachment.size_bytes)
        return attachment

    async def _fetched(
        self, store: AttachmentStore, message: InboundMessage, media: Media, came: Callable[[], None]
    ) -> Attachment:
        backoff = Backoff(BackoffPolicy(first_s=0.5, cap_s=5.0, jitter=0.4))
        while True:
            try:
                return await self._once(store, message, media, came)
            except _Later as error:
                pause_s = backoff.note_failure(random=random.random(), at_least_s=error.wait_s)
                if backoff.failures >= 3:
                    raise
                await anyio.sleep(pause_s)

    async def _once(
        self, store: AttachmentStore, message: InboundMessage, media: Media, came: Callable[[], None]
    ) -> Attachment:
        path = f"{self._door}/{quote_path(media.server)}/{quote_path(media.media_id)}"
        is_new = self._door == _NEW_DOOR
        query = {"timeout_ms": str(_SERVER_WAITS_MS)} if is_new else None
        try:
            async with self._homeserver.download(path, query=query, anonymous=not is_new) as download:
                if download.answer.is_success:
                    return await _save(store, message, media, download, came)
                answer = download.answer
        except LinkBroken as error:
            raise _Later("the connection to the homeserver broke") from error
        if is_new and answer.errcode == "M_UNRECOGNIZED":
            self._door = _OLD_DOOR  # before version 1.11 of the specification
            return await self._once(store, message, media, came)
        raise _problem(answer)

    def _finished(self, message: InboundMessage, found: Attachment | str | None) -> InboundMessage:
        route = message.context.read_route(MatrixRoute)
        if route.media is None:
            return message
        remark, spoken, others = route.media.remark, message.context.spoken, message.context.others_words
        update: dict[str, Any] = {}
        if isinstance(found, Attachment):
            update |= {"attachments": (found,), "text": _without(message.text, remark)}
            if media_kind(*_event_in(message)) == VOICE_MESSAGE:
                spoken = (found.sha256,)
                others = others or not remark  # it is quoted
        elif isinstance(found, str) and remark:
            others = True  # whoever made the file has named it
            update["text"] = message.text.replace(remark, f"{remark[:-1]}, but I could not get it: {found}]")
        elif remark and message.addressed:
            others = True
            update["text"] = message.text.replace(remark, f"{remark[:-1]}, which cannot be opened here]")
        context = replace(message.context, spoken=spoken, others_words=others)
        return message.model_copy(
            update={**update, "context": context.with_route(replace(route, media=None))}
        )


async def _save(
    store: AttachmentStore,
    message: InboundMessage,
    media: Media,
    download: Download,
    came: Callable[[], None],
) -> Attachment:
    limit = store.max_file_bytes
    if download.size_bytes is not None and download.size_bytes > limit:
        raise MediaInvalid(f"it is larger than {limit / 1_000_000:.3g} MB")
    pieces = (
        download.chunks if media.secret is None else _decrypted(download.chunks, FileDecryption(media.secret))
    )
    async with aclosing(_guarded(pieces, came)) as content:
        return await store.save(_file_name(media), media.media_type, content, message=message)


def _file_name(media: Media) -> str:
    """Return the file's name; a recording gets a plain one, because nobody chose its name."""
    if media.kind != VOICE_MESSAGE:
        return media.name
    ending = PurePosixPath(media.name).suffix.lower()
    return f"Voice message{ending if ending in _SOUND_ENDINGS else '.ogg'}"


async def _decrypted(chunks: AsyncIterator[bytes], decryption: FileDecryption) -> AsyncIterator[bytes]:
    async for piece in chunks:
        yield decryption.decrypt(piece)
    decryption.finish()


async def _guarded(chunks: AsyncIterator[bytes], came: Callable[[], None]) -> AsyncGenerator[bytes, None]:
    """The same pieces, as something that can be closed."""
    async for piece in chunks:
        yield piece
    came()


def _first(group: ExceptionGroup[AttachmentsUnavailable]) -> AttachmentsUnavailable:
    error = group.exceptions[0]
    return error if isinstance(error, AttachmentsUnavailable) else _first(error)


def _event_in(message: InboundMessage) -> tuple[Any, Any]:
    """Type and content of the event, as `read_event` has noted them."""
    noted = message.context.read_route(MatrixRoute).media or FileNote()
    return noted.type, noted.content


def _problem(answer: HttpAnswer) -> Exception:
    if answer.status == 404 and answer.errcode:
        return MediaInvalid("the homeserver does not have it, or no longer")
    if answer.errcode == "M_TOO_LARGE" or answer.status == 413:
        return MediaInvalid("the homeserver rejects it as too large")
    if answer.status == 403 and answer.errcode:
        return MediaInvalid("the homeserver does not let me read it")
    if answer.status == 429:
        return _Later("the homeserver limits the rate of requests", answer.wait_s)
    return _Later(f"the homeserver could not deliver it ({answer.status})")


def _without(text: str, remark: str) -> str:
    return text.replace(remark, "").strip() if remark else text
