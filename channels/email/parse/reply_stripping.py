"""
Parts the text of a mail: what its author wrote, what we wrote, and what anybody may have written. Pure,
linear. No word of any language is known here. Where somebody else's mail may begin is found by its form:
lines of a header, a ruled line with words in it, a line that says when and who. What stands below that, or is
marked as quoted, is anybody's. Of a mail that answers one of ours, what we have sent is known: what is
literally in it goes, and what is not stays, wherever it stands.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from agent_core.text import is_quoted

_MAX_LINE = 1_000
_HEADER_LINES = 3
"""The number of header-like lines that make a header; two, if they say both when and who."""
_PIECE, _PASSAGE = 12, 40
"""
So many letters that are no whole line or sentence of ours are ours where the last ones have ended, and
anywhere.
"""
_RULES = "-_=─━—–"
_LABEL = re.compile(r"\W{0,3}[^\W\d_][^\d:：@<>]{0,40}[:：](?!//)")
_LABEL_INSIDE = re.compile(r"[^\W\d_]\*?\s?(?::\*?\s|：)")
_DAY = re.compile(
    r"(?<!\d)\d{4}(?!\d)|(?<!\d)\d{1,2}(?:([./-])\d{1,2}\1|[ .-]{0,2}[^\W\d_]{2,12}[ .-]{0,2})\d{2}(?!\d)"
)
_TIME = re.compile(r"(?<![\d.:])(?:[01]?\d|2[0-3])(?:[:.h]|\s?[時时시点點]\s?)[0-5]\d(?!\d|\.\d)")
_ADDRESS = re.compile(r"[^\s<>@]@[^\s<>@]")
_WHO = re.compile(r"<[^<>\s]{1,100}@[^<>\s]{1,250}>|\[mailto:", re.IGNORECASE)
_UNSEEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_SENTENCES = re.compile(r"\n|(?<=[.!?…。！？])")
_NO_LETTERS = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True)
class SplitMail:
    """A mail's text: the author's, and the rest, which may be others'; ``forwarded``: a whole mail."""

    new: str
    rest: str = ""
    forwarded: bool = False


def split_quotes(text: str, sent: Sequence[str] = ()) -> SplitMail:
    """Split the text in two; ``sent`` holds each form of the answered mail that we sent."""
    whole = text.replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    lines = whole.split("\n")
    lines = lines[_below_sent(lines, sent) :]
    ours = _Sent(sent)
    begins = _others_begin(lines)
    end = max((at + 1 for at in range(begins) if lines[at].strip() and not is_quoted(lines[at])), default=0)
    if not end and begins == len(lines):
        return SplitMail(whole.strip())
    for line in lines[:end]:
        if is_quoted(line):
            ours.has(line)
    end = _introduction_at(lines, end) if any(map(is_quoted, lines[end:begins])) else end
    quoted, below = (_foreign_lines(part, ours) for part in (lines[end:begins], lines[begins:]))
    new = lines[:end]
    while below is not None and new and not new[-1].strip(_RULES + " "):
        new.pop()
    rest = "\n".join([*(quoted or ()), *(below or ())]).strip("\n")
    return SplitMail("\n".join(new).strip(), rest, bool(below) and not ours.is_found)


def _below_sent(lines: Sequence[str], sent: Sequence[str]) -> int:
    """Return the first line below our whole mail, if that stands above all else; 0 otherwise."""
    ours = _Sent(sent)
    quoted = [at for at, line in enumerate(lines) if is_quoted(line)]
    start = _introduction_at(lines, quoted[0]) if quoted else _others_begin(lines)
    end = quoted[-1] + 1 if quoted else start
    while not (quoted or ours.is_whole or end == len(lines)):
        ours.has(lines[end])
        end += 1
    block = lines[quoted[0] if quoted else start : end]
    is_below = any(map(str.strip, lines[end:])) and not any(map(str.strip, lines[:start]))
    is_one = not quoted or all(is_quoted(line) or not line.strip() for line in block)
    return end if sent and is_below and is_one and not _foreign_lines(block, _Sent(sent)) else 0


def _foreign_lines(lines: Sequence[str], ours: _Sent) -> Sequence[str] | None:
    """Return a quotation's lines up to the last foreign one, without its introduction; None if ours."""
    known = [ours.has(line) for line in lines]
    first = known.index(True) if True in known else len(lines)
    shown = list(zip(lines, known, strict=True))
    if first < len(lines):
        del shown[_head_at(list(map(_unmarked, lines[:first]))) : first]
    while shown and shown[-1][1] is not False:
        shown.pop()
    return [line for line, _ in shown] if lines else None


def _head_at(above: Sequence[str]) -> int:
    """Return where the introduction or header begins that ends the lines above a quotation."""
    end = len(above)
    while end and not above[end - 1]:
        end -= 1
    if (start := _introduction_at(above, end)) < end:
        return start
    start = end
    while start and above[start - 1] and end - start < 12:
        start -= 1
    block = above[start:end]
    begins = _others_begin(block)
    is_head = all(_LABEL.match(line) or _is_ruled(line) or _is_whole_header(line) for line in block[begins:])
    return start + begins if is_head and begins < len(block) else len(above)


def _unmarked(line: str) -> str:
    return _UNSEEN.sub("", line[:_MAX_LINE]).lstrip("> \t").strip()


