"""
Extracts the new part of a reply, without quoted history and signature. Pure: a state machine over lines,
linear.

Careful rather than clever: what is doubtful stays. A quotation is dropped only if nothing new follows it, so
answers written between the quoted lines keep their questions; and if nothing would remain, everything does.
The usual libraries for this need minutes for 60 KB of "On On On …" and lose interleaved answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAX_LINE = 1_000
_ATTRIBUTION_LINES = 3
_SIGNATURE = ("-- ", "--")
_RULED_OFF = re.compile(
    r"-{2,12} ?(?:Original Message|Ursprüngliche Nachricht|Message d'origine|Mensaje original"
    r"|Forwarded message"
    r"|Weitergeleitete Nachricht|Original-Nachricht) ?-{2,12}",
    re.IGNORECASE,
)
_FORWARDED = re.compile(
    r"(?:-{2,12} ?(?:Forwarded message|Weitergeleitete Nachricht|Message transféré|Mensaje reenviado)"
    r" ?-{2,12}"
    r"|Begin forwarded message:|Anfang der weitergeleiteten (?:Nachricht|E-Mail):"
    r"|Début du message (?:réexpédié|transféré) ?:)",
    re.IGNORECASE,
)
_RULE = re.compile(r"_{10,80}")
_HEADER = re.compile(
    r"\*?(From|Von|De|Sent|Gesendet|Envoyé|Enviado|Date|Datum|To|An|À|Para|Subject|Betreff|Objet|Asunto|Cc)\*?\s?:",
    re.IGNORECASE,
)
_FROM = re.compile(r"\*?(From|Von|De)\*?\s?:", re.IGNORECASE)
_WROTE = re.compile(
    r"\b(wrote|schrieb|writes|écrit|a écrit|escribió|ha scritto|schreef|skrev|napisał|napsal)\b.{0,80}:\Z"
)


_RULES = ("---", "___")
_ANY_HEADER = re.compile(r"\W{0,3}[^\W\d_][\w .-]{0,24}\*?\s?:\*?\s?\S")
_YEAR, _TIME = re.compile(r"\b\d{4}\b"), re.compile(r"\b\d{1,2}[:.h]\d\d\b")
_HEADERS_TOGETHER = 3
_WROTE_ABOVE = re.compile(
    r"\b(?:wrote|schrieb|writes|écrit|escribió|ha scritto|schreef|skrev|napisał|napsal)\b"
)


@dataclass(frozen=True, slots=True)
class Divided:
    """
    A mail's text: what its author wrote, and what stands below it: a signature, other people's mails.

    ``forwarded`` says that the rest was forwarded, so it is what the new text is about.
    """

    new: str
    rest: str = ""
    forwarded: bool = False


def divided(text: str) -> Divided:
    """
    Split the text in two. If nothing of it seems new, all of it is new; except for a mail that says itself
    that somebody else wrote it, because it was forwarded without a word.
    """
    whole = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    lines = whole.split("\n")
    kept = _without_signature(_without_history(lines))
    rest = lines[len(kept) :]
    first = next((line[:_MAX_LINE].strip() for line in lines if line.strip()), "")
    if _FORWARDED.fullmatch(first):
        return Divided("", whole.strip(), forwarded=True)
    new = "\n".join(kept).strip()
    if not new:
        return Divided(whole.strip())
    forwarded = any(_FORWARDED.fullmatch(line[:_MAX_LINE].strip()) for line in rest)
    return Divided(new, "\n".join(rest).strip(), forwarded)


def new_text(text: str) -> str:
    """The text without trailing quotation and signature; all of it if there is nothing else."""
    found = divided(text)
    return found.new or found.rest


def has_old_mail(text: str) -> bool:
    """
    Whether a whole mail may stand in it, in whatever language a mail program has introduced it: under a ruled
    line with words in it, under lines like those of a header of which one says when, or, its
    lines without a mark, under one that says who wrote it when.
    """
    together = 0
    says = introduced = False
    for line in text.split("\n"):
        shown = line[:_MAX_LINE].strip()
        if introduced and shown and not _quoted(shown):
            return True
        introduced = (introduced and not shown) or (_introduces(shown) and _YEAR.search(shown) is not None)
        if shown.startswith(_RULES) and shown.endswith(_RULES) and shown.strip("-_ ")[:1].isalpha():
            return True
        if _ANY_HEADER.match(shown):
            together += 1
            says = says or (_YEAR.search(shown) is not None and _TIME.search(shown) is not None)
        elif shown:
            together, says = 0, False
        if together >= _HEADERS_TOGETHER and says:
            return True
    return False


def _without_history(lines: list[str]) -> list[str]:
    cut = _ruled_off_at(lines)
    if cut is not None and any(line.strip() for line in lines[:cut]):
        lines = lines[:cut]
    return _without_quotation(lines)


def _ruled_off_at(lines: list[str]) -> int | None:
    """Where a mail program put the whole old mail under a line or a block of headers."""
    for number, line in enumerate(lines):
        text = line[:_MAX_LINE].strip()
        if _RULED_OFF.fullmatch(text) or _FORWARDED.fullmatch(text):
            return number
        if _RULE.fullmatch(text) and _headers_follow(lines, number + 1):
            return number
        if _HEADER.match(text) and _headers_follow(lines, number):
            return number
    return None


def _headers_follow(lines: list[str], start: int) -> bool:
    """At least three of From, Sent, To, Subject within the next lines, From among the first two."""
    block = [line[:_MAX_LINE].strip() for line in lines[start : start + 8]]
    while block and not block[0]:
        block.pop(0)
    if not block or not _HEADER.match(block[0]) or not any(map(_FROM.match, block[:2])):
        return False
    return sum(1 for line in block if _HEADER.match(line)) >= 3


def _without_quotation(lines: list[str]) -> list[str]:
    """Drop the last quotation with its introduction, if only blanks or a signature come after it."""
    end = len(lines)
    for number in range(len(lines)):
        if lines[number] in _SIGNATURE:
            end = number
            break
    last = end
    while last > 0 and not lines[last - 1].strip():
        last -= 1
    first = last
    while first > 0 and (
        _quoted(lines[first - 1]) or (not lines[first - 1].strip() and _quoted_above(lines, first))
    ):
        first -= 1
    if first == last or not any(_quoted(line) for line in lines[first:last]):
        return lines
    return lines[: _introduction_at(lines, first)]


def _quoted(line: str) -> bool:
    return line.lstrip(" \t").startswith(">")


def _quoted_above(lines: list[str], number: int) -> bool:
    """Whether a blank line at ``number - 1`` stands between two quoted ones."""
    return number >= 2 and _quoted(lines[number - 2])


def _introduction_at(lines: list[str], first: int) -> int:
    """Where the attribution ("On Monday Alice wrote:") of a quotation begins, which may be wrapped."""
    end = first
    while end > 0 and not lines[end - 1].strip():
        end -= 1
    for length in range(1, _ATTRIBUTION_LINES + 1):
        start = end - length
        if start < 0 or not lines[start].strip():
            break
        if (
            lines[start].lstrip().startswith("<")
            and start > 0
            and _WROTE_ABOVE.search(lines[start - 1][-_MAX_LINE:])
        ):
            continue  # the line was broken in front of the address
        joined = " ".join(line[:_MAX_LINE].strip() for line in lines[start:end])
        if _introduces(joined) and (length == _ATTRIBUTION_LINES or _begins(lines[start])):
            return start
    return end


def _introduces(text: str) -> bool:
    if not text.endswith(":") or len(text) > 400:
        return False
    return bool(_WROTE.search(text[-160:])) or ("@" in text and any(char.isdigit() for char in text))


def _begins(line: str) -> bool:
    """Whether an attribution can begin with this line: it says when, or who."""
    text = line.strip()
    return text[:1] in '<"' or any(char.isdigit() for char in text[:80]) or bool(_WROTE.search(text[-160:]))


def _without_signature(lines: list[str]) -> list[str]:
    for number, line in enumerate(lines):
        if line in _SIGNATURE and number > 0:
            return lines[:number]
    return lines
