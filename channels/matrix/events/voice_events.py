"""
An audio event as a voice message, which clients show with its duration and its waveform. Pure.

MSC3245 says that it is one, MSC1767 how long and how loud it is. Both have their unstable names here, which
are what clients send and read.
"""

from __future__ import annotations

from typing import Any

from agent_core.messages import OutboundMessage
from channels.matrix.client.json_access import JsonObject, object_of

_BARS = 256
_LOUDEST = 1024


def is_voice_message(message: OutboundMessage) -> bool:
    """Return True if a message is one sound whose text was sent before it."""
    return message.context.speech is not None and bool(message.attachments) and not message.text


def as_voice_message(content: JsonObject, message: OutboundMessage) -> dict[str, Any]:
    """The content of an event with a sound, as that of a voice message; of any other file as it is."""
    speech = message.context.speech
    if content.get("msgtype") != "m.audio" or speech is None or speech.duration_ms is None:
        return dict(content)
    duration = speech.duration_ms
    levels = [min(max(level, 0), _LOUDEST) for level in speech.waveform[:_BARS]]
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
