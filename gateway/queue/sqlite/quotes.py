"""
Words of a person inside of other people's messages: what was said before a question goes along with it
(`InboundMessage.background`), into its row and into its line of a history. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from agent_core.prompt import without_words_of

__all__ = ["changed", "without_in_line", "without_in_message"]

Gone = Callable[[str], bool]
Thinned = Callable[[Mapping[str, Any], Gone], dict[str, Any]]


def without_in_line(line: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """A line of a history without the words of these people that came with a question."""
    content = line.get("content")
    if line.get("role") != "user" or not isinstance(content, str):
        return dict(line)
    return {**line, "content": without_words_of(content, gone)}


def without_in_message(message: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """A message, as its row keeps it, without the words of these people that came with it."""
    background = message.get("background")
    if not isinstance(background, list):
        return dict(message)
    kept = [each for each in background if not (isinstance(each, dict) and _is_from(each, gone))]
    return {**message, "background": kept}


def _is_from(said: Mapping[str, Any], gone: Gone) -> bool:
    sender = str(said.get("sender") or "")
    # What is handed on is of whoever the letter says, in whatever form.
    words = sender.translate(str.maketrans("<>(),", "     ")).split()
    return any(gone(word) for word in (words if said.get("kind") == "forwarded" else words[:1]))


def changed(text: str | None, what: Thinned, gone: Gone) -> str | None:
    """JSON of a message or a line without these words; None if they are not in it, or it is no JSON."""
    try:
        before = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(before, dict):
        return None
    after = what(before, gone)
    return None if after == before else json.dumps(after, ensure_ascii=False, separators=(",", ":"))
