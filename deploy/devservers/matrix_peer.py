"""A person with a Matrix client, for the tests and the demo: urllib and nothing else. No encryption.

A peer reads by long polling `/sync` from its own position, which begins at "now" when the peer is made.
What others sent is kept in `pending` until a `wait_for_*` takes it out; so a reply that comes before the
wait begins is not lost, and no event is found twice.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from devservers.errors import WaitedInVain
from devservers.rest import JsonObject, request_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from devservers.synapse import Credentials

CLIENT = "/_matrix/client/v3"
LONG_POLL_S = 10.0
SLACK_S = 30.0
FILTER = json.dumps({"room": {"timeline": {"limit": 1000}}})


@dataclass(frozen=True, slots=True)
class RoomEvent:
    """One event of a room's timeline."""

    room_id: str
    event_id: str
    type: str
    sender: str
    content: JsonObject = field(hash=False)

    @property
    def body(self) -> str:
        """The text of a message; for an edit the new text."""
        content = self.content.get("m.new_content", self.content)
        return str(content.get("body", ""))

    @property
    def replaces(self) -> str | None:
        """The id of the event that this one edits."""
        relation = self.content.get("m.relates_to") or {}
        return str(relation["event_id"]) if relation.get("rel_type") == "m.replace" else None


class MatrixPeer:
    """One logged-in device."""

    def __init__(self, url: str, user_id: str, access_token: str, *, device_id: str = "") -> None:
        """Take an existing token and begin to listen from now."""
        self.url = url
        self.user_id = user_id
        self.access_token = access_token
        self.device_id = device_id
        self.pending: list[RoomEvent] = []
        self.invites: list[str] = []
        self.typing: dict[str, list[str]] = {}
        self._since: str | None = None
        self.sync(0)
        self.pending.clear()

    @classmethod
    def of(cls, url: str, credentials: Credentials) -> Self:
        """Be the user that was just registered."""
        return cls(url, credentials.user_id, credentials.access_token, device_id=credentials.device_id)

    @classmethod
    def login(cls, url: str, user: str, password: str, *, device_id: str | None = None) -> Self:
        """Log in by password; `user` is a localpart or a whole user id."""
        body: JsonObject = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": user},
            "password": password,
        }
        if device_id is not None:
            body["device_id"] = device_id
        answer = request_json("POST", f"{url}{CLIENT}/login", body)
        return cls(
            url, str(answer["user_id"]), str(answer["access_token"]), device_id=str(answer["device_id"])
        )

    def call(
        self, method: str, path: str, body: JsonObject | None = None, *, timeout_s: float = 30.0
    ) -> JsonObject:
        """Make any request to the client API as this user; `path` follows `/_matrix/client/v3`."""
        return request_json(
            method, f"{self.url}{CLIENT}{path}", body, token=self.access_token, timeout_s=timeout_s
        )

    def create_room(
        self,
        invite: Sequence[str] = (),
        *,
        is_direct: bool = False,
        room_version: str | None = None,
        name: str | None = None,
    ) -> str:
        """Make a private room and give its id."""
        preset = "trusted_private_chat" if is_direct else "private_chat"
        body: JsonObject = {"invite": list(invite), "is_direct": is_direct, "preset": preset}
        if room_version is not None:
            body["room_version"] = room_version
        if name is not None:
            body["name"] = name
        return str(self.call("POST", "/createRoom", body)["room_id"])

    def invite(self, room_id: str, user_id: str) -> None:
        """Invite somebody."""
        self.call("POST", f"/rooms/{quote(room_id, safe='')}/invite", {"user_id": user_id})

    def join(self, room_id: str) -> None:
        """Join a room, by invitation or alias."""
        self.call("POST", f"/join/{quote(room_id, safe='')}", {})

    def leave(self, room_id: str) -> None:
        """Leave a room."""
        self.call("POST", f"/rooms/{quote(room_id, safe='')}/leave", {})

    def members(self, room_id: str) -> set[str]:
        """Name everybody who has joined."""
        return set(self.call("GET", f"/rooms/{quote(room_id, safe='')}/joined_members")["joined"])

    def send(self, room_id: str, text: str, *, txn: str | None = None, **content: Any) -> str:
        """Send a text message; further content keys (`msgtype`, ...) may be given. Gives the event id."""
        return self.send_event(
            room_id, "m.room.message", {"msgtype": "m.text", "body": text, **content}, txn=txn
        )

    def send_event(self, room_id: str, kind: str, content: JsonObject, *, txn: str | None = None) -> str:
        """Send any event. The same `txn` twice is one event."""
        room, name, once = (quote(part, safe="") for part in (room_id, kind, txn or uuid.uuid4().hex))
        return str(self.call("PUT", f"/rooms/{room}/send/{name}/{once}", content)["event_id"])

    def history(self, room_id: str, *, limit: int = 200) -> list[RoomEvent]:
        """Read the newest messages of a room, everybody's, oldest first."""
        query = urlencode({"dir": "b", "limit": limit})
        chunk = self.call("GET", f"/rooms/{quote(room_id, safe='')}/messages?{query}")["chunk"]
        events = [_event(room_id, raw) for raw in reversed(chunk)]
        return [event for event in events if event.type == "m.room.message"]

    def messages_since(self, since: str | None, *, timeout_s: float = 0.0) -> tuple[list[RoomEvent], str]:
        """Read what is new after a sync token, without touching this peer's own position."""
        answer = self._sync(since, timeout_s)
        events = [event for event in _timeline(answer) if event.type == "m.room.message"]
        return events, str(answer["next_batch"])

    def sync(self, timeout_s: float) -> None:
        """Fetch news, waiting up to `timeout_s` for the first, into `pending`, `invites` and `typing`."""
        answer = self._sync(self._since, timeout_s)
        self._since = str(answer["next_batch"])
        self.pending += [event for event in _timeline(answer) if event.sender != self.user_id]
        rooms = answer.get("rooms", {})
        self.invites += [room for room in rooms.get("invite", {}) if room not in self.invites]
        for room_id, room in rooms.get("join", {}).items():
            for event in room.get("ephemeral", {}).get("events", []):
                if event.get("type") == "m.typing":
                    self.typing[room_id] = list(event["content"]["user_ids"])

    def wait_for_event(self, predicate: Callable[[RoomEvent], bool], timeout_s: float = 30.0) -> RoomEvent:
        """Wait for an event of somebody else that fits, and take it out of `pending`."""
        deadline = time.monotonic() + timeout_s
        while True:
            for event in self.pending:
                if predicate(event):
                    self.pending.remove(event)
                    return event
            self._sync_before(
                deadline, lambda: f"pending: {[(one.sender, one.body) for one in self.pending]}"
            )

    def wait_for_message(self, predicate: Callable[[RoomEvent], bool], timeout_s: float = 30.0) -> RoomEvent:
        """Wait for a message of somebody else that fits, and take it out of `pending`."""
        return self.wait_for_event(
            lambda event: event.type == "m.room.message" and predicate(event), timeout_s
        )

    def wait_for_invite(self, timeout_s: float = 30.0) -> str:
        """Wait for an invitation, take it out of `invites` and give the room's id."""
        deadline = time.monotonic() + timeout_s
        while not self.invites:
            self._sync_before(deadline, lambda: "no invitation")
        return self.invites.pop(0)

    def _sync_before(self, deadline: float, describe: Callable[[], str]) -> None:
        """Do one more long poll, or give up. A server that is away is waited for."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitedInVain(f"{self.user_id} waited in vain; {describe()}")
        try:
            self.sync(min(left, LONG_POLL_S))
        except OSError:
            time.sleep(min(0.5, left))

    def _sync(self, since: str | None, timeout_s: float) -> JsonObject:
        query = {"timeout": int(timeout_s * 1000), "filter": FILTER}
        if since is not None:
            query["since"] = since
        return self.call("GET", f"/sync?{urlencode(query)}", timeout_s=timeout_s + SLACK_S)


def _timeline(answer: JsonObject) -> list[RoomEvent]:
    joined = answer.get("rooms", {}).get("join", {})
    return [_event(room_id, raw) for room_id, room in joined.items() for raw in room["timeline"]["events"]]


def _event(room_id: str, raw: JsonObject) -> RoomEvent:
    return RoomEvent(
        room_id, str(raw["event_id"]), str(raw["type"]), str(raw["sender"]), dict(raw["content"])
    )
