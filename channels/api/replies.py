"""The shapes of answers: chat completions and responses, at once and in pieces. Pure."""

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
    def complete(self, text: str) -> Mapping[str, Any]:
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
    """The shape of ``/v1/chat/completions``."""

    def complete(self, text: str) -> Mapping[str, Any]:
        """See `ReplyShape.complete`."""
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


class ResponsesReply(ReplyShape):
    """The shape of ``/v1/responses``, with its numbered events."""

    def __init__(self, name: str, model: str, at: datetime) -> None:
        super().__init__(name, model, at)
        self._events = 0

    def complete(self, text: str) -> Mapping[str, Any]:
        """See `ReplyShape.complete`."""
        return self._response("completed", [self._message("completed", [self._part(text)])])

    def beginning(self) -> Sequence[Event]:
        """See `ReplyShape.beginning`."""
        return [
            self._event("response.created", response=self._response("in_progress", [])),
            self._event("response.in_progress", response=self._response("in_progress", [])),
            self._event("response.output_item.added", output_index=0, item=self._message("in_progress", [])),
            self._of_text("response.content_part.added", part=self._part("")),
        ]

    def delta(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.delta`."""
        return [self._of_text("response.output_text.delta", delta=text, logprobs=[])]

    def end(self, text: str) -> Sequence[Event]:
        """See `ReplyShape.end`."""
        item = self._message("completed", [self._part(text)])
        return [
            self._of_text("response.output_text.done", text=text, logprobs=[]),
            self._of_text("response.content_part.done", part=self._part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event("response.completed", response=self.complete(text)),
        ]

    def _event(self, kind: str, **more: Any) -> Mapping[str, Any]:
        self._events += 1
        return {"type": kind, "sequence_number": self._events - 1, **more}

    def _of_text(self, kind: str, **more: Any) -> Mapping[str, Any]:
        return self._event(kind, item_id=f"msg_{self._name}", output_index=0, content_index=0, **more)

    def _part(self, text: str) -> Mapping[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _message(self, status: str, content: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        head = {"id": f"msg_{self._name}", "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}

    def _response(self, status: str, output: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {
            "id": f"resp_{self._name}",
            "object": "response",
            "created_at": self._at,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
        }
