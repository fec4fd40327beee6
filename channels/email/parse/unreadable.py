"""
Handles mails that could not be parsed: finds their sender, and words the answer to that person. Pure. A mail
beyond the caps is not taken apart any further, but somebody may have sent it in good faith and waits. So the
few fields that say who wrote it, to whom, and whether it is a person are looked for in a header of nearly any
length, one line after the other. Where it depends on the reader what a line is, nobody is found: then nothing
proves a sender, and nobody is told anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent_core.language import _, gettext_noop
from channels.email.parse.mime import FIELD, FOR_WHOM, Headers, Unreadable, decode_text, parse_headers

TOO_LARGE = "too_large"
"""Only the header was fetched. The sender is answered, by a model that knows no more than the subject."""
TOO_SLOW = "too_slow"
KILLS = "kills"
"""The process has died several times while it was read."""
MAX_HEADER = 2_000_000
MAX_VALUE = 16_000
MAX_LINES = 20_000
"""With more of them a header is nobody's: each costs time, and other mails wait behind it."""
SENT_BY_A_PROGRAM = gettext_noop(
    "Your mail says of itself that a program or a mailing list sent it, and I do not answer such mails. If "
    "you wrote it yourself, please send it again from your mail program. I will not mention this again."
)
"""The sentence for somebody who may write, sent once for all mails that are refused for this."""
_TELLING = frozenset(
    {
        *FOR_WHOM,
        *("from", "reply-to", "delivered-to", "x-original-to", "envelope-to", "x-envelope-to"),
        *("x-forwarded-to", "authentication-results", "return-path", "message-id", "references"),
        *("in-reply-to", "subject", "date", "content-type", "auto-submitted", "precedence"),
    }
)
"""Whatever ``guard`` and ``threads`` look at, besides those of mailing lists."""
_WHY = {
    "too_many_parts": gettext_noop("it has too many parts"),
    "nested_too_deep": gettext_noop("its parts are nested too deeply"),
    "header_too_large": gettext_noop("its header is too long"),
    "too_many_header_fields": gettext_noop("its header has too many fields"),
    TOO_SLOW: gettext_noop("reading it takes too long"),
    "encrypted": gettext_noop("it is encrypted"),
    KILLS: gettext_noop("each attempt to read it crashed"),
}


def apology_of(trouble: str) -> str:
    """The answer to the sender of a mail that could not be read for this reason."""
    why = _WHY.get(trouble, gettext_noop("I do not understand its structure"))
    return _(
        "Your mail arrived, but I could not read it: {why}. Please send me the text in a plain mail.",
        why=_(why),
    )


def headers_of(raw: bytes) -> Headers:
    """The header of a mail, or the relevant fields of an oversized one; empty if it cannot be read. Total."""
    try:
        return parse_headers(raw)
    except Unreadable:
        return _outline(raw[:MAX_HEADER])


def _outline(head: bytes) -> Headers:
    """The fields of `_TELLING`, in their order."""
    end = min((at for at in (head.find(b"\r\n\r\n"), head.find(b"\n\n")) if at >= 0), default=-1)
    if end < 0:
        return Headers(())
    head = head[: end + 1]
    crs, lfs, both = head.count(b"\r"), head.count(b"\n"), head.count(b"\r\n")
    whole = crs <= both + head.endswith(b"\r") and both in (0, lfs)
    if lfs > MAX_LINES or not whole or b"\0" in head:
        return Headers(())
    fields: list[tuple[str, str]] = []
    doubtful: set[str] = set()
    for name, value in _fields(head):
        if len(value) > MAX_VALUE:
            doubtful.add(name)
        if name in _TELLING or name.startswith("list-"):
            fields.append((name, decode_text(value[:MAX_VALUE], None)))
        if len(fields) > 300:
            return Headers(())
    return Headers(tuple(fields), frozenset(doubtful))


def _fields(head: bytes) -> Iterator[tuple[str, bytes]]:
    """Names in lower case and unfolded values; of a long one the beginning. Others get their turn between."""
    name, value, start = "", bytearray(), 0
    while start < len(head):
        end = head.find(b"\n", start)
        end = len(head) if end < 0 else end
        line = head[start : min(end, start + 2 * MAX_VALUE)].rstrip(b"\r\n")
        start = end + 1
        if line[:1] in (b" ", b"\t") and name:
            if len(value) <= MAX_VALUE:
                value += b" " + line.strip()
            continue
        if name:
            yield name, bytes(value)
        found = FIELD.match(line)
        name = found[1].decode("ascii").lower() if found else ""
        value = bytearray(line[found.end() :].strip() if found else b"")
    if name:
        yield name, bytes(value)
