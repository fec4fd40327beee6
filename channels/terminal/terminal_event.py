"""The events that a terminal receives: plain data that fits into a line of JSON. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from agent_core.messages import OutboundKind


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Answer(_Event):
    """
    A whole message from the bot; ``id`` is the same for a repetition.

    ``answers`` is the native id up to which messages are answered, or "".
    """

    type: Literal["answer"] = "answer"
    id: str
    text: str
    kind: OutboundKind = OutboundKind.REPLY
    answers: str = ""


class Preview(_Event):
    """The unfinished answer as it is now; replaces the previous one."""

    type: Literal["preview"] = "preview"
    text: str


class Typing(_Event):
    """The bot is working, or no longer."""

    type: Literal["typing"] = "typing"
    on: bool


TerminalEvent = Annotated[Answer | Preview | Typing, Field(discriminator="type")]
"""What a link yields; ``model_dump_json`` writes it for a socket, `parse_event` reads it."""

_EVENT: TypeAdapter[Answer | Preview | Typing] = TypeAdapter(TerminalEvent)


def parse_event(data: str | bytes) -> Answer | Preview | Typing:
    """Read an event that ``model_dump_json`` wrote. Raises `ValueError`: it is not one."""
    return _EVENT.validate_json(data)
