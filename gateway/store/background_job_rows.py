"""
Builds and reads background jobs as rows of the inbox. Pure. A background job is a message of its own kind, in
a session of its own. Its native id is derived from the turn that started it, the step and the goal, so a
repeated start is accepted only once. Order, steps, claims, retention, export and erasure work as for any
message. The session is a thread of the conversation that asked for the job. No server gives a thread such a
name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from agent_core.messages import Audience, InboundMessage, MessageContext, OrderNote, Sender, SessionKey
from agent_core.provenance import Origins, from_json
from gateway.store.model import InboxRow
from gateway.store.states import InboxState

KIND: Literal["background_job"] = "background_job"
"""`InboundMessage.kind` of a background job."""
_THREAD = re.compile(r"\+job\.([2-9a-z]{6})")
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"


class BackgroundState(StrEnum):
    """The progress of a background job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    HELD = "held"
    """The job came back with a restored backup and waits for a person's decision."""


_STATES = {
    InboxState.READY: BackgroundState.WAITING,
    InboxState.RUNNING: BackgroundState.RUNNING,
    InboxState.ANSWERED: BackgroundState.DONE,
    InboxState.SETTLED: BackgroundState.DONE,
    InboxState.DEAD: BackgroundState.FAILED,
    InboxState.IGNORED: BackgroundState.STOPPED,
    InboxState.QUARANTINED: BackgroundState.HELD,
}


@dataclass(frozen=True, slots=True)
class Order:
    """
    The order for a background job.

    Args:
        place: The conversation that asked and gets the answer.
        started_by: The turn that started it.
        command: Run the text as a shell command instead of asking a model.
        origins: The sources shown to the model at the start.
        by_heartbeat: Started by a heartbeat run, whose conversation nobody reads.
        context: The channel's context of the request, for the answer.
        state: The state of files that an approved command needs, or "".
    """

    id: str
    place: SessionKey
    name: str = ""
    started_by: str = ""
    command: bool = False
    origins: Origins = ()
    by_heartbeat: bool = False
    context: MessageContext = field(default_factory=MessageContext)
    state: str = ""

    @property
    def label(self) -> str:
        """The name that people see."""
        return f"`{self.id}` ({self.name})" if self.name else f"`{self.id}`"


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A background job as people see it; ``origins`` are the origins of its order."""

    id: str
    session: SessionKey
    own: SessionKey
    person: str
    channel: str
    account: str
    state: BackgroundState
    created_at: datetime
    name: str = ""
    text: str = ""
    command: bool = False
    turn: str | None = None
    inbox_id: int = 0
    origins: Origins = ()

    @property
    def open(self) -> bool:
        """Return True if the job has not ended."""
        return self.state in (BackgroundState.WAITING, BackgroundState.RUNNING, BackgroundState.HELD)


def is_background(session: SessionKey) -> bool:
    """Return True if a session belongs to a background job."""
    return session.thread is not None and _THREAD.fullmatch(session.thread) is not None


def job_id_of(session: SessionKey) -> str:
    """Return the id of the job to which a session belongs; empty if it belongs to none."""
    found = _THREAD.fullmatch(session.thread or "")
    return found[1] if found else ""


def own_session(place: SessionKey, job_id: str) -> SessionKey:
    """Return the job's own session, a thread of the conversation that asked for it."""
    return SessionKey(place.channel, place.conversation, f"+job.{job_id}")


def job_message(
    key: str,
    *,
    text: str,
    place: SessionKey,
    account: str,
    person: str,
    audience: Audience,
    at: datetime,
    context: MessageContext,
    note: OrderNote = OrderNote(),  # noqa: B008 - a frozen value
) -> InboundMessage:
    """Return the message of a background job, with its order; the same ``key`` gives the same native id."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    number, letters = int.from_bytes(digest[:8]), ""
    for _ in range(6):
        number, at_letter = divmod(number, len(_LETTERS))
        letters += _LETTERS[at_letter]
    return InboundMessage(
        channel=place.channel,
        account=account,
        native_id=f"background:{digest.hex()}",
        session=own_session(place, letters),
        sender=Sender(address=person, verified=True),
        text=text,
        received_at=at,
        audience=audience,
        kind=KIND,
        context=_inherited(context, replace(note, place=str(place))),
    )


def _inherited(context: MessageContext, note: OrderNote) -> MessageContext:
    """Return the context of a job: its request's without what concerns that message alone."""
    notes = replace(context.notes, admitted=False, stopped=0, job=None, background=note)
    return replace(
        context,
        unreadable="",
        wait_s=0.0,
        tell_wait=False,
        moderator=False,
        watched=False,
        forced=False,
        notes=notes,
    )


def order_of(message: InboundMessage) -> Order | None:
    """Return the order in a message of this kind; None if it is unreadable."""
    note, job_id = message.notes.background, job_id_of(message.session)
    if note is None or not job_id:
        return None
    try:
        place = SessionKey.parse(note.place)
    except ValueError:
        return None
    return Order(
        job_id,
        place,
        note.name,
        note.started_by,
        note.command,
        from_json(note.origins),
        note.by_heartbeat,
        replace(message.context, notes=replace(message.notes, background=None)),
        note.state,
    )


def job_of(row: InboxRow) -> BackgroundJob:
    """Convert a row of this kind to the job as people see it."""
    message, order = row.message, order_of(row.message)
    own = message.session
    return BackgroundJob(
        job_id_of(own),
        order.place if order else SessionKey(own.channel, own.conversation),
        own,
        message.sender.address,
        message.channel,
        message.account,
        _STATES[row.state],
        row.accepted_at,
        order.name if order else "",
        message.text,
        order.command if order else False,
        row.turn,
        row.id,
        order.origins if order else (),
    )
