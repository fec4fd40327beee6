"""
Converts an answer's Markdown into plain sentences that can be spoken. Pure.

Code, tables and pictures are for eyes and are left out; of a link its title is said, of a bare address its
host. Headings and items end as sentences do, so that a voice pauses there. What is longer than a limit ends
with a sentence that says where the rest is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from channels.markup import MAX_BYTES, sayable, tokens_of

if TYPE_CHECKING:
    from markdown_it.token import Token

REST = "The rest is in the text."
_LEAST_LOOKED_AT = 12_000
"""So many characters of an answer, or four times as many as are read out: the event loop waits meanwhile."""
_ADDRESS = re.compile(
    r"\bhttps?://(?:[^\s/@]{0,200}@)?(?:www\.)?([^\s/:?#<>()]{1,253})[^\s<>]{0,2000}", re.IGNORECASE
)
_BLANKS = re.compile(r"\s+")
_PICTOGRAPHS = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\ufe0f\u200d]+")
_SAYS_SOMETHING = re.compile(r"\w")
_ENDS = (".", "!", "?", ":", ";", "…", "。")


def spoken_text(markdown: str, *, max_chars: int) -> str:
    """Return the sentences to read out, within ``max_chars``; uninterpretable text is left out."""
    looked_at = max(_LEAST_LOOKED_AT, 4 * max_chars)
    tokens = tokens_of(sayable(markdown[:looked_at]), MAX_BYTES)
    said = _BLANKS.sub(" ", " ".join(_sentences(tokens or ()))).strip()
    if not _SAYS_SOMETHING.search(said):
        return ""
    whole = len(markdown) <= looked_at and len(said) <= max_chars
    return said if whole else _cut(said, max_chars)


def _sentences(tokens: Sequence[Token]) -> list[str]:
    """One text for each block that is read out."""
    found: list[str] = []
    table = -1
    for token in tokens:
        if token.type == "table_open" and table < 0:
            table = token.level
        elif token.type == "table_close" and token.level == table:
            table = -1
        elif token.type == "inline" and table < 0:
            text = _inline(token.children or ()).strip()
            if text and _SAYS_SOMETHING.search(text):
                found.append(text if text.endswith(_ENDS) else f"{text}.")
    return found


def _inline(tokens: Sequence[Token]) -> str:
    out: list[str] = []
    for token in tokens:
        match token.type:
            case "text" | "text_special" | "code_inline":
                out.append(token.content)
            case "softbreak" | "hardbreak":
                out.append(" ")
            case "image":
                out.append("")
            case _:
                pass
    # The text of an automatic link is its address.
    return _PICTOGRAPHS.sub(" ", _ADDRESS.sub(lambda found: found[1], "".join(out)))


def _cut(said: str, max_chars: int) -> str:
    """The beginning of it, up to the end of a sentence where there is one, and where the rest is."""
    room = max_chars - len(REST) - 3
    if room < 1:
        return said[:max_chars]
    if len(said) <= room:  # what was not looked at may have more
        return f"{said}{'' if said.endswith(_ENDS) else ' …'} {REST}"
    window = said[:room]
    at = max(window.rfind(f"{mark} ") for mark in _ENDS)
    if at < room // 2:
        at = max(window.rfind(" ") - 1, 0)
    begins = window[: at + 1].rstrip()
    return f"{begins}{'' if begins.endswith(_ENDS) else ' …'} {REST}"
