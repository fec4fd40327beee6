"""The note that this channel puts into the context of a message, and gets back with the answer."""

from __future__ import annotations

from dataclasses import dataclass

from agent_core.messages import MessageContext
from channels.matrix.events.media_events import FileNote


@dataclass(frozen=True, kw_only=True)
class MatrixRoute:
    """The way back to the question: its event, who asked, where."""

    event_id: str = ""
    sender: str = ""
    direct: bool = False
    room: str = ""  # the room in which it was said, if its session began in an earlier one
    thread: str | None = None
    media: FileNote | None = None  # the file that is still to be fetched


def route_of(context: MessageContext) -> MatrixRoute:
    """Return the channel's own note."""
    return context.read_route(MatrixRoute)
