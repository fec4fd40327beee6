"""
Replaces secrets and the content of messages in values that are logged. Pure. Values under telling keys,
configured secrets and well-known shapes of secrets are masked. Errors of libraries may quote a message, so
code that works on a text marks it (`quiet`), and its pieces of `PIECE_CHARS` characters are masked.
Secrets under three characters are not, or no log would be left to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import pairwise
from typing import Any

from agent_core.messages import OutboundMessage

MASK = "***"

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_WORDS = frozenset(
    {
        "password",
        "passwd",
        "passphrase",
        "pwd",
        "secret",
        "token",
        "apikey",
        "authorization",
        "credential",
        "cookie",
    }
)
_SECRET_PAIRS = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("recovery", "key"), ("pickle", "key")}
)
_SHAPES = re.compile(
    r"(?P<before>"
    r"://[^/\s:@]{0,200}:(?=[^/\s@]{1,200}@)"
    r"|\b[Bb]earer\s+"
    r"|(?i:\b(?:access_token|refresh_token|api_?key|password|passwd|secret)[\"']?\s*[=:]\s*[\"']?)"
    r")(?P<secret>[^\s&@,;\"'}\)]{1,500})"
    r"|\b(?P<known>sk-[A-Za-z0-9_\-]{16,200}|syt_[A-Za-z0-9_+/=]{16,200}|xox[abp]-[A-Za-z0-9\-]{10,200})"
)
# What follows "password: " in a sentence about a password, and is none.
_PROSE = re.compile(
    r"(?i:an?|are|be|cannot|check|empty|expired|expect(?:s|ed)|forbidden|has|incorrect|invalid|is|it|missing|must|"
    r"needs|never|not?|none|only|or|required|see|the|there|they|this|too|try|unset|was|wrong)[.!?]*"
)
_MAX_DEPTH = 6
_MAX_ITEMS = 200


class Redactor:
    """Masks ``secrets``, values that must not be shown anywhere."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        wanted = sorted(
            {secret for secret in secrets if len(secret) >= 3}, key=lambda text: (-len(text), text)
        )
        patterns = [
            re.escape(secret) if len(secret) >= 8 else rf"(?<!\w){re.escape(secret)}(?!\w)"
            for secret in wanted
        ]
        self._secrets = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """``text`` without secrets."""
        text = self.redact_configured_secrets(text)
        # Most texts are short words in which none of the shapes can stand.
        return _SHAPES.sub(_mask_shape, text) if len(text) > 12 else text

    def redact_configured_secrets(self, text: str) -> str:
        """``text`` without the configured secrets; what only looks like a secret stays."""
        return text if self._secrets is None else self._secrets.sub(MASK, text)

    def value(self, value: Any, *, depth: int = 0) -> Any:
        """``value`` without secrets, made of nothing but what JSON can hold."""
        match value:
            case None | bool() | int() | float():
                return value
            case str():
                return self.text(str(value))
            case Mapping() if depth < _MAX_DEPTH:
                return self.fields(value, depth=depth + 1)
            case list() | tuple() | set() | frozenset() if depth < _MAX_DEPTH:
                return [self.value(item, depth=depth + 1) for item in list(value)[:_MAX_ITEMS]]
            case BaseException():
                return self.text(f"{type(value).__name__}: {value}")
            case _:
                return self.text(str(value))

    def fields(self, fields: Mapping[Any, Any], *, depth: int = 0) -> dict[str, Any]:
        """A mapping without secrets; values under telling names are masked whole."""
        return {
            str(key): MASK
            if names_a_secret(str(key)) and value not in (None, "")
            else self.value(value, depth=depth)
            for key, value in list(fields.items())[:_MAX_ITEMS]
        }


@lru_cache(maxsize=1024)
def names_a_secret(name: str) -> bool:
    """Return True if a field of this name holds a secret: ``access_token``, but not ``prompt_tokens``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _SECRET_WORDS for word in words) or any(
        pair in _SECRET_PAIRS for pair in pairwise(words)
    )


def _mask_shape(match: re.Match[str]) -> str:
    if match.group("known"):
        return MASK
    before, secret = match.group("before"), match.group("secret")
    is_prose = before.endswith(": ") and _PROSE.fullmatch(secret)
    return match.group(0) if is_prose else f"{before}{MASK}"


PIECE_CHARS = 10
_MASK = "[…]"
_FIELDS = frozenset({"error", "detail", "exception", "stack", "message", "reason", "why", "cause"})
_MAX_CHARS = 50_000
_TEXTS: ContextVar[tuple[str, ...]] = ContextVar("texts_in_hand", default=())


@contextmanager
def quiet(texts: Iterable[str]) -> Iterator[None]:
    """While inside, nothing of these texts is logged; tasks that are started inside keep to it, too."""
    token = _TEXTS.set((*_TEXTS.get(), *texts))
    try:
        yield
    finally:
        _TEXTS.reset(token)


def outgoing_texts(message: OutboundMessage) -> list[str]:
    """Return all texts of a message: its own, its subject, and what it quotes from the question."""
    quoted = message.context.quoted
    said = (message.text, message.context.subject, quoted.text if quoted else "")
    return [text for text in said if text]


def redact_quotes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a line, those of errors without any piece of the current texts."""
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
    if len(text) > 2 * _MAX_CHARS:
        text = text[:_MAX_CHARS] + text[-_MAX_CHARS:]
    for start in range(len(text) - PIECE_CHARS + 1):
        yield text[start : start + PIECE_CHARS]


def _masked(value: str, pieces: set[str]) -> str:
    found: list[str] = []
    hidden_to = at = 0
    for start in range(len(value) - PIECE_CHARS + 1):
        if value[start : start + PIECE_CHARS] in pieces:
            if start > hidden_to or not (found or hidden_to):
                found += [value[at:start], _MASK]
            hidden_to = at = start + PIECE_CHARS
    return "".join([*found, value[at:]])
