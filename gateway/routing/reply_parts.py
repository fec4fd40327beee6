"""An answer in portions that a channel can carry: texts within its limit, files with the last one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from agent_core.messages import Attachment
from channels.base import Capabilities
from channels.split import split_markdown

__all__ = ["parcels"]


def parcels(
    text: str, attachments: Sequence[Attachment], capabilities: Capabilities
) -> list[tuple[str, tuple[Attachment, ...]]]:
    """
    Text and files of each message that an answer becomes, in order.

    Where a channel cannot carry files the text says what should have come with it.
    """
    if attachments and not capabilities.attachments:
        names = ", ".join(file.name for file in attachments)
        text = f"{text}\n\n(I cannot send files here, so this one is missing: {names})"
        attachments = ()
    parts = split_markdown(text, capabilities.max_text_bytes)
    return [
        (part, tuple(attachments) if number == len(parts) - 1 else ()) for number, part in enumerate(parts)
    ]
