"""A tick's message, and what it asks the model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from agent_core.messages import InboundMessage, MessageContext, Sender, SessionKey
from channels.heartbeat.silence import SILENCE
from channels.heartbeat.tick_schedule import tick_name

_MAX_CHARS = 16_000


def tick_message(
    instant: datetime,
    text: str,
    *,
    name: str = "heartbeat",
    account: str = "heartbeat",
    watched: bool = False,
) -> InboundMessage:
    """Build a tick's message, the same for an instant and text; ``watched``: a watch found the text."""
    return InboundMessage(
        channel=name,
        account=account,
        native_id=tick_name(instant),
        session=SessionKey(name, "owner"),
        sender=Sender(address="heartbeat", verified=True),
        text=text,
        received_at=instant,
        kind="tick",
        context=MessageContext(watched=watched),
    )


def question_text(local: datetime, checklist: str, told: Sequence[str] = ()) -> str:
    """The question to the model."""
    order = (
        f"This is the regular check-in of {local:%A, %Y-%m-%d %H:%M %z}; no person wrote it.\nGo through "
        "what follows and do what is due. Write to the owner only if something needs their attention; "
        f"otherwise answer with nothing but {SILENCE}."
    )
    parts = [order]
    parts += [f"Seen just now:\n{one}" for one in told]
    if checklist.strip():
        parts.append(f"HEARTBEAT.md:\n{_shortened(checklist.strip())}")
    return "\n\n".join(parts)


def _shortened(text: str) -> str:
    if len(text) <= _MAX_CHARS:
        return text
    return f"{text[:_MAX_CHARS]}\n[The rest of the file was left out: it has {len(text)} characters.]"
