"""
One message to one room, exactly once as far as a homeserver allows it.

Theory of operation. The same message always goes out under the same transaction id, so repeating it is safe
while the device lives (`Redelivery.SAME_KEY`); nothing is repeated here, the outbox does that. Transaction
ids die with their device, and Synapse forgets them after a day. A message that is older than the device it
goes out from, or than `KEYS_KEPT_S`, may have been taken before, so the room is first searched for its mark.

A private answer is for one person. While it was thought about, or waited for a server, somebody else may
have come into the room: then a sentence that says so is sent in its place.

Plain text never goes into an encrypted room: what goes there is encrypted, or not sent. What the sync loop
knows decides; when it is not current, or does not know the room, the server is asked.

What an answer means: only the homeserver's own refusal (an ``errcode``) is final. A broken connection, a 5xx
or a foreign page after the request had left means that nobody knows.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

import structlog

from agent_core.messages import OutboundKind, OutboundMessage
from channels.base import ChannelError, ChannelUnavailable, DeliveryFailed, DeliveryUncertain, Receipt
from channels.matrix.config import MatrixConfig
from channels.matrix.crypto import Crypto
from channels.matrix.gaps import members_of
from channels.matrix.key_requests import TokenRefused
from channels.matrix.outbound import (
    MARK,
    MAX_CONTENT_BYTES,
    MAX_SECRET_BYTES,
    build_content,
    is_ours,
    size_of,
    transaction_id,
)
from channels.matrix.rooms import Room, Rooms, object_of, text_of
from channels.matrix.session import MAX_IN_A_ROW, Login
from channels.matrix.wire import CLIENT, Answer, Credentials, Homeserver, LinkBroken, part, problem

__all__ = ["KEYS_KEPT_S", "NOT_ALONE", "Sending"]

KEYS_KEPT_S = 12 * 3600.0
"""So long a homeserver surely recognises a transaction id; Synapse promises 24 hours."""
NOT_ALONE = (
    "I have something for you, but others can read along here now, so I keep it to myself. "
    "Write to me where we are alone."
)

_SEND_LIMIT_S = 40.0
_PAGES_BACK = 10
_SKEW_MS = 24 * 3600 * 1000
_PASSING_CODES = frozenset({"M_RESOURCE_LIMIT_EXCEEDED", "M_UNRECOGNIZED", "M_LIMIT_EXCEEDED"})
_log = structlog.get_logger(__name__)


class _TokenRefused(Exception):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__()


class Sending:
    """
    Delivers messages.

    Args:
        config: How answers look.
        homeserver, login: The connection.
        rooms: What is known about rooms.
        is_current: Whether ``rooms`` can be relied on at this moment.
        now: The wall clock, for the age of messages.
        crypto: Encrypts; None: nothing is sent into encrypted rooms.
    """

    def __init__(
        self,
        config: MatrixConfig,
        homeserver: Homeserver,
        login: Login,
        rooms: Rooms,
        *,
        is_current: Callable[[], bool],
        now: Callable[[], datetime],
        crypto: Crypto | None = None,
    ) -> None:
        self._config = config
        self._homeserver = homeserver
        self._login = login
        self._rooms = rooms
        self._is_current = is_current
        self._now = now
        self._crypto = crypto
        self._members: dict[str, tuple[Room, int, list[str]]] = {}

    async def deliver(self, message: OutboundMessage, *, uncertain: Callable[[], Awaitable[None]]) -> Receipt:
        """Send one message; see `Channel.deliver`."""
        for _ in range(MAX_IN_A_ROW + 1):
            used = self._homeserver.credentials
            if used is None:
                raise ChannelUnavailable("not logged in yet", retry_after_s=1.0)
            try:
                return await self._try(message, used, uncertain)
            except _TokenRefused as refused:
                await self._login.renew(used, refused.answer)
        raise ChannelUnavailable("the homeserver refuses each new token", retry_after_s=30.0)

    async def _try(
        self,
        message: OutboundMessage,
        used: Credentials,
        uncertain: Callable[[], Awaitable[None]],
    ) -> Receipt:
        room_id = message.session.conversation
        encrypted = await self._is_encrypted(room_id)
        content = self._content(message, overheard=await self._is_overheard(message))
        if self._key_may_be_forgotten(message, used):
            event_id = await self._find(message)
            if event_id is not None:
                _log.info("matrix.message_found", room=room_id, event_id=event_id)
                return Receipt(event_id)
        kind, content = await self._cover(room_id, "m.room.message", content, encrypted=encrypted)
        if self._homeserver.credentials != used:
            # Another device has other transaction ids: first look whether the message is there.
            raise ChannelUnavailable("the login has changed meanwhile", retry_after_s=0.1)
        path = f"{CLIENT}/rooms/{part(room_id)}/send/{kind}/{part(transaction_id(message))}"
        await uncertain()
        try:
            answer = await self._homeserver.request("PUT", path, content, timeout_s=_SEND_LIMIT_S)
        except LinkBroken as error:
            lost = DeliveryUncertain if error.maybe_taken else ChannelUnavailable
            raise lost(str(error)) from error
        event_id = answer.body.get("event_id")
        if answer.good and isinstance(event_id, str):
            self._login.works()
            return Receipt(event_id)
        if answer.token_refused:
            raise _TokenRefused(answer)
        raise _send_problem(answer)

    def _content(self, message: OutboundMessage, *, overheard: bool) -> Mapping[str, Any]:
        if overheard:
            _log.warning("matrix.answer_withheld", room=message.session.conversation)
            message = message.model_copy(update={"text": NOT_ALONE})
        display = self._config.display
        content = build_content(message, reply=display.reply, formatted=display.html)
        if size_of(content) > MAX_CONTENT_BYTES:
            raise DeliveryFailed(f"the text is too long for one Matrix event ({size_of(content)} bytes)")
        return content

    def _key_may_be_forgotten(self, message: OutboundMessage, used: Credentials) -> bool:
        """Whether the server may have taken the message and not know its transaction id any more."""
        # Both ways: a clock that was set back makes old messages look as if they came from the future.
        age_s = abs((self._now() - message.created_at).total_seconds())
        return message.created_at.timestamp() <= used.since or age_s > KEYS_KEPT_S

    async def _is_overheard(self, message: OutboundMessage) -> bool:
        """Whether a message that is meant for one person would be read by another."""
        room_id, sender = message.session.conversation, message.context.get("sender")
        if message.context.get("direct") is not True and message.kind is not OutboundKind.ALERT:
            return False
        partner = sender if isinstance(sender, str) else None
        if self._is_current() and not self._rooms.is_overheard(room_id, partner):
            return False
        try:
            members = await members_of(self._homeserver, room_id)
        except LinkBroken as error:
            raise ChannelUnavailable(str(error)) from error
        room = self._rooms.get(room_id)
        if members is None or room is None:
            return False  # we are not in there, so nothing will be sent
        room.members(members)
        return self._rooms.is_overheard(room_id, partner)

    async def send_event(self, room_id: str, kind: str, content: Mapping[str, Any]) -> None:
        """
        Send some other event, once, encrypted if the room is.

        Raises:
            ChannelError: It was not sent, or nobody knows.
        """
        try:
            encrypted = await self._is_encrypted(room_id)
            kind, content = await self._cover(room_id, kind, content, encrypted=encrypted)
            path = f"{CLIENT}/rooms/{part(room_id)}/send/{part(kind)}/{secrets.token_hex(12)}"
            answer = await self._homeserver.request("PUT", path, content, timeout_s=_SEND_LIMIT_S)
        except LinkBroken as error:
            raise ChannelUnavailable(str(error)) from error
        except _TokenRefused as refused:
            raise problem(refused.answer) from refused
        if not answer.good:
            raise _send_problem(answer)

    async def _cover(
        self, room_id: str, kind: str, content: Mapping[str, Any], *, encrypted: bool
    ) -> tuple[str, Mapping[str, Any]]:
        """Type and content as they go out. The only place that decides whether something goes in clear."""
        if not encrypted:
            return kind, content
        if self._crypto is None:
            _log.error("matrix.plaintext_refused", room=room_id)
            raise DeliveryFailed(
                "this room is encrypted and encryption is not available, so nothing is sent into it"
            )
        if size_of(content) > MAX_SECRET_BYTES:
            content = {key: content[key] for key in content.keys() - {"format", "formatted_body"}}
        if size_of(content) > MAX_SECRET_BYTES:
            raise DeliveryFailed(f"the text is too long for one encrypted event ({size_of(content)} bytes)")
        try:
            covered = await self._crypto.encrypt(room_id, kind, content, await self._members_of(room_id))
        except TokenRefused as refused:
            raise _TokenRefused(refused.answer) from refused
        if MARK in content:
            covered[MARK] = content[MARK]  # it says nothing, and a lost device could not find it inside
        return "m.room.encrypted", covered

    async def _members_of(self, room_id: str) -> list[str]:
        """Who gets the key: everybody in the room, and who is invited."""
        room = self._rooms.get(room_id)
        kept = self._members.get(room_id)
        if kept and room is kept[0] and room.revision == kept[1] and self._is_current():
            return kept[2]
        revision = room.revision if room is not None else 0
        try:
            events = await members_of(self._homeserver, room_id)
        except LinkBroken as error:
            raise ChannelUnavailable(str(error)) from error
        if events is None:
            raise DeliveryFailed("the bot is not in this room (any more)")
        found = [
            text_of(event, "state_key")
            for event in events
            if text_of(object_of(event, "content"), "membership") in ("join", "invite")
        ]
        if room is not None:
            self._members[room_id] = (room, revision, found)
        return found

    async def _is_encrypted(self, room_id: str) -> bool:
        """Whether a room is encrypted; when in doubt, the server is asked."""
        room = self._rooms.get(room_id)
        if room is not None and (room.encrypted or self._is_current()):
            return room.encrypted
        answer = await self._ask(f"{CLIENT}/rooms/{part(room_id)}/state/m.room.encryption")
        if answer.status in (403, 404) and answer.errcode and answer.errcode != "M_NOT_FOUND":
            raise _send_problem(answer)
        if not answer.good and answer.errcode != "M_NOT_FOUND":
            raise problem(answer)
        return answer.good

    async def _find(self, message: OutboundMessage) -> str | None:
        """The event that this message already became, if it did."""
        user_id = self._config.user_id
        room = part(message.session.conversation)
        query = {
            "dir": "b",
            "limit": "100",
            "filter": json.dumps({"senders": [user_id], "types": ["m.room.message", "m.room.encrypted"]}),
        }
        oldest_ms = message.created_at.timestamp() * 1000 - _SKEW_MS
        for _ in range(_PAGES_BACK):
            answer = await self._ask(f"{CLIENT}/rooms/{room}/messages", query)
            if not answer.good:
                raise (
                    _send_problem(answer)
                    if answer.errcode and answer.status in (403, 404)
                    else problem(answer)
                )
            chunk = answer.body.get("chunk")
            events = [event for event in chunk if isinstance(event, dict)] if isinstance(chunk, list) else []
            for event in events:
                if is_ours(event, message, user_id) and isinstance(event.get("event_id"), str):
                    return str(event["event_id"])
            end = answer.body.get("end")
            passed = any(_sent_at_ms(event) < oldest_ms for event in events)
            if passed or not isinstance(end, str) or end == query.get("from"):
                return None
            query["from"] = end
        return None

    async def _ask(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        try:
            answer = await self._homeserver.request("GET", path, query=query)
        except LinkBroken as error:
            raise ChannelUnavailable(str(error)) from error
        if answer.token_refused:
            raise _TokenRefused(answer)
        return answer


def _sent_at_ms(event: Mapping[str, Any]) -> float:
    sent = event.get("origin_server_ts")
    return float(sent) if isinstance(sent, int) else float("inf")


def _send_problem(answer: Answer) -> ChannelError:  # noqa: PLR0911 - one per kind of answer
    """What a refusal, or something that is no answer at all, means for the message."""
    code = answer.errcode
    if answer.status == 429:
        return problem(answer)
    if code == "M_TOO_LARGE" or answer.status == 413:
        return DeliveryFailed("the homeserver finds this message too large", errcode=code)
    if answer.good or answer.status >= 500 or not code:
        return DeliveryUncertain(
            f"the homeserver's answer to the message was lost ({answer.status})",
            retry_after_s=answer.retry_after_s,
        )
    if code in _PASSING_CODES or code.startswith("M_USER_"):
        return problem(answer)
    if answer.status == 403:
        return DeliveryFailed(f"the bot may not write in this room (any more): {answer.error}", errcode=code)
    if answer.status == 404:
        return DeliveryFailed(f"the homeserver does not know this room: {answer.error}", errcode=code)
    if 400 <= answer.status < 500:
        return DeliveryFailed(f"the homeserver refuses this message: {code} {answer.error}", errcode=code)
    return problem(answer)
