"""The shapes of answers: chat completions, whole and in pieces. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

Event = Mapping[str, Any] | str
"""One server-sent event."""


class ReplyShape(ABC):
    """An answer in the shape of one kind of request; ``name`` is the same for a repeated request."""

    def __init__(self, name: str, model: str, at: datetime) -> None:
        self._name = name
        self._model = model
        self._at = int(at.timestamp())

    @abstractmethod
    def whole(self, text: str) -> Mapping[str, Any]:
        """Return the answer at once."""

    @abstractmethod
    def beginning(self) -> Sequence[Event]:
        """Return what comes before the first piece."""

    @abstractmethod
    def delta(self, text: str) -> Sequence[Event]:
        """Return the next piece."""

    @abstractmethod
    def end(self, text: str) -> Sequence[Event]:
        """Return what comes after the last piece."""


class ChatReply(ReplyShape):
    """Of ``/v1/chat/completions``."""

    def whole(self, text: str) -> Mapping[str, Any]:
        """See `ReplyShape.whole`."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return self._object("chat.completion", choice)

    def beginning(self) -> Sequence[Event]:
        """See `ReplyShape.beginning`."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def delta(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.delta`."""
        return [self._chunk({"content": text})]

    def end(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.end`."""
        return [self._chunk({}, "stop"), "[DONE]"]

    def _chunk(self, delta: Mapping[str, str], finish: str | None = None) -> Mapping[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._object("chat.completion.chunk", choice)

    def _object(self, kind: str, choice: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            "id": f"chatcmpl-{self._name}",
            "object": kind,
            "created": self._at,
            "model": self._model,
            "choices": [choice],
        }
