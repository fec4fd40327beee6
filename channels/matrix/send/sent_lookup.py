"""Looks up whether an earlier message of ours is in its room."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import structlog

from agent_core.messages import OutboundMessage
from channels.base import ChannelUnavailable, DeliveryFailed
from channels.matrix.client.homeserver import (
    CLIENT,
    AnswerTooLong,
    Homeserver,
    HttpAnswer,
    LinkBroken,
    TokenLost,
    channel_error,
    quote_path,
    send_problem,
)
from channels.matrix.client.json_access import JsonObject, object_of, text_of
from channels.matrix.events.outbound_events import transaction_of_event

_PAGE, _SMALL_PAGE = "100", "20"
"""Events of a page, and of one where the former is too long: others put long answers beside our events."""
_log = structlog.get_logger(__name__)


class SentLookup:
    """Finds events of ours by their transaction id."""

    def __init__(self, homeserver: Homeserver, user_id: str) -> None:
        self._homeserver = homeserver
        self._user_id = user_id

    async def transaction_of(self, room_id: str, event_id: str) -> str:
        """The transaction id of an event of ours, or of its newest edit; empty if it is redacted."""
        answer = await self._ask(f"{CLIENT}/rooms/{quote_path(room_id)}/event/{quote_path(event_id)}")
        if not answer.is_success:
            raise channel_error(answer)
        return _newest_transaction(answer.body)

    async def find_own_transaction(self, room_id: str, event_id: str) -> str:
        """The same for any event; empty if it is not ours, or does not exist."""
        answer = await self._ask(f"{CLIENT}/rooms/{quote_path(room_id)}/event/{quote_path(event_id)}")
        if not answer.is_success and (answer.status == 429 or answer.status >= 500):
            raise channel_error(answer)
        return _newest_transaction(answer.body) if text_of(answer.body, "sender") == self._user_id else ""

    async def find_in_replaced_rooms(
        self, message: OutboundMessage, name: str, rooms: Iterable[str]
    ) -> str | None:
        """
        The same in the rooms that this one has replaced: the message may have been sent there.

        A room whose history is closed to us says nothing; then it is sent, where it can be seen now.
        """
        for room_id in rooms:
            try:
                found = await self._find(message, name, room_id)
            except DeliveryFailed as refused:
                _log.warning("matrix.earlier_room_closed", room=room_id, error=str(refused))
                continue
            if found is not None:
                return found
        return None

    async def find(self, message: OutboundMessage, name: str) -> str | None:
        """The event that this message has already become under that id, if any."""
        return await self._find(message, name, message.session.conversation)

    async def unfinished_events(self, message: OutboundMessage, name: str) -> list[str]:
        """Our events that show an unfinished answer of that name, newest first; none if it was finished."""
        room_id = message.session.conversation
        found = [event async for event in self._events_of(message, name, room_id)]
        for event in found:
            if (
                _visible(event) == event["event_id"]
                and await self.transaction_of(room_id, event["event_id"]) != name
            ):
                return []
        return [event["event_id"] for event in found]

    async def _find(self, message: OutboundMessage, name: str, room_id: str) -> str | None:
        async with aclosing(self._events_of(message, name, room_id)) as found:
            async for event in found:
                return _visible(event)
        return None

    async def _events_of(
        self, message: OutboundMessage, name: str, room_id: str
    ) -> AsyncGenerator[JsonObject, None]:
        """Our events of that name since the message was made, the newest first."""
        room = quote_path(room_id)
        query = {
            "dir": "b",
            "limit": _PAGE,
            "filter": json.dumps(
                {"senders": [self._user_id], "types": ["m.room.message", "m.room.encrypted"]}
            ),
        }
        oldest_ms = message.created_at.timestamp() * 1000 - (24 * 3600 * 1000)
        for _ in range(10):
            answer = await self._ask(f"{CLIENT}/rooms/{room}/messages", query)
            if not answer.is_success:
                raise (
                    send_problem(answer)
                    if answer.errcode and answer.status in (403, 404)
                    else channel_error(answer)
                )
            chunk = answer.body.get("chunk")
            events = [event for event in chunk if isinstance(event, dict)] if isinstance(chunk, list) else []
            for event in events:
                if (
                    event.get("sender") == self._user_id
                    and transaction_of_event(event) == name
                    and text_of(event, "event_id")
                ):
                    yield event
            end = answer.body.get("end")
            passed = any(_sent_at_ms(event) < oldest_ms for event in events)
            if passed or not isinstance(end, str) or end == query.get("from"):
                return
            query["from"] = end

    async def _ask(self, path: str, query: Mapping[str, str] | None = None) -> HttpAnswer:
        try:
            answer = await self._homeserver.request("GET", path, query=query)
        except AnswerTooLong:
            if query is None or query.get("limit") != _PAGE:
                raise ChannelUnavailable("the homeserver's answer is too long") from None
            return await self._ask(path, {**query, "limit": _SMALL_PAGE})
        except LinkBroken as error:
            raise ChannelUnavailable(str(error)) from error
        if answer.is_token_refused:
            raise TokenLost(answer)
        return answer


def _newest_transaction(event: JsonObject) -> str:
    edit = object_of(object_of(object_of(event, "unsigned"), "m.relations"), "m.replace")
    return transaction_of_event(edit) or transaction_of_event(event)


def _visible(event: JsonObject) -> str:
    """The id of the event that people see: an edit shows its target."""
    relation = object_of(object_of(event, "content"), "m.relates_to")
    target = text_of(relation, "event_id") if relation.get("rel_type") == "m.replace" else ""
    return target or text_of(event, "event_id")


def _sent_at_ms(event: Mapping[str, Any]) -> float:
    sent = event.get("origin_server_ts")
    return sent if isinstance(sent, int) else float("inf")
