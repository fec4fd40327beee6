"""
A transcript: the words of a sound file, their certainty and their cost. Pure. Servers and the engine on this
machine tell the same of each segment: how probable its words are (``avg_logprob``), how probable it is that
nobody spoke (``no_speech_prob``), how repetitive the text is (``compression_ratio``). The limits are near
those of Whisper itself. A server that tells nothing is believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent_core.llm.openai_format import token_count
from agent_core.models import Usage

TOKENS_PER_SECOND = 10
"""What a second of sound counts as in the budget where the provider does not say how many tokens it was."""
_NOBODY_SPOKE = 0.6
_UNSURE = -0.7


class TranscriptionFailed(Exception):
    """There is no transcript, and trying again would not help. The text is a clause that anybody may read."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A sound file to transcribe. The ending of ``name`` tells its format."""

    content: bytes
    name: str
    media_type: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StoredTranscript:
    """The words in a sound; empty if there are none. ``unsure``: they may well be wrong."""

    text: str
    unsure: bool = False
    language: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """The words of a sound, and the cost of hearing them."""

    heard: StoredTranscript
    usage: Usage


class TranscriptionPort(Protocol):
    """A transcription provider, or an engine on this machine."""

    async def transcribe(self, clip: Clip) -> Transcript:
        """Transcribe a sound. Raises `ModelError`: it was not transcribed; temporary or not."""
        ...

    async def aclose(self) -> None:
        """Close connections and processes. A later `transcribe` opens new ones."""
        ...


def transcript_in(answer: object) -> StoredTranscript:
    """Parse an ``/audio/transcriptions`` answer, any JSON format. Raises ValueError."""
    if not isinstance(answer, dict) or not isinstance(answer.get("text"), str):
        raise ValueError("an answer without a text")  # noqa: TRY004 - about content, not types
    language = answer.get("language")
    language = language if isinstance(language, str) and len(language) < 30 else ""
    segments = [one for one in _list(answer.get("segments")) if isinstance(one, dict)]
    told = [one for one in segments if isinstance(one.get("text"), str) and "avg_logprob" in one]
    if not told:
        sure = _mean([(_number(one, "logprob", 0.0), 1.0) for one in _list(answer.get("logprobs"))])
        return StoredTranscript(tidy(answer["text"]), sure < _UNSURE, language)
    spoken = [one for one in told if not _is_silence(one)]
    lasts = [(_number(one, "avg_logprob", 0.0), _seconds(one)) for one in spoken]
    repeats = any(_number(one, "compression_ratio", 1.0) > 2.4 for one in spoken)
    nobody = any(_number(one, "no_speech_prob", 0.0) > _NOBODY_SPOKE for one in spoken)
    text = "".join(one["text"] if one["text"][:1].isspace() else f" {one['text']}" for one in spoken)
    return StoredTranscript(tidy(text), _mean(lasts) < _UNSURE or repeats or nobody, language)


def cost_of(answer: object, seconds: float, *, model: str, usd_per_minute: float | None) -> Usage:
    """The cost of a transcription: in tokens if the server reports them, else by its length."""
    told = answer.get("usage") if isinstance(answer, dict) else None
    told = told if isinstance(told, dict) else {}
    prompt = token_count(told.get("input_tokens")) or math.ceil(seconds * TOKENS_PER_SECOND)
    cost = None if usd_per_minute is None else seconds / 60 * usd_per_minute
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=token_count(told.get("output_tokens")),
        calls=1,
        cost_usd=cost,
        model=model,
    )


def _is_silence(segment: Mapping[str, Any]) -> bool:
    """Return True if the engine probably invented this segment from silence."""
    nobody = _number(segment, "no_speech_prob", 0.0) > _NOBODY_SPOKE
    return nobody and _number(segment, "avg_logprob", 0.0) < -1.0


def tidy(text: str) -> str:
    """The transcript as one line, cut to what anybody can say in hours."""
    return " ".join(text[:100_000].split())


def _seconds(segment: Mapping[str, Any]) -> float:
    return max(_number(segment, "end", 1.0) - _number(segment, "start", 0.0), 0.01)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    whole = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / whole if whole else 0.0


def _number(holder: object, name: str, otherwise: float) -> float:
    value = holder.get(name) if isinstance(holder, dict) else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known and value is not None else otherwise


def _list(value: object) -> list[Any]:
    return value[:10_000] if isinstance(value, list) else []
