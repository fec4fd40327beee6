"""What a mailbox can do according to its settings; known without a connection."""

from __future__ import annotations

from channels.base import Capabilities, Redelivery
from channels.email.config import EmailConfig


def capabilities_of(config: EmailConfig, *, attachments: bool = True) -> Capabilities:
    """``attachments``: whether there is a store that has files to send."""
    return Capabilities(
        Redelivery.REVIEW if config.sent_copy == "none" else Redelivery.PROBE,
        email_style=True,
        max_text_bytes=200_000,
        attachments=attachments,
    )
