"""
The tool ``answer_invitation``: an invitation that came as a file is put into the owner's calendar under its
own UID, and the organizer gets the reply by mail. Each call is asked about. The calendar comes first: what is
so already is left, and the reply is posted once for each call, so that a step that is repeated does neither
again.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_core.errors import ToolFailed, ToolRetry
from agent_core.models import ToolResult, tool_parameters
from agent_core.provenance import Origins, join_origins, origins_of_call
from agent_core.tools.dav.dav_client import DavClient, OutcomeUnknown, StoredObject
from agent_core.tools.dav.dav_tools import CHANGED_SINCE, state_of
from agent_core.tools.effects import Effect, Review, approved_state
from agent_core.tools.execution import step_of_call
from agent_core.tools.files.change_tools import Received, ReceivedFile

_MAX_BYTES = 500_000
_WORDS = {"accept": "Accepted", "decline": "Declined", "tentative": "Tentative", "propose": "Another time"}
_TIMES = ("start", "end", "occurrence")
_NO_REPLY = "No reply is sent."
_CALENDAR_ONLY = "Nothing has to be changed in the calendar."


@dataclass(frozen=True, slots=True)
class InvitationReply:
    """
    A reply to an address: ``content`` is for programs, the rest for people; ``proposed`` is the other time,
    if one is proposed.
    """

    organizer: str
    answer: str
    title: str
    content: str
    proposed: str = ""


class InvitationMailPort(Protocol):
    """The mail of the run's person."""

    def mail_addresses(self) -> tuple[str, Sequence[str]]:
        """The address that replies come from (empty: there is none), and the person's own addresses."""
        ...

    async def is_posted(self, key: str) -> bool:
        """Return True if something was posted for this ``key``."""
        ...

    async def reply_to_invitation(self, reply: InvitationReply, *, key: str, origins: Origins) -> None:
        """Post a reply to an organizer, once for a ``key``. Raises `ToolError`."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """An invitation beside what the calendar has of it; ``url`` is empty for a new appointment."""

    change: Mapping[str, Any]
    url: str
    stored: StoredObject | None
    file: ReceivedFile
    sent_by: str

    @property
    def is_so_already(self) -> bool:
        return bool(self.change["same"])

    @property
    def state(self) -> str:
        return state_of(self.url, self.stored, str(self.change["data"]), str(self.change["reply"]))


class InvitationTool:
    """The tool of one run."""

    name = "answer_invitation"
    deferred = True
    effect = Effect.SEND
    repeatable = True
    seconds = 120.0
    description = (
        "Answer an invitation to an appointment that came as a file (.ics, text/calendar): puts it into the "
        "owner's calendar and mails the organizer the reply. Proposes another time to the organizer (answer: "
        "propose, with start). Also takes over an update or a cancellation, and reads what became of a "
        "proposal (answer: accept). The owner is asked first."
    )
    parameters = tool_parameters(
        "file",
        "answer",
        file={"type": "string", "description": "The attachment's id"},
        answer={"type": "string", "enum": list(_WORDS)},
        start={"type": "string", "description": "Of the other time: 2026-12-01 09:30, or a day"},
        end={"type": "string", "description": "If it takes another time than now"},
        occurrence={"type": "string", "description": "Of a series: when the one to move starts now"},
    )

    def __init__(self, client: Callable[[], DavClient], received: Received, mail: InvitationMailPort) -> None:
        self._make_client = client
        self._received = received
        self._mail = mail

    async def review(self, **arguments: Any) -> Review:
        """The appointment before and after, and who gets which reply."""
        seen = await self._look(arguments)
        change, answer = seen.change, str(arguments.get("answer"))
        said = f"{_WORDS.get(answer, '')}{', ' if change['proposed'] else ''}{change['proposed']}"
        reply = f"{said} is the reply to {change['organizer']}, by mail from {seen.sent_by}"
        reply += f" for {change['attendee']}." if change["attendee"] != seen.sent_by else "."
        before = f"{change['before']}\n→\n" if change["before"] else ""
        lines = (
            f"{before}{change['after'] or change['title']}",
            _CALENDAR_ONLY if seen.is_so_already else "",
            reply if change["reply"] else _NO_REPLY,
        )
        nothing = seen.is_so_already and not change["reply"]
        return Review("\n".join(filter(None, lines)), seen.state, changes_nothing=nothing)

    async def execute(self, **arguments: Any) -> ToolResult:
        """Change the calendar, then reply."""
        key = hashlib.sha256(
            json.dumps([step_of_call(), arguments], sort_keys=True, default=str).encode()
        ).hexdigest()
        if await self._mail.is_posted(key):  # it is the last thing that is done
            return ToolResult(content="Done; the reply is on its way to the organizer.")
        seen = await self._look(arguments)
        done = [_CALENDAR_ONLY]
        if not seen.is_so_already:
            if (approved := approved_state()) and approved != seen.state:
                raise ToolFailed(CHANGED_SINCE)
            try:
                done = [await self._store(seen, arguments)]
            except OutcomeUnknown as error:
                return ToolResult(content=f"{error} {_NO_REPLY}", is_error=True, is_unknown=True)
        if seen.change["reply"]:
            to, title, content, at = (
                str(seen.change[name]) for name in ("organizer", "title", "reply", "proposed")
            )
            reply = InvitationReply(to, str(arguments["answer"]), title, content, at)
            await self._mail.reply_to_invitation(
                reply, key=key, origins=join_origins(seen.file.origins, origins_of_call())
            )
        done.append("The reply is on its way to the organizer." if seen.change["reply"] else _NO_REPLY)
        return ToolResult(content=" ".join(done), undo="answer it otherwise", origins=seen.file.origins)

    async def _store(self, seen: _Seen, arguments: Mapping[str, Any]) -> str:
        client, data = self._make_client(), str(seen.change["data"])
        if seen.stored is None:
            place = await client.writable("VEVENT")
            uid = str(seen.change["uid"])
            name = hashlib.sha256(uid.encode()).hexdigest()[:32]
            await client.create(f"{place.url}{name}.ics", data, uid)
            return f"It is in the calendar {place.title!r}."
        if not seen.stored.etag:
            raise ToolFailed("The server does not say which version this is, so it cannot be changed safely.")

        async def is_done(now: StoredObject | None) -> bool:
            return now is not None and bool((await self._change(seen.file, arguments, now))["same"])

        await client.replace(seen.url, data, seen.stored.etag, is_done)
        return "The calendar is changed."

    async def _look(self, arguments: Mapping[str, Any]) -> _Seen:
        if arguments.get("answer") not in _WORDS:
            raise ToolRetry("'answer' must be accept, decline, tentative or propose.")
        client = self._make_client()
        file = await self._received(str(arguments.get("file") or "").strip(), _MAX_BYTES)
        data = b64encode(file.content).decode()
        uid = (await client.read("answer", data=data, stored="", only_uid=True))["uid"]
        identity = await client.find(uid)
        url = await client.url_of(identity, "VEVENT") if identity else ""
        stored = await client.get(url) if url else None
        change = await self._change(file, arguments, stored)
        return _Seen(change, url, stored, file, self._mail.mail_addresses()[0])

    async def _change(
        self, file: ReceivedFile, arguments: Mapping[str, Any], stored: StoredObject | None
    ) -> dict[str, Any]:
        sent_by, mine = self._mail.mail_addresses()
        change = await self._make_client().read(
            "answer",
            data=b64encode(file.content).decode(),
            stored=b64encode(stored.content if stored else b"").decode(),
            only_uid=False,
            answer=str(arguments["answer"]),
            times={name: str(arguments.get(name) or "") for name in _TIMES},
            mine=[each.casefold() for each in (*mine, sent_by) if each],
            sent_by=sent_by.casefold(),
        )
        if change["proposed"] and not sent_by:
            raise ToolFailed("No other time can be proposed: there is no mail account to do it from.")
        return dict(change) if sent_by else {**change, "reply": ""}
