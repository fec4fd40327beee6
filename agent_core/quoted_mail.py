"""
Extracts what a mail program has quoted, without the lines that introduce the quote. Pure.

The rest is looked for in the history, and what is not found there counts as anybody's. So a line is left out
only if nothing in it can be anybody's words: it consists of names that are known, of a few numbers, and of
the words of a table. That table holds months, weekdays and the words of headers, and nothing that could ask
for anything. A program that introduces a mail in other words makes it unknown, which costs one question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import dropwhile

_LINES, _NUMBERS = 12, 16
_NUMBER = re.compile(r"[0-9]{1,4}(?:st|nd|rd|th|er|h)?")
_ANSWERS = frozenset(("re", "aw", "sv", "antw", "rép", "ref"))
"""What programs write in front of the subject of an answer."""
_WORD = re.compile(r"[^\W_]+")
_INTRODUCING = """
from von de sent gesendet envoyé enviado date datum fecha to an à para cc subject betreff objet asunto
mailto original message ursprüngliche nachricht d origine mensaje
on at wrote am um uhr schrieb le a écrit el las escribió
pm gmt utc cet cest mez mesz est edt cst cdt mst mdt pst pdt
monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun
montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag mo di mi do fr sa so
lundi mardi mercredi jeudi vendredi samedi dimanche lun mar mer jeu ven sam dim
lunes martes miércoles jueves viernes sábado domingo mié jue vie sáb dom
january february march april may june july august september october november december
jan feb mar apr jun jul aug sep sept oct nov dec
januar jänner februar märz mai juni juli oktober dezember mär okt dez
janvier février mars avril juin juillet août septembre octobre novembre décembre janv févr avr juil déc
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre ene abr ago dic
"""
_TABLE = _ANSWERS.union(_INTRODUCING.split())


def quoted_mail(text: str, names: Iterable[str]) -> str:
    """
    A quotation without its marks, and without the introducing lines, which contain nobody's own words.

    ``names`` are the addresses and names of both sides, and the subject: each is known as a whole.
    """
    known = [list(dropwhile(_ANSWERS.__contains__, _words(name))) for name in names]
    known = sorted((words for words in known if words), key=len, reverse=True)
    lines = [line.lstrip("> \t") for line in text.split("\n")]
    first = numbers = spoken = 0
    while first < len(lines) and spoken < _LINES:
        words = _without(_words(lines[first]), known)
        numbers += sum(_NUMBER.fullmatch(word) is not None for word in words)
        if numbers > _NUMBERS or not all(word in _TABLE or _NUMBER.fullmatch(word) for word in words):
            break
        spoken += bool(words)
        first += 1
    return "\n".join(lines[first:])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _without(words: Sequence[str], known: Sequence[Sequence[str]]) -> list[str]:
    """The words outside the names."""
    left: list[str] = []
    at = 0
    while at < len(words):
        found = next((name for name in known if words[at : at + len(name)] == name), None)
        if found is None:
            left.append(words[at])
        at += len(found) if found is not None else 1
    return left
