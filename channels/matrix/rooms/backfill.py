"""
Reads what ``/sync`` leaves out: the middle of a long absence, and words before the bot joined. Before a
*limited* timeline, ``/messages`` is read forwards from the committed position and handed over page by page,
so that order holds and memory is bounded; the position moves at the end, and repetitions are recognised by
event id. A just joined room is read backwards to the bot's invitation, since people ask between the two;
older messages are not answered.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from channels.base import ChannelUnavailable
from channels.matrix.client.homeserver import (
    CLIENT,
    AnswerTooLong,
    Homeserver,
    HttpAnswer,
    channel_error,
    quote_path,
)
from channels.matrix.client.json_access import JsonObject, object_of, objects_of, text_of
from channels.matrix.rooms.room_state import Room

_MAX_PAGES = 1000
_PAGE, _SMALL_PAGE = 100, 20
"""Events of a page, and of one where the former is too long: with what is bundled, each may have 400 kB."""
_SOMEBODY = {"type": "m.room.member", "state_key": "", "content": {"membership": "join"}}
"""A member of whom more is told than can be read; they count, and are nobody in particular."""
_TYPES = [
    *("m.room.message", "m.room.encrypted", "m.sticker", "m.room.redaction", "m.reaction"),
    *("m.room.member", "m.room.encryption", "m.poll.start", "org.matrix.msc3381.poll.start"),
    *("m.poll.end", "org.matrix.msc3381.poll.end"),
]
_DOORS = ("m.room.join_rules", "m.room.history_visibility")
_FILTER = json.dumps({"types": _TYPES, "lazy_load_members": True})
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a room's history: events in the order of the request, and their senders' memberships."""

    events: Sequence[JsonObject]
    state: Sequence[JsonObject]


async def pages_since(homeserver: Homeserver, room_id: str, since: str) -> AsyncIterator[Page]:
    """Yield a room's events after a sync token, oldest first. Raises ChannelUnavailable, LinkBroken."""
    token: str | None = since
    passed: set[str] = set()
    while token is not None and len(passed) < _MAX_PAGES:
        if token in passed:
            _log.error("matrix.backfill_looped", room=room_id, pages=len(passed))
            return
        passed.add(token)
        page, token = await _fetch(homeserver, room_id, token, direction="f")
        if page is None:
            return
        yield page
    if token is not None:
        _log.error("matrix.backfill_truncated", room=room_id, pages=_MAX_PAGES)


def sent_at_ms(event: JsonObject) -> int:
    """The time of an event according to its sender's server, in milliseconds since 1970; 0 if it has none."""
    sent = event.get("origin_server_ts")
    return sent if isinstance(sent, int) and not isinstance(sent, bool) and 0 < sent < 10**14 else 0


async def read_back_to(
    homeserver: Homeserver, room_id: str, timeline: Sequence[JsonObject], prev_batch: str, *, newest_ms: int
) -> list[JsonObject]:
    """Return messages after a moment, oldest first, for a first start. Raises as `pages_since`."""
    events = list(timeline)
    token: str | None = prev_batch or None
    for _ in range(30):
        if token is None or any(sent_at_ms(event) <= newest_ms for event in events):
            break
        page, token = await _fetch(homeserver, room_id, token, direction="b")
        if page is None:
            break
        events[:0] = reversed(page.events)
    once = {text_of(event, "event_id"): event for event in events if sent_at_ms(event) > newest_ms}
    return list(once.values())


async def members_of(homeserver: Homeserver, room_id: str) -> list[JsonObject] | None:
    """Return membership events of joined and invited people, or None. Raises as `pages_since`."""
    path = f"{CLIENT}/rooms/{quote_path(room_id)}/members"
    query = {"not_membership": "leave"}
    try:
        answer = await homeserver.request("GET", path, query=query, part_bytes=4096)
    except AnswerTooLong:
        _log.error("matrix.room_too_long", room=room_id)
        return None
    if _is_closed(answer):
        return None
    chunk = answer.body.get("chunk")
    if not answer.is_success or not isinstance(chunk, list):
        raise _failed(answer)
    return [one if isinstance(one, Mapping) else _SOMEBODY for one in chunk]


async def check_doors(homeserver: Homeserver, room: Room) -> None:
    """Ask who can join a room and see its history. Raises ChannelUnavailable or LinkBroken."""
    for kind in _DOORS:
        path = f"{CLIENT}/rooms/{quote_path(room.room_id)}/state/{kind}"
        answer = await homeserver.request("GET", path)
        if answer.is_success:
            room.state({"type": kind, "state_key": "", "content": answer.body})
        elif not _is_closed(answer):
            raise _failed(answer)


