"""What a Matrix account can do according to its settings; known without a client."""

from __future__ import annotations

from channels.base import Capabilities, Redelivery
from channels.matrix.config import MatrixConfig

_MAX_TEXT_BYTES = 16_000
"""An event holds 65,536 bytes; the text is in it twice, and its HTML can be much longer."""


def capabilities_of(config: MatrixConfig, *, attachments: bool = True) -> Capabilities:
    """``attachments``: whether there is a store that has files to send."""
    return Capabilities(
        redelivery=Redelivery.SAME_KEY,
        typing=config.display.typing,
        previews=config.streaming.enabled,
        acknowledgements=config.streaming.enabled or config.ack_reactions,
        max_text_bytes=_MAX_TEXT_BYTES,
        edits=True,
        attachments=attachments,
    )