def _others_begin(lines: Sequence[str]) -> int:
    """Return the first line of another's mail that is not marked as quoted; the line count if none."""
    header = _HeaderLines()
    introduced = -1
    before = ""
    for at, line in enumerate(lines):
        shown = _UNSEEN.sub("", line[:_MAX_LINE]).strip()
        if is_quoted(shown):
            header, introduced, before = _HeaderLines(), -1, ""
        elif shown:
            if introduced >= 0:
                return introduced
            if _is_ruled(shown) or _is_whole_header(shown):
                return at
            if header.is_one_with(at, shown, goes_on=before.endswith((",", ";")) or line[0] in " \t"):
                return header.start
            if _introduces(shown):
                introduced = at
            elif at and lines[at - 1].strip() and _ADDRESS.search(shown) and _introduces(f"{before} {shown}"):
                introduced = at - 1
            before = shown
    return len(lines)


class _HeaderLines:
    """
    Lines that follow each other, each with a word and a colon in front, which may be those of a header.

    Where blank lines stand between the first ones and not below, those are what the author wrote above it.
    """

    def __init__(self) -> None:
        self.start = self._labels = self._addresses = self._newest = self._end = 0
        self._when = self._who = self._is_apart = False

    def is_one_with(self, at: int, line: str, *, goes_on: bool) -> bool:
        """Add a line and return True if the lines now are a header; ``goes_on`` allows a continuation."""
        if not _LABEL.match(line):
            self._labels *= goes_on
            self._end = at
            return False
        was_apart, self._is_apart = self._is_apart, at > self._end + 1
        if not self._labels:
            self.start, self._addresses, self._when, self._who = at, 0, False, False
        elif was_apart and not self._is_apart:
            self.start = self._newest
        self._newest = self._end = at
        self._labels += 1
        self._when = self._when or _says_when(line)
        self._who = self._who or _WHO.search(line) is not None
        self._addresses += _ADDRESS.search(line) is not None
        if self._labels < _HEADER_LINES:
            return self._when and self._who and self._labels > 1
        return self._when or self._who or self._addresses > 1


def _says_when(line: str) -> bool:
    return _DAY.search(line) is not None and _TIME.search(line) is not None


def _is_ruled(line: str) -> bool:
    """Return True if words stand between two rules."""
    inner = line.strip(_RULES + " ")
    is_between = line[:2].strip(_RULES) == line[-2:].strip(_RULES) == ""
    return is_between and any(map(str.isalpha, inner))


def _is_whole_header(line: str) -> bool:
    """Return True if one line names a person and a time, or has all fields of a header."""
    who = _WHO.search(line) is not None
    if who and _DAY.search(line):
        return not line.endswith((":", "：")) and not _LABEL.match(line)
    return len(_LABEL_INSIDE.findall(line)) >= _HEADER_LINES and (who or _says_when(line))


def _introduces(line: str) -> bool:
    """Return True if a line has a date and ends in a colon, as above a quotation."""
    is_open = line.rstrip("* ").endswith((":", "："))
    return (
        is_open
        and _DAY.search(line) is not None
        and (_TIME.search(line) or _ADDRESS.search(line)) is not None
    )


def _introduction_at(lines: Sequence[str], end: int) -> int:
    """Return the first line of the (possibly wrapped) introduction of a quotation."""
    while end and not lines[end - 1].strip():
        end -= 1
    for start in range(end - 1, max(end - 4, -1), -1):
        joined = " ".join(line[:_MAX_LINE].strip() for line in lines[start:end])
        if not lines[start].strip() or is_quoted(lines[start]):
            break
        if _introduces(_UNSEEN.sub("", joined)):
            return start
    return end


class _Sent:
    """
    The letters and digits of one mail that we sent; mail programs change other characters.

    Lines are compared in order, so that repetitions do not count.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._forms = [_Form(text) for text in texts]
        self._searches = 200
        self.is_found = False

    @property
    def is_whole(self) -> bool:
        """Return True if a form was found up to its end."""
        return any(form.is_whole for form in self._forms)

    def has(self, line: str) -> bool | None:
        """Return True if a quoted line is ours; None for a line without content."""
        signs = _alphanumerics(line)
        if not signs:
            sign = _unmarked(line)
            return None if sign.isascii() else any(sign in text for text in self._texts)
        if sum(form.goes_on(signs) for form in self._forms):
            self.is_found = True
            return True
        if not self._searches or (not is_quoted(line) and len(signs) < _PIECE):
            return False
        found = sum(form.has(signs) for form in self._forms) > 0
        self._searches -= not found
        self.is_found = self.is_found or found
        return found


class _Form:
    """One of the forms: its letters, where its lines and sentences end, and up to where it was found."""

    def __init__(self, text: str) -> None:
        self._text, self._ends, self._at = "", {0}, 0
        pieces = [_alphanumerics(piece) for piece in _SENTENCES.split(text)]
        for piece in pieces:
            self._at += len(piece)
            self._ends.add(self._at)
        self._text, self._at = "".join(pieces), 0

    @property
    def is_whole(self) -> bool:
        """Return True if it was found up to its end."""
        return 0 < len(self._text) == self._at

    def goes_on(self, signs: str) -> bool:
        end = self._at + len(signs)
        found = self._text.startswith(signs, self._at) and (end in self._ends or len(signs) >= _PIECE)
        self._at = end if found else self._at
        return found

    def has(self, signs: str) -> bool:
        start = self._text.find(signs, self._at)
        start = self._text.find(signs) if start < 0 else start
        end = start + len(signs)
        is_whole = start in self._ends and end in self._ends
        found = start >= 0 and (is_whole or len(signs) >= _PASSAGE)
        self._at = end if found else self._at
        return found


def _alphanumerics(text: str) -> str:
    return _NO_LETTERS.sub("", unicodedata.normalize("NFKC", text).casefold())
