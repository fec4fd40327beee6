"""A message as tests hand it in: of somebody whom the channel has verified, to the account ``bot``."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from agent_core.messages import InboundMessage, Sender, SessionKey
from tests.clock import EPOCH


def inbound(
    session: SessionKey,
    person: str,
    text: str,
    native_id: str = "1",
    *,
    account: str = "bot",
    received_at: datetime = EPOCH,
    verified: bool = True,
    **more: Any,
) -> InboundMessage:
    """A message of a person in a conversation; ``more`` are other fields of it."""
    return InboundMessage(
        channel=session.channel,
        account=account,
        native_id=native_id,
        session=session,
        sender=Sender(address=person, verified=verified),
        text=text,
        received_at=received_at,
        **more,
    )
