"""`ScriptedHomeserver`: a `channels.matrix.client.homeserver.Homeserver` that answers from a script, for unit tests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from channels.matrix.client.homeserver import HttpAnswer, LinkBroken, MatrixCredentials, SyncRequest
from channels.matrix.config import MatrixConfig
from channels.matrix.events.room_policy import RoomRules

Reply = HttpAnswer | LinkBroken | Callable[["Call"], HttpAnswer]
ANYBODY = RoomRules(
    MatrixConfig(homeserver="http://hs", user_id="@bot:hs.test", password="pw", allow_from=("*",)),
    lambda room_id: room_id,
)
"""The rules of an account to which anybody may talk."""


@dataclass(frozen=True)
class Call:
    """One request."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    token: str = ""


def failure(status: int, errcode: str = "", **body: Any) -> HttpAnswer:
    """An error answer of the homeserver, or without ``errcode`` of something in front of it."""
    return HttpAnswer(status, {"errcode": errcode, "error": "no", **body} if errcode else {})


def text(event_id: str, body: str = "hi", sender: str = "@alice:hs.test", **content: Any) -> dict[str, Any]:
    """A text message as a server sends it."""
    return {
        "type": "m.room.message",
        "event_id": event_id,
        "sender": sender,
        "origin_server_ts": 1_790_000_000_000,
        "content": {"msgtype": "m.text", "body": body, **content},
    }


def member(user_id: str, membership: str = "join", *, before: str = "", **content: Any) -> dict[str, Any]:
    """A membership event."""
    event = {
        "type": "m.room.member",
        "event_id": "$" + str(abs(hash((user_id, membership, before)))),
        "sender": user_id,
        "state_key": user_id,
        "content": {"membership": membership, **content},
    }
    if before:
        event["unsigned"] = {"prev_content": {"membership": before}}
    return event


class ScriptedHomeserver:
    """
    Answers requests by rules (first match of method and pattern; a list is used up from the front, its last
    element stays) and ``/sync`` from `syncs`. When that is used up, a sync waits for ever.
    """

    def __init__(self) -> None:
        self.credentials: MatrixCredentials | None = MatrixCredentials("@bot:hs.test", "DEV", "token-1")
        self.calls: list[Call] = []
        self.sync_requests: list[SyncRequest] = []
        self.syncs: list[HttpAnswer | LinkBroken] = []
        self.closed = False
        self._rules: list[tuple[str, re.Pattern[str], list[Reply]]] = []

    def on(self, method: str, path: str, *replies: Reply) -> None:
        """Answer a request like this; later rules are asked first."""
        self._rules.insert(0, (method, re.compile(path), list(replies)))

    def sync_body(self, **body: Any) -> None:
        """One more good answer to ``/sync``."""
        self.syncs.append(
            HttpAnswer(200, {"next_batch": f"s{len(self.syncs) + 1}", **json.loads(json.dumps(body))})
        )

    def asked(self, method: str, path: str) -> list[Call]:
        """The requests like this, in order."""
        return [call for call in self.calls if call.method == method and re.search(path, call.path)]

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        anonymous: bool = False,
        part_bytes: int | None = None,
    ) -> HttpAnswer:
        token = "" if anonymous or self.credentials is None else self.credentials.access_token
        call = Call(method, path, body, dict(query or {}), token)
        self.calls.append(call)
        await anyio.lowlevel.checkpoint()
        for wanted, pattern, replies in self._rules:
            if wanted == method and pattern.search(path):
                reply = replies.pop(0) if len(replies) > 1 else replies[0]
                if isinstance(reply, LinkBroken):
                    raise reply
                return reply if isinstance(reply, HttpAnswer) else reply(call)
        return failure(404, "M_NOT_FOUND")

    async def sync(self, request: SyncRequest) -> HttpAnswer:
        self.sync_requests.append(request)
        await anyio.lowlevel.checkpoint()
        while not self.syncs:
            await anyio.sleep(0.1)
        answer = self.syncs.pop(0)
        if isinstance(answer, LinkBroken):
            raise answer
        return answer

    async def aclose(self) -> None:
        self.closed = True
