"""
The yes or no that a text is, in the languages of ``answer_words.toml``. Pure. A text is one only if all of it
is known: words for yes or no, and what is polite beside them. So no condition, negation or further wish can
stand in a yes. What begins with a sign and is more is unclear.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Sign(StrEnum):
    """The meaning of a text as an answer."""

    YES = "yes"
    FINE = "fine"
    """A yes directly after a question; after anything else it may just take note of that."""
    NO = "no"
    UNCLEAR = "unclear"
    """It begins with a yes or a no, and is more than that."""


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """
    A sign, and for how long a yes holds, such as ``1h``; empty: for once.

    ``more`` is what was written below it, in paragraphs of their own; of an unclear one, all that is more.
    ``to_all``: it is expressly to all that waits.
    """

    sign: Sign
    span: str = ""
    more: str = ""
    to_all: bool = False


_POLITE, _HOUR, _ALL = "polite", "hour", "all"
_KINDS = {
    "all": _ALL,
    "to_all": _ALL,
    "yes": Sign.YES,
    "fine": Sign.FINE,
    "fine_alone": Sign.FINE,
    "hour": _HOUR,
    "polite": _POLITE,
    "no": Sign.NO,
    "no_alone": Sign.NO,
    "doubtful": Sign.UNCLEAR,
}
"""The meaning of each key of the file; of a phrase with several the last one counts, the least decided."""
WORDS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("answer_words.toml").read_text("utf-8")
)
"""The phrases of each language by their key, separated by ``|``; ``any`` has the signs of all of them."""
_CONDITIONS = frozenset(WORDS["any"]["conditions"].split())
_LONGEST = 200
_SKIN_TONES = dict.fromkeys(range(0x1F3FB, 0x1F400))
_SPAN = re.compile(r"(?:for )?(\d{1,4}) ?(m|h|d)(?:in|ins|inutes?|ours?|ays?)?(?!\w)")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
"""Characters of languages that put no blanks between words."""
_ASKS = re.compile("[?؟‽⸮](?![A-Za-z0-9])|¿|[\u0370-\u03ff\u1f00-\u1fff];")
"""Question marks, but not that of an address; the Greek one is written as a semicolon."""


def _normal(text: str) -> str:
    """A text without case, punctuation and marks of stress."""
    text = unicodedata.normalize("NFKC", text.translate(_SKIN_TONES).replace("\ufe0f", "")).casefold()
    # What is struck out with U+0334 to U+0338 stays so.
    text = re.sub("[\u0300-\u0333\u0339-\u036f]", "", unicodedata.normalize("NFD", text)).replace("’", "'")
    kept = "".join(char if _is_instruction(char) else " " for char in text)
    return unicodedata.normalize("NFC", " ".join(kept.split()))


def _is_instruction(char: str) -> bool:
    category = unicodedata.category(char)
    return char == "'" or (category[0] in "LMNS" and category != "Sk")


def _phrases(key: str) -> set[str]:
    """The phrases of all languages under this key."""
    return {_normal(each) for row in WORDS.values() if key in row for each in row[key].split("|")}


_PHRASES = {phrase: kind for key, kind in _KINDS.items() for phrase in _phrases(key)}
_BY_LENGTH = sorted({len(each) for each in _PHRASES}, reverse=True)
_OFF, _ON, _SOME = _phrases("no_alone"), _phrases("fine_alone"), _phrases("all")
"""No and fine if alone, which begin a request otherwise; and all, which beside a no is "not all"."""


def is_question(text: str) -> bool:
    """Return True if a text may be a question."""
    return _ASKS.search(unicodedata.normalize("NFKC", text)) is not None


def continues_sentence(paragraph: str, *, after_a_no: bool = False) -> bool:
    """Return True if a paragraph seems to continue the sentence before it; a no only by a condition."""
    start = paragraph.lstrip()[:40]
    if start[:2].islower() and not after_a_no:
        return True
    return start.replace(",", " ").casefold().partition(" ")[0] in _CONDITIONS


def read_answer(text: str) -> AnswerReading | None:
    """The sign that a text is, or begins with; None for any other."""
    if len(text.strip()) > _LONGEST:
        return None
    rest, found, spans = _normal(text), list[str](), list[str]()
    while rest:
        span, phrase = _SPAN.match(rest), _first(rest)
        if span is None and not phrase:
            break
        if span is not None:
            spans.append(span[1] + span[2])
        elif _PHRASES[phrase] == _HOUR:
            spans.append("1h")
        else:
            found.append(phrase)
        rest = rest[len(phrase) if span is None else span.end() :].lstrip()
    signs = [phrase for phrase in found if _PHRASES[phrase] not in (_POLITE, _ALL)]
    means = {_PHRASES[phrase] for phrase in signs}
    of_all = {phrase for phrase in found if _PHRASES[phrase] == _ALL}
    if not signs or ((rest or of_all) and signs[0] in _OFF) or (rest and signs[0] in _ON):
        return None
    is_mixed = Sign.NO in means and (len(means) > 1 or bool(spans or of_all & _SOME))
    if rest or is_mixed or Sign.UNCLEAR in means or len(spans) > 1 or is_question(text):
        return AnswerReading(Sign.UNCLEAR, more=text.strip() if rest else "")
    sign = next(sign for sign in (Sign.NO, Sign.YES, Sign.FINE) if sign in means)
    # Of several signs, as in "ja, alles in ordnung", it may be said of the matter.
    return AnswerReading(sign, "".join(spans), to_all=bool(of_all) and len(signs) == 1)


def sign_of(reaction: str) -> Sign | None:
    """The yes or no of a reaction; None for any other."""
    return next(
        (sign for sign in (Sign.FINE, Sign.NO) if reaction[:1] in WORDS["any"][sign].split("|")), None
    )


def is_cancellation(text: str) -> bool:
    """Return True if a text is nothing but a word to leave something, such as "stop"."""
    return _normal(text[:_LONGEST]) in _OFF


def is_stop_word(text: str) -> bool:
    """Return True if a text is nothing but "stop", in English or German."""
    return _normal(text[:_LONGEST]) in ("stop", "stopp", "halt")


def is_qualified_answer(text: str) -> bool:
    """Return True if a text begins with a no, or with a yes and is more."""
    said = read_answer(text)
    return _PHRASES.get(_first(_normal(text[:_LONGEST]))) == Sign.NO or (
        said is not None and said.sign is Sign.UNCLEAR
    )


def is_polite(text: str) -> bool:
    """Return True if a text says nothing but thanks or regards, or nothing at all."""
    rest = "?" if len(text) > _LONGEST else _normal(text)
    while rest and _PHRASES.get(phrase := _first(rest)) == _POLITE:
        rest = rest[len(phrase) :].lstrip()
    return not rest


def yes_or_no(text: str) -> bool | None:
    """The yes or no that a text is; None if it is anything else."""
    found = read_answer(text)
    if found is None or found.span or found.sign is Sign.UNCLEAR:
        return None
    return found.sign is not Sign.NO


def _first(text: str) -> str:
    """The longest phrase with which a text begins; empty: none."""
    for length in _BY_LENGTH:
        phrase, after = text[:length], text[length : length + 1]
        if phrase in _PHRASES and not (after and _is_joined(phrase[-1], after)):
            return phrase
    return ""


def _is_joined(end: str, after: str) -> bool:
    """Return True if two characters belong to one word."""
    letters = all(unicodedata.category(char)[0] in "LMN" or char == "'" for char in (end, after))
    return letters and _UNSPACED.match(end) is None
