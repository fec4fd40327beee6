"""
Keeps the content of messages out of the log where an error repeats it.

No line of ours names a text. But errors of libraries and of model servers quote what they were given ("the
prompt '…' is against the rules"), and an error belongs in the log. So whoever works on a text says so
(`quiet`), and what is logged meanwhile has every piece of it masked that is longer than a coincidence: a
quotation may be cut or escaped, so pieces of `PIECE` characters are looked for, not the whole.

Only fields in which errors stand are looked at, and the pieces are made when there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agent_core.messages import OutboundMessage

PIECE = 10
_MASK = "[…]"
_FIELDS = frozenset({"error", "detail", "exception", "stack", "message", "reason", "why", "cause"})
_MOST_CHARS = 50_000
_TEXTS: ContextVar[tuple[str, ...]] = ContextVar("texts_in_hand", default=())


@contextmanager
def quiet(texts: Iterable[str]) -> Iterator[None]:
    """While inside, nothing of these texts is logged; tasks that are started inside keep to it, too."""
    token = _TEXTS.set((*_TEXTS.get(), *texts))
    try:
        yield
    finally:
        _TEXTS.reset(token)


def going_out(message: OutboundMessage) -> list[str]:
    """All texts that a message carries: its own, its subject, and what it quotes from the question."""
    quoted = message.context.quoted
    said = (message.text, message.context.subject, quoted.text if quoted else "")
    return [text for text in said if text]


def redact_quotes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a line, those of errors without any piece of the texts in hand."""
    texts = _TEXTS.get()
    if not texts or not _FIELDS & fields.keys():
        return dict(fields)
    pieces = {piece for text in texts for piece in _pieces(text)}
    return {
        name: _masked(value, pieces) if name in _FIELDS and isinstance(value, str) else value
        for name, value in fields.items()
    }


def _pieces(text: str) -> Iterator[str]:
    text = text.strip()
    if len(text) > 2 * _MOST_CHARS:
        text = text[:_MOST_CHARS] + text[-_MOST_CHARS:]
    for start in range(len(text) - PIECE + 1):
        yield text[start : start + PIECE]


def _masked(value: str, pieces: set[str]) -> str:
    found: list[str] = []
    hidden_to = at = 0
    for start in range(len(value) - PIECE + 1):
        if value[start : start + PIECE] in pieces:
            if start > hidden_to or not (found or hidden_to):
                found += [value[at:start], _MASK]
            hidden_to = at = start + PIECE
    return "".join([*found, value[at:]])
