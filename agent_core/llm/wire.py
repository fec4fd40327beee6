"""
Gives every request one well-formed shape that strict servers accept, whatever protocol carries it. Pure.
Servers differ in what they forgive, so each request keeps all of their rules: a system message comes first,
user and assistant alternate and a user begins, no user follows a tool result, and no content is empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_core.models import Message, ToolCall

Pictures = Mapping[str, tuple[str, bytes]]
"""Media type and content by `Attachment.sha256`."""
_BEFORE = "[Earlier messages are not shown.]"
_NO_TEXT = "…"
_NO_OUTPUT = "(no output)"


@dataclass(slots=True)
class WireMessage:
    """
    One message of a request. ``is_kept``: it is history, so later requests begin with the same.

    ``reasoning`` are fields of the asked model's own answer, sent back.
    """

    role: str
    text: str
    pictures: list[tuple[str, bytes]] = field(default_factory=list)
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    is_kept: bool = False


def wire_messages(messages: Sequence[Message], pictures: Pictures, model: str) -> list[WireMessage]:
    """The messages of a request to ``model``; of attachments without a picture a note is left."""
    shaped: list[WireMessage] = []
    for message in messages:
        new = _of(message, pictures, model)
        last = shaped[-1] if shaped else None
        if last is not None and new.role == "system":
            new.role = "user"
        if new.role == "assistant" and (last is None or last.role == "system"):
            shaped.append(WireMessage("user", _BEFORE, is_kept=new.is_kept))
        elif last is not None and new.role == "user" and last.role == "tool":
            shaped.append(WireMessage("assistant", _NO_TEXT))
        if last is not None and last.role == new.role != "tool" and not last.calls:
            _merge(last, new)
        else:
            shaped.append(new)
    for each in shaped:
        each.text = encodable(each.text)
        if not each.text.strip() and not each.pictures:
            each.text = _NO_OUTPUT if each.role == "tool" else _NO_TEXT
    return shaped


def _of(message: Message, pictures: Pictures, model: str) -> WireMessage:
    shown = [pictures[file.sha256] for file in message.attachments if file.sha256 in pictures]
    notes = [
        f"[Attachment {file.id} cannot be shown to you.]"
        for file in message.attachments
        if file.sha256 not in pictures
    ]
    own = message.reasoning is not None and message.reasoning.model == model
    return WireMessage(
        message.role,
        "\n".join(filter(None, [message.content, *notes])),
        pictures=shown,
        calls=message.tool_calls,
        call_id=message.tool_call_id or "",
        reasoning=message.reasoning.fields if message.reasoning is not None and own else {},
        is_kept=message.id is not None,
    )


def _merge(last: WireMessage, new: WireMessage) -> None:
    last.text = "\n\n".join(filter(None, [last.text, new.text]))
    last.pictures += new.pictures
    last.calls, last.reasoning = new.calls, new.reasoning
    last.is_kept = last.is_kept and new.is_kept


def encodable(text: str) -> str:
    """The text with every lonely half of an emoji replaced, which no file and no request can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