async def check_room(homeserver: Homeserver, room: Room) -> bool:
    """Ask who is in a room and can join; True if the bot is in. Raises as `check_doors`."""
    await check_doors(homeserver, room)
    members = await members_of(homeserver, room.room_id)
    if members is not None:
        room.members(members)
    room.checked = True
    return members is not None


def own_membership(event: JsonObject, user_id: str) -> str:
    """``join``, ``invite``, … if this is the bot's own membership event, else empty."""
    if event.get("type") != "m.room.member" or event.get("state_key") != user_id:
        return ""
    return text_of(object_of(event, "content"), "membership")


def was_just_joined(timeline: Sequence[JsonObject], user_id: str, *, is_new: bool) -> bool:
    """
    Return True if the bot joined the room within this part of its timeline.

    Not every server reports the replaced membership. The event may then be a change of the bot's name, unless
    the room ``is_new``.
    """
    no_join = {"join"} if is_new else {"join", ""}
    return any(
        own_membership(event, user_id) == "join" and _before(event) not in no_join for event in timeline
    )


async def read_since_invitation(
    homeserver: Homeserver, room_id: str, timeline: Sequence[JsonObject], prev_batch: str, *, user_id: str
) -> list[JsonObject]:
    """Return a joined room's timeline from the bot's invitation or join on. Raises as `pages_since`."""
    events = list(timeline)
    joined_at = max(
        place
        for place, event in enumerate(events)
        if own_membership(event, user_id) == "join" and _before(event) != "join"
    )
    if _before(events[joined_at]) not in ("invite", ""):
        return events[joined_at:]
    token: str | None = prev_batch or None
    for _ in range(10):
        invited_at = _invited_at(events, user_id)
        if invited_at is not None:
            return events[invited_at:]
        if token is None:
            break
        page, token = await _fetch(homeserver, room_id, token, direction="b")
        if page is None:
            break
        events[:0] = reversed(page.events)
    invited_at = _invited_at(events, user_id)
    if invited_at is not None:
        return events[invited_at:]
    # No invitation to be seen: somebody else let us in, or it is very far back.
    place = max(place for place, event in enumerate(events) if own_membership(event, user_id) == "join")
    return events[place:]


def _invited_at(events: Sequence[JsonObject], user_id: str) -> int | None:
    """
    Return the index of the newest invitation.

    An earlier stay of the bot in the room ends the search as well: messages of that time are history.
    """
    for place in range(len(events) - 1, -1, -1):
        if own_membership(events[place], user_id) in ("invite", "leave", "ban"):
            return place
    return None


def _before(event: JsonObject) -> str:
    """The membership before this membership event; ``""`` if the server does not say."""
    unsigned = object_of(event, "unsigned")
    before = object_of(unsigned, "prev_content") or object_of(event, "prev_content")
    return text_of(before, "membership")


async def _fetch(
    homeserver: Homeserver, room_id: str, token: str | None, *, direction: str
) -> tuple[Page | None, str | None]:
    """One page and the token of the next. No page: we may not look into this room (any more)."""
    query = {"dir": direction, "from": token or "", "limit": str(_PAGE), "filter": _FILTER}
    path = f"{CLIENT}/rooms/{quote_path(room_id)}/messages"
    try:
        answer = await homeserver.request("GET", path, query=query, timeout_s=60.0)
    except AnswerTooLong:
        query["limit"] = str(_SMALL_PAGE)
        answer = await homeserver.request("GET", path, query=query, timeout_s=60.0)
    if _is_closed(answer):
        _log.warning("matrix.backfill_closed", room=room_id, errcode=answer.errcode)
        return None, None
    if not answer.is_success or not isinstance(answer.body.get("chunk"), list):
        raise _failed(answer)
    end = answer.body.get("end")
    following = end if isinstance(end, str) and end and end != token else None
    return Page(objects_of(answer.body, "chunk"), objects_of(answer.body, "state")), following


def _is_closed(answer: HttpAnswer) -> bool:
    """Return True if we may not read this room, or no longer."""
    return answer.status in (403, 404) and answer.errcode not in ("", "M_UNRECOGNIZED")


def _failed(answer: HttpAnswer) -> Exception:
    if answer.is_token_refused:
        # The next sync finds the same and logs in again.
        return ChannelUnavailable("the token was refused while older messages of a room were read")
    return channel_error(answer)
