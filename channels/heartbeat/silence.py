"""When the answer to a check-in means "nothing to say". Pure."""

from __future__ import annotations

__all__ = ["SILENCE", "is_silence"]

SILENCE = "HEARTBEAT_OK"
_WORDS_LEFT = 8


def is_silence(text: str) -> bool:
    """
    Whether an answer is not to be delivered: empty, or the token alone, first or last with few words left.

    In the middle of a sentence the token is talked about, not said: that is an alert.
    """
    stripped = text.strip().strip("*_`.!")
    if not stripped:
        return True
    if stripped.startswith(SILENCE):
        rest = stripped[len(SILENCE) :]
    elif stripped.endswith(SILENCE):
        rest = stripped[: -len(SILENCE)]
    else:
        return False
    return len(rest.split()) <= _WORDS_LEFT
