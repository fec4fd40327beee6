"""
Reads and writes ``format=flowed`` (RFC 3676), in which the lines of a paragraph can be joined again. Pure,
linear.

A line that ends with a blank goes on in the next one of the same quoting depth; a blank in front of a line
that would begin with one, with ``>`` or with ``From `` is only stuffing (4.4). The signature line ``-- ``
ends with a blank and goes on nowhere (4.3). With ``delsp=yes`` the blank at the end belongs to nobody (4.1),
which is for scripts without blanks.
"""

from __future__ import annotations

import re

WIDTH = 76
"""Lines are broken there, as far as there is a blank to break at; 78 is what everybody shows."""
_SIGNATURE = "-- "
_QUOTES = re.compile(r">{1,50}")


def unflow(text: str, *, delsp: bool = False) -> str:
    """The text as its author wrote it; quoted lines begin with ``> `` for each level."""
    out: list[str] = []
    pieces: list[str] = []
    depth_before = 0

    def end() -> None:
        if pieces:
            out.append("> " * depth_before + "".join(pieces))
            pieces.clear()

    for line in text.split("\n"):
        quotes = _QUOTES.match(line)
        depth = quotes.end() if quotes else 0
        content = line[depth:].removeprefix(" ")
        if depth != depth_before:
            end()  # a paragraph never goes on in another depth (4.5)
        depth_before = depth
        flows = content.endswith(" ") and content != _SIGNATURE
        if content == _SIGNATURE:
            end()
        pieces.append(content[:-1] if flows and delsp else content)
        if not flows:
            end()
    end()
    return "\n".join(out)


def flow(text: str) -> str:
    """The text with its long lines broken so that they can be joined again."""
    return "\n".join(part for line in text.split("\n") for part in _broken(line))


def _broken(line: str) -> list[str]:
    if line == _SIGNATURE:
        return [line]
    line = line.rstrip(" ")
    parts: list[str] = []
    start = 0
    while len(line) - start > WIDTH:
        cut = line.rfind(" ", start + 1, start + WIDTH)
        if cut < 0:
            cut = line.find(" ", start + WIDTH)
        if cut < 0 or not line[start:cut].strip(" "):
            break
        parts.append(_stuffed(line[start : cut + 1]))
        start = cut + 1
    parts.append(_stuffed(line[start:]))
    return parts


def _stuffed(line: str) -> str:
    # Lines that are quotations in the text are meant as such, and flow as such.
    return f" {line}" if line.startswith((" ", "From ")) else line
