"""
An audio event as a voice message, which clients show with its duration and its waveform. Pure.

MSC3245 says that it is one, MSC1767 how long and how loud it is. Both have their unstable names here, which
are what clients send and read.
"""

from __future__ import annotations

from typing import Any

from agent_core.messages import SPEECH, OutboundMessage
from channels.matrix.client.json_access import JsonObject, object_of

_BARS = 256
_LOUDEST = 1024


def is_voice_message(message: OutboundMessage) -> bool:
    """Return True if a message is one sound whose text was sent before it."""
    return SPEECH in message.context and bool(message.attachments) and not message.text


def as_voice_message(content: JsonObject, message: OutboundMessage) -> dict[str, Any]:
    """The content of an event with a sound, as that of a voice message; of any other file as it is."""
    told = object_of(message.context, SPEECH)
    duration, waveform = told.get("duration_ms"), told.get("waveform")
    if content.get("msgtype") != "m.audio" or not isinstance(duration, int) or not isinstance(waveform, list):
        return dict(content)
    levels = [min(max(level, 0), _LOUDEST) for level in waveform[:_BARS] if isinstance(level, int)]
    info = dict(object_of(content, "info"))
    where = content.get("file") or {"url": content.get("url")}
    return {
        **content,
        "info": {**info, "duration": duration},
        "org.matrix.msc1767.text": content["body"],
        "org.matrix.msc1767.file": {**where, "name": content["body"], **info},
        "org.matrix.msc1767.audio": {"duration": duration, "waveform": levels},
        "org.matrix.msc3245.voice": {},
    }
