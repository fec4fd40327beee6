"""
Sends one message to one room, exactly once as far as a homeserver allows it. The transaction id is the same
for every try (`Redelivery.SAME_KEY`), but dies with the device, and Synapse forgets it after a day; for
messages older than the device or `KEYS_KEPT_S` the room, and perhaps those it replaced, is searched for the
mark first. Long texts are halved with derived ids; with streaming the first event has the preview's id and
edits it. A private answer is replaced by a notice if others have joined. Only an ``errcode`` is a final
refusal; after the request had left, all else is uncertain.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import structlog

from agent_core.language import _, gettext_noop
from agent_core.messages import Attachment, OutboundKind, OutboundMessage
from channels.attachments import AttachmentStore
from channels.base import ChannelUnavailable, DeliveryUncertain, Receipt
from channels.matrix.client.homeserver import (
    CLIENT,
    AnswerTooLarge,
    Homeserver,
    LinkBroken,
    MatrixCredentials,
    TokenLost,
    channel_error,
    link_errors,
    quote_path,
    send_problem,
)
from channels.matrix.client.json_access import JsonObject, object_of
from channels.matrix.client.matrix_login import MAX_IN_A_ROW, MatrixLogin
from channels.matrix.config import MatrixConfig
from channels.matrix.crypto.encryption_engine import EncryptionEngine
from channels.matrix.events.inbound_events import MatrixRoute, as_voice_message, is_voice_message
from channels.matrix.events.outbound_events import (
    as_edit,
    build_content,
    frame_of,
    is_first_part,
    preview_of,
    size_of,
    transaction_id,
)
from channels.matrix.rooms.backfill import check_room
from channels.matrix.rooms.room_state import Rooms
from channels.matrix.send.encryption_gate import EncryptionGate
from channels.matrix.send.sent_lookup import SentLookup
from channels.matrix.send.uploads import FileRefused, Uploads
from channels.split import split_markdown

KEYS_KEPT_S = 12 * 3600.0
"""The time for which any homeserver recognises a transaction id; Synapse promises 24 hours."""
NOT_ALONE = gettext_noop(
    "I have a message for you, but others can read this room now, so I did not post it. Write to me in a "
    "room where we are alone."
)

_SEND_LIMIT_S = 40.0
_QUICKLY_FORMATTED = 1000
"""Characters whose Markdown takes a few milliseconds whatever it is."""
_FORMAT_LIMIT_S = 15.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """
    The destination and form of one delivery.

    ``uncertain`` is awaited before each request. ``forgotten``: the server may have forgotten the transaction
    id. ``earlier``: replaced rooms that may have it, newest first. ``previewed``: the event with its preview.
    """

    used: MatrixCredentials
    encrypted: bool
    uncertain: Callable[[], Awaitable[None]]
    forgotten: bool
    earlier: tuple[str, ...] = ()
    previewed: str | None = None


def check_size(content: JsonObject, limit: int) -> None:
    """Check that a content fits into ``limit`` bytes. Raises `AnswerTooLarge`."""
    if size_of(content) > limit:
        raise AnswerTooLarge(f"the text is too long for one Matrix event ({size_of(content)} bytes)")


async def nothing() -> None:
    """Do nothing: a hint needs no point of no return."""


class EventSender:
    """
    Delivers messages; without ``crypto`` none into encrypted rooms, without ``attachments`` no file.

    ``is_current``: ``rooms`` are reliable; ``now`` is the wall clock.
    """

    def __init__(
        self,
        config: MatrixConfig,
        homeserver: Homeserver,
        login: MatrixLogin,
        rooms: Rooms,
        *,
        is_current: Callable[[], bool],
        now: Callable[[], datetime],
        crypto: EncryptionEngine | None = None,
        attachments: AttachmentStore | None = None,
    ) -> None:
        self._config = config
        self._homeserver = homeserver
        self._login = login
        self._rooms = rooms
        self._is_current = is_current
        self._now = now
        self._uploads = Uploads(homeserver, attachments)
        self._search = SentLookup(homeserver, config.user_id)
        self._encryption_gate = EncryptionGate(homeserver, rooms, is_current=is_current, crypto=crypto)

    async def deliver(
        self,
        message: OutboundMessage,
        *,
        uncertain: Callable[[], Awaitable[None]],
        previewed: str | None = None,
    ) -> Receipt:
        """Send one message; see `Channel.deliver`. ``previewed`` is the event that shows it unfinished."""
        for __ in range(MAX_IN_A_ROW + 1):
            used = self._homeserver.credentials
            if used is None:
                raise ChannelUnavailable("not logged in yet", retry_after_s=1.0)
            try:
                return await self._try(message, used, uncertain, previewed)
            except TokenLost as refused:
                await self._login.renew(used, refused.answer)
        raise ChannelUnavailable("the homeserver refuses each new token", retry_after_s=30.0)

    async def _try(
        self,
        message: OutboundMessage,
        used: MatrixCredentials,
        uncertain: Callable[[], Awaitable[None]],
        previewed: str | None,
    ) -> Receipt:
        room_id = message.session.conversation
        encrypted = await self._encryption_gate.is_encrypted(room_id)
        name = transaction_id(message.id)
        # It may take its time, so it comes before the look at who is there.
        content = await self._content(message, name, encrypted=encrypted, first=True)
        if await self._is_overheard(message):
            _log.warning("matrix.answer_withheld", room=room_id)
            if is_voice_message(message):  # it says again what was sent or withheld before, and that was told
                return Receipt(f"{name} withheld")
            message = message.model_copy(update={"text": _(NOT_ALONE), "attachments": ()})
            content = await self._content(message, name, encrypted=encrypted, first=True)
        forgotten = self._key_may_be_forgotten(message, used)
        # Transaction ids count within a room: of what went into an earlier one this one knows nothing.
        earlier = tuple(self._rooms.successors.earlier(room_id)) if message.maybe_sent else ()
        attempt = SendAttempt(used, encrypted, uncertain, forgotten, earlier, previewed)
        events = [] if is_voice_message(message) else [await self._send_text(message, name, attempt, content)]
        for number, file in enumerate(message.attachments):
            events.append(await self._send_file(message, file, f"{name}.f{number}", attempt))
        return Receipt(events[0])

    async def _send_file(
        self, message: OutboundMessage, file: Attachment, name: str, attempt: SendAttempt
    ) -> str:
        """Send one file of a message in an event of its own, or a sentence instead of it; returns its id."""
        room_id = message.session.conversation
        found = await self._found(message, name, attempt)
        if found is not None:
            return found
        try:
            content = await self._uploads.content(file, encrypted=attempt.encrypted)
            if not attempt.encrypted and await self._encryption_gate.is_encrypted(room_id):
                content = await self._uploads.content(file, encrypted=True)  # it has become so meanwhile
        except FileRefused as refused:
            _log.warning("matrix.file_not_sent", room=room_id, reason=str(refused))
            text = _("I cannot send you the file {name}: {why}.", name=repr(file.name), why=_(str(refused)))
            told = message.model_copy(update={"text": text})
            content = build_content(told, name, formatted=False, first=False)
        else:
            content = as_voice_message(content, message) | frame_of(message, name)
        return await self._put(room_id, content, name, attempt)

    async def _content(
        self, message: OutboundMessage, name: str, *, encrypted: bool, first: bool
    ) -> dict[str, Any]:
        """The event of a text; what does not fit into one is not formatted."""
        display = self._config.display
        room = self._rooms.get(message.session.conversation)
        members = {} if room is None else {each: room.names.get(each, "") for each in room.joined}
        build = partial(build_content, message, name, reply=display.reply, first=first, members=members)
        fits = len(message.text) <= self._encryption_gate.limit(encrypted=encrypted)
        return await _formatted(build, message) if display.html and fits else build(formatted=False)

    async def _send_text(
        self,
        message: OutboundMessage,
        name: str,
        attempt: SendAttempt,
        content: dict[str, Any],
        *,
        first: bool = True,
    ) -> str:
        """Send a text, in as many events as it needs; returns the id of the first."""
        try:
            return await self._send_one(message, content, name, attempt, first=first)
        except AnswerTooLarge:
            half = max(len(message.text.encode("utf-8", "replace")) * 11 // 20, 1000)
            halves = split_markdown(message.text, half)
            if len(halves) < 2:
                raise
        found = []
        for number, text in enumerate(halves):
            piece = message.model_copy(update={"text": text})
            begins, its_name = first and number == 0, f"{name}.{number}"
            half_content = await self._content(piece, its_name, encrypted=attempt.encrypted, first=begins)
            found.append(await self._send_text(piece, its_name, attempt, half_content, first=begins))
        return found[0]

    async def _send_one(
        self,
        message: OutboundMessage,
        content: dict[str, Any],
        name: str,
        attempt: SendAttempt,
        *,
        first: bool,
    ) -> str:
        room_id = message.session.conversation
        limit = self._encryption_gate.limit(encrypted=attempt.encrypted)
        found = await self._found(message, name, attempt)
        if found is not None:
            return found
        check_size(content, limit)
        streams = self._config.streaming.enabled and first and is_first_part(message)
        edits = message.context.edits if first else ""
        streams = streams and not edits
        preview = transaction_id(preview_of(message).id) if streams else ""
        previewed = attempt.previewed if streams else edits or None
        if attempt.forgotten:
            if preview and previewed is None:
                previewed = await self._search.find(message, preview)
        elif preview and previewed is None:
            event_id = await self._put(room_id, content, preview, attempt)
            taken = await self._search.transaction_of(room_id, event_id)
            if taken == name:
                return event_id
            # What was refused as too large is halved under other names, of which one may be there.
            previewed = event_id if taken == preview else None
        if previewed is None:
            return await self._put(room_id, content, name, attempt)
        named = object_of(content, "m.mentions").get("user_ids", [])
        called = [each for each in named if each != message.context.read_route(MatrixRoute).sender]
        edit = as_edit(content, previewed, max_bytes=limit, called=called)
        check_size(edit, limit)
        await self._put(room_id, edit, name, attempt)
        return previewed

    async def _found(self, message: OutboundMessage, name: str, attempt: SendAttempt) -> str | None:
        """The event that the message is already, where no transaction id would tell."""
        found = await self._search.find(message, name) if attempt.forgotten else None
        if found is None and attempt.earlier:
            found = await self._search.find_in_replaced_rooms(message, name, attempt.earlier)
        if found is not None:
            _log.info("matrix.message_found", room=message.session.conversation, event_id=found)
        return found

    async def _put(self, room_id: str, content: Mapping[str, Any], name: str, attempt: SendAttempt) -> str:
        kind, covered = await self._encryption_gate.prepare(
            room_id, "m.room.message", content, encrypted=attempt.encrypted
        )
        if self._homeserver.credentials != attempt.used:
            # Another device has other transaction ids: first look whether the message is there.
            raise ChannelUnavailable("the login has changed meanwhile", retry_after_s=0.1)
        path = f"{CLIENT}/rooms/{quote_path(room_id)}/send/{kind}/{quote_path(name)}"
        await attempt.uncertain()
        try:
            answer = await self._homeserver.request("PUT", path, covered, timeout_s=_SEND_LIMIT_S)
        except LinkBroken as error:
            lost = DeliveryUncertain if error.maybe_taken else ChannelUnavailable
            raise lost(str(error)) from error
        event_id = answer.body.get("event_id")
        if answer.is_success and isinstance(event_id, str):
            self._login.note_success()
            return event_id
        if answer.is_token_refused:
            raise TokenLost(answer)
        raise send_problem(answer)

    async def show(self, message: OutboundMessage, name: str, previewed: str | None) -> str | None:
        """
        Show an unfinished answer as a new event, or as an edit of ``previewed``.

        Returns the new event's id, or None where it must not be shown. Raises ChannelError or TokenLost.
        """
        used = self._homeserver.credentials
        if used is None:
            raise ChannelUnavailable("not logged in yet")
        room_id = message.session.conversation
        encrypted = await self._encryption_gate.is_encrypted(room_id)
        limit = self._encryption_gate.limit(encrypted=encrypted)
        if len(message.text) > limit:
            return None
        content = await self._content(message, transaction_id(message.id), encrypted=encrypted, first=True)
        if self._key_may_be_forgotten(message, used) or await self._is_overheard(message):
            return None
        if previewed is not None:
            content = as_edit(content, previewed, max_bytes=limit)
        if size_of(content) > limit:
            return None
        attempt = SendAttempt(used, encrypted, nothing, forgotten=False)
        return await self._put(room_id, content, name, attempt)

    async def redact_preview(self, preview: OutboundMessage) -> None:
        """Redact the preview of an answer that will never come. Raises ChannelError or TokenLost."""
        room_id, name = preview.session.conversation, transaction_id(preview.id)
        for event_id in await self._search.unfinished_events(preview, name):
            # Edits first, so that a crash in between leaves something to be found by.
            digest = hashlib.sha256(event_id.encode()).hexdigest()[:16]
            await self.redact(room_id, event_id, f"{name}.{digest}r")
            _log.info("matrix.preview_taken_back", room=room_id)

    async def redact(self, room_id: str, event_id: str, name: str) -> None:
        """Redact one of our events. Raises `ChannelError`: that failed."""
        path = f"{CLIENT}/rooms/{quote_path(room_id)}/redact/{quote_path(event_id)}/{quote_path(name)}"
        with link_errors():
            answer = await self._homeserver.request("PUT", path, {}, timeout_s=_SEND_LIMIT_S)
        if not answer.is_success:
            raise channel_error(answer)

    def _key_may_be_forgotten(self, message: OutboundMessage, used: MatrixCredentials) -> bool:
        """Return True if the server may have taken the message and forgotten its transaction id."""
        # Both ways: a clock that was set back makes old messages look as if they came from the future.
        age_s = abs((self._now() - message.created_at).total_seconds())
        return message.created_at.timestamp() <= used.since or age_s > KEYS_KEPT_S

    async def _is_overheard(self, message: OutboundMessage) -> bool:
        """Return True if a message for one person would be read by another."""
        route = message.context.read_route(MatrixRoute)
        person = message.context.person or route.sender
        if not message.context.person and not route.direct and message.kind is not OutboundKind.ALERT:
            return False
        return await self.is_overheard(message.session.conversation, person or None)

    async def is_overheard(self, room_id: str, partner: str | None) -> bool:
        """Return True if others than ``partner`` can read a room; asks it. Raises ChannelUnavailable."""
        room = self._rooms.get(room_id)
        known = self._is_current() and room is not None and room.checked
        if known and not self._rooms.is_overheard(room_id, partner):
            return False
        with link_errors():
            if room is None or not await check_room(self._homeserver, room):
                return False  # we are not in there, so nothing will be sent
        return self._rooms.is_overheard(room_id, partner)

    async def send_event(self, room_id: str, kind: str, content: Mapping[str, Any]) -> None:
        """Send an event of another type once, encrypted if the room is. Raises ChannelError."""
        try:
            encrypted = await self._encryption_gate.is_encrypted(room_id)
            kind, content = await self._encryption_gate.prepare(room_id, kind, content, encrypted=encrypted)
            path = f"{CLIENT}/rooms/{quote_path(room_id)}/send/{quote_path(kind)}/{secrets.token_hex(12)}"
            answer = await self._homeserver.request("PUT", path, content, timeout_s=_SEND_LIMIT_S)
        except LinkBroken as error:
            raise ChannelUnavailable(str(error)) from error
        except TokenLost as refused:
            raise channel_error(refused.answer) from refused
        if not answer.is_success:
            raise send_problem(answer)


async def _formatted(build: Callable[..., dict[str, Any]], message: OutboundMessage) -> dict[str, Any]:
    """Render the Markdown, in a worker thread if it is long; leave it as it is if that takes too long."""
    if len(message.text) <= _QUICKLY_FORMATTED:
        return build(formatted=True)
    with anyio.move_on_after(_FORMAT_LIMIT_S):
        return await anyio.to_thread.run_sync(partial(build, formatted=True), abandon_on_cancel=True)
    _log.warning("matrix.sent_unformatted", row=message.id, chars=len(message.text))
    return build(formatted=False)
