"""The summary of a conversation goes, so that it is written anew from what is left of the history."""

from __future__ import annotations

import re

from agent_core.messages import SessionKey
from agent_core.storage.layout import Layout
from agent_core.storage.session_record import Record, RecordFile

__all__ = ["drop_summary", "literal"]


def literal(text: str) -> str:
    """A text for `Path.glob` that means itself."""
    return re.sub(r"([*?[])", r"[\1]", text)


def drop_summary(layout: Layout, key: SessionKey) -> None:
    """The summary goes, and the cursor with it, so that it is written again from what is left."""
    for path in layout.sessions.glob(f"{literal(layout.name(key))}.meta.json.*"):
        path.unlink()
    if layout.record(key).exists() or layout.summary(key).exists() or layout.spare_record(key).exists():
        record = RecordFile(layout.record(key), layout.summary(key), layout.spare_record(key), key)
        record.save(Record())
