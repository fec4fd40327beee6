"""
Replaces secrets in values that are logged. Pure.

Theory of operation. Three nets, because each has holes: values under a key with a telling name are masked
whole; the configured secrets are masked wherever they stand in a text; and a few well-known shapes of
secrets (bearer tokens, passwords in URLs) are masked in any text. A configured secret of fewer than eight
characters is masked only where it stands alone as a word, of fewer than three never: masking "x" everywhere
would leave no log to read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

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
