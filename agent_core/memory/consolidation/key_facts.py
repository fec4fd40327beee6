"""
Finds the facts of a conversation that its summary must contain, and those that it lacks. Pure, without a
model. Addresses, dates, numbers, names, decisions and quotations cannot be guessed again and are recognised
by form, each as a `KeyFact` with a ``snippet``. Single digits, counters ("message 7", "message 8") and
capitals at sentence starts do not count; in languages that capitalise nouns only names of several words do;
in scripts without capitals a short statement is the fact. Matching is by meaning where cheap: 1,234 is 1234,
3 May is 2026-05-03.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from unicodedata import digit

from agent_core.text import word_count

_MOST = 60
_MAX_CHARS = 50_000
_SNIPPET_CHARS = 90
_DECISION_CHARS = 160
_COUNTER = 6
_DENSE = 4
_LEAST_WORDS = 4  # fewer are a greeting or a yes
_MAX_NUMBER = 40
_MAX_CODE = 40
_NOUNS_ARE_CAPITAL = 0.2
_ENOUGH_WORDS = 12
_SAME = 0.6
_SAME_PAIRS = 0.5  # of characters; endings and particles are the rest
_HEAD = "Also mentioned: "
_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar jänner января enero يناير",
            "february feb februar февраля febrero فبراير",
            "march mar märz марта marzo مارس",
            "april apr апреля abril أبريل إبريل",
            "may mai мая mayo مايو",
            "june jun juni июня junio يونيو",
            "july jul juli июля julio يوليو",
            "august aug августа agosto أغسطس",
            "september sep sept сентября septiembre سبتمبر",
            "october oct oktober октября octubre أكتوبر",
            "november nov ноября noviembre نوفمبر",
            "december dec dezember декабря diciembre ديسمبر",
        ),
        1,
    )
    for name in names.split()
}
_WEEKDAY = re.compile(
    r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|montags?|dienstags?|mittwochs?|donnerstags?|freitags?|samstags?"
    r"|sonnabends?|sonntags?|lunes|martes|miércoles|jueves|viernes|sábado|понедельник|вторник|сред[ау]|четверг"
    r"|пятниц[ау]|суббот[ау]|воскресенье|الاثنين|الثلاثاء|الأربعاء|الخميس|الجمعة|السبت|الأحد)\b"
    r"|[月火水木金土日]曜|星期[一二三四五六日天]|周[一二三四五六日]|[월화수목금토일]요일",
    re.IGNORECASE,
)
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_ADDRESS = re.compile(
    r"https?://[^\s<>\"')\]“”„«»’]+"
    r"|[@#!][\w.\-=/+]{1,200}:[\w.\-]{1,200}\w"
    r"|(?<![\w.+\-])[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,8}"
)
_DATE = re.compile(
    rf"\b(?P<y>\d{{4}})-(?P<m>\d{{2}})-(?P<d>\d{{2}})\b"
    rf"|\b(?P<d2>\d{{1,2}})\.(?P<m2>\d{{1,2}})\.(?:\d{{2,4}})?"
    rf"|\b(?P<d3>\d{{1,2}})(?:st|nd|rd|th|\.)?\s+(?:(?:of|de)\s+)?(?P<n3>{_MONTH})\b\.?"
    rf"|\b(?P<n4>{_MONTH})\.?\s+(?P<d4>\d{{1,2}})(?:st|nd|rd|th)?\b(?!\d)"
    r"|(?P<m5>\d{1,2})\s?[月월]\s?(?P<d5>\d{1,2})\s?[日号일]",
    re.IGNORECASE,
)
_IN_WORD = r"[\d_.A-Za-z\u00c0-\u0dff]"  # not 番号48213: no blank stands there
_NUMBER = re.compile(rf"(?<!{_IN_WORD})[€$£]?\d[\d.,:'/\-٫٬]*\d%?|(?<![\w.])[€$£]\d|(?<!\w)\d%")
_COUNTED = re.compile(r"(?<![\w.,])\d{1,12}\b")
_CODE = re.compile(r"`([^`\n]+)`")
_QUOTE = re.compile(r"[“„«\"]([^“”„«»\"\n]{6,120})[”“»\"]")
_DECISION = re.compile(
    r"\b(decid\w*|decision|agreed|settled on|promis\w*|must (?:not|never)|never again"
    r"|entschieden|beschlossen|vereinbart|versprochen)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W_]+(?:[’'][^\W_]+)?")
_BEGINS = frozenset(':([“„"-*')
_SENTENCE = re.compile(r"[^\n]+?(?:[。！？]|(?<!\s\d)(?<!\s\d\d)[.!?…]{1,4}[\"”’»)]{0,4}(?=\s|$)|(?=\n)|$)")
_DAY_AFTER = re.compile(r" \(\d{4}-\d\d-\d\d\)$")
_WORD_BEFORE = re.compile(r"(\w{1,30})\W{0,3}$")
_NO_NAMES = frozenset(["i'm", "i’m", "i'll", "i’ll", "i've", "i’ve", "i'd", "i’d", "ok", *_MONTHS])


@dataclass(frozen=True, slots=True)
class KeyFact:
    """A fact that must survive: its kind, its text, and the words around it."""

    kind: str
    text: str
    snippet: str


def essentials(texts: Iterable[str]) -> list[KeyFact]:
    """The facts of these messages that must survive, the most important kinds first, at most sixty."""
    found: dict[tuple[str, str], KeyFact] = {}
    counted: dict[str, set[str]] = {}
    names: Counter[str] = Counter()
    capital = words = 0
    sentences = [sentence for text in texts for sentence in _sentences(text)]
    for sentence in sentences:
        for item in _plain(sentence, counted):
            found.setdefault((item.kind, item.text.casefold()), item)
        inner = _inner_words(sentence)
        words += len(inner)
        capital += sum(word[0].isupper() for word in inner)
    shouting = words >= _ENOUGH_WORDS and capital / words > _NOUNS_ARE_CAPITAL
    for sentence in sentences:
        if _says_without_capitals(sentence):
            found.setdefault(("said", sentence), KeyFact("said", sentence, sentence.rstrip(".。！!")))
        for name in _names(sentence):
            if not shouting or " " in name:
                names[name] += 1
                found.setdefault(("name", name.casefold()), KeyFact("name", name, _about(sentence, name)))
    counters = {number for numbers in counted.values() if _counts_on(numbers) for number in numbers}
    kept = [item for item in found.values() if item.kind != "number" or item.text not in counters]
    ranks = ("address", "decision", "date", "weekday", "quote", "number", "name", "said")
    return sorted(kept, key=lambda item: (ranks.index(item.kind), -names[item.text]))[:_MOST]


def add_days(items: Iterable[KeyFact], said: Iterable[tuple[str, str]]) -> list[KeyFact]:
    """The facts with the day on which they were said first, as far as ``said``, days and texts, has it."""
    known = [(day, text) for day, text in said if day]
    days = ((item, next((day for day, text in known if item.text in text), "")) for item in items)
    return [replace(item, snippet=f"{item.snippet} ({day})") if day else item for item, day in days]


def missing(items: Iterable[KeyFact], *texts: str) -> list[KeyFact]:
    """The facts that none of the texts contains."""
    known = _Known("\n".join(texts))
    return [item for item in items if not known.has(item)]


def excerpts(items: Sequence[KeyFact], said: Iterable[tuple[str, str]], *, max_chars: int) -> str:
    """The sentences of ``said``, days and texts, that have the facts, in order, as far as there is room."""
    wanted = {item.text for item in items}
    chosen: list[str] = []
    last = ""
    for day, text in said:
        for sentence in _sentences(text):
            hits = {text for text in wanted if text in sentence}
            if hits and max_chars > 0:
                chosen += [f"({day})"] * (day != last) + [sentence[:max_chars]]
                last = day
                max_chars -= len(sentence) + 1
                wanted -= hits
    return "\n".join(chosen)


# ── the list at the end of a summary ──


def split_list(summary: str) -> tuple[str, list[str]]:
    """Split a summary into its prose and the entries of the list at its end."""
    prose, head, listed = summary.rpartition(_HEAD)
    if not head or "\n" in listed.strip() or (prose and not prose.endswith("\n")):
        return summary, []
    return prose.rstrip(), [entry for entry in listed.strip().removesuffix(".").split("; ") if entry]


def join_list(prose: str, entries: Sequence[str]) -> str:
    """The inverse of `split_list`."""
    if not entries:
        return prose
    return "\n\n".join(part for part in (prose.rstrip(), f"{_HEAD}{'; '.join(entries)}.") if part)


def merge_list(old: Iterable[str], new: Iterable[KeyFact], prose: str, *, max_chars: int) -> list[str]:
    """The entries that the prose lacks; the newest, if there is too little room."""
    folded = " ".join(prose.split()).casefold()
    entries: list[str] = []
    for entry in [*old, *(item.snippet for item in new)]:
        text = " ".join(entry.replace(";", ",").split()).rstrip(".")
        if (
            not text
            or _DAY_AFTER.sub("", text).casefold() in folded
            or any(text in other for other in entries)
        ):
            continue
        entries = [other for other in entries if other not in text]
        entries.append(text)
    while entries and sum(len(entry) + 2 for entry in entries) > max_chars:
        entries.pop(0)
    return entries


# ── inside ──


def _sentences(text: str) -> Iterator[str]:
    for match in _SENTENCE.finditer(text[:_MAX_CHARS]):
        if sentence := match[0].strip():
            yield sentence


def _plain(sentence: str, counted: dict[str, set[str]]) -> Iterator[KeyFact]:
    """Everything but names. ``counted`` collects numbers by the word before them."""
    rest = sentence
    if _DECISION.search(sentence):
        yield KeyFact("decision", sentence, _short(sentence, _DECISION_CHARS))
    if _WEEKDAY.search(sentence) and sentence[-1] not in "?？؟":
        yield KeyFact("weekday", sentence, _short(sentence, _DECISION_CHARS))
    for match in _ADDRESS.finditer(rest):
        address = match[0].rstrip(".,;:!?")
        if len(address) <= 300:
            yield KeyFact("address", address, address)
    rest = _ADDRESS.sub(lambda match: " " * len(match[0]), rest)
    for match in _DATE.finditer(rest):
        if _day(match) is not None:
            yield KeyFact("date", match[0].strip(), _around(sentence, match.start(), match.end()))
    rest = _DATE.sub(lambda match: " " * len(match[0]), rest)
    for match in _QUOTE.finditer(rest):
        yield KeyFact("quote", match[1].strip(), _short(match[1].strip(), _DECISION_CHARS))
    yield from (KeyFact("name", code, code) for code in _codes(rest))
    _count(rest, counted)
    for match in _NUMBER.finditer(rest):
        number = match[0].rstrip(".,:/-'")
        if len(number) <= _MAX_NUMBER:
            yield KeyFact("number", number, _around(sentence, match.start(), match.end()))


def _codes(text: str) -> Iterator[str]:
    """Yield the texts between backticks; matching long ones too keeps the pairs right."""
    for match in _CODE.finditer(text):
        code = match[1].strip()
        if 2 <= len(code) <= _MAX_CODE and _WORD.search(code):
            yield code


def _count(text: str, counted: dict[str, set[str]]) -> None:
    for match in _COUNTED.finditer(text):
        before = _WORD_BEFORE.search(text[max(0, match.start() - 33) : match.start()])
        counted.setdefault(before[1].casefold() if before else "", set()).add(match[0])


def _counts_on(numbers: set[str]) -> bool:
    """Return True if these are many numbers close to each other."""
    values = [int(number) for number in numbers]
    return len(values) > _COUNTER and max(values) - min(values) < _DENSE * len(values)


def _inner_words(sentence: str) -> list[str]:
    """The words after the first one: of the first nobody knows why it has its capital."""
    return [match[0] for match in list(_WORD.finditer(sentence))[1:] if match[0][0].isalpha()]


def _names(sentence: str) -> Iterator[str]:
    """Words with a capital that no sentence begins with, neighbours together."""
    words = list(_WORD.finditer(sentence))
    run: list[re.Match[str]] = []
    for word in words:
        text = word[0]
        is_name = text[0].isupper() and len(text) > 1 and text.casefold() not in _NO_NAMES
        joined = not run or sentence[run[-1].end() : word.start()] in (" ", "-", ". ")
        if is_name and joined:
            run.append(word)
            continue
        yield from _named(run, words, sentence)
        run = [word] if is_name else []
    yield from _named(run, words, sentence)


def _named(run: Sequence[re.Match[str]], words: Sequence[re.Match[str]], sentence: str) -> Iterator[str]:
    if not run:
        return
    if run[0].start() == words[0].start() or sentence[: run[0].start()].rstrip()[-1:] in _BEGINS:
        run = run[1:]
    if not run:
        return
    name = sentence[run[0].start() : run[-1].end()]
    for ending in ("'s", "’s"):
        name = name.removesuffix(ending)
    yield name


def _around(sentence: str, start: int, end: int) -> str:
    """The item with some words before and after it."""
    if len(sentence) <= _SNIPPET_CHARS:
        return sentence.strip().rstrip(".。")
    left = max(0, start - (_SNIPPET_CHARS - (end - start)) * 2 // 3)
    right = min(len(sentence), left + _SNIPPET_CHARS)
    while 0 < left < start and not sentence[left - 1].isspace():
        left += 1
    while end < right < len(sentence) and not sentence[right].isspace():
        right -= 1
    return sentence[left:right].strip().rstrip(".。")


def _about(sentence: str, name: str) -> str:
    """The words around a name."""
    start = sentence.find(name)
    return _around(sentence, start, start + len(name))


def _says_without_capitals(sentence: str) -> bool:
    """Return True for a short statement in a script whose names nothing marks: all of it is the fact."""
    asks = sentence[-1] in "?？؟" or sentence.endswith(("か。", "吗。"))
    return (
        not asks
        and len(sentence) <= _SNIPPET_CHARS
        and word_count(sentence) >= _LEAST_WORDS
        and sum(char.isalpha() and char.lower() == char.upper() for char in sentence) > len(sentence) / 2
    )


def _pairs(text: str) -> set[str]:
    return {text[at : at + 2] for at in range(len(text) - 1) if text[at : at + 2].isalnum()}


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _day(match: re.Match[str]) -> tuple[int, int] | None:
    """Month and day of a match of `_DATE`, if there is such a day."""
    groups = match.groupdict()
    month = groups["m"] or groups["m2"] or groups["m5"]
    number = int(month) if month else _MONTHS[(groups["n3"] or groups["n4"]).casefold()]
    day = int(next(groups[name] for name in ("d", "d2", "d3", "d4", "d5") if groups[name]))
    return (number, day) if 1 <= number <= 12 and 1 <= day <= 31 else None


def _digits(number: str) -> str:
    """A number without what only makes it readable, in ASCII digits."""
    plain = "".join(str(digit(char)) if char.isdecimal() else char for char in number)
    return re.sub(r"(?<=\d)[,.'٬](?=\d{3}\b)", "", plain.strip("€$£"))


class _Known:
    """A text in which essentials are looked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._folded = " ".join(text.split()).casefold()

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(match[0].casefold() for match in _WORD.finditer(self._text))

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(
            _digits(found.rstrip(".,:/-'")) for found in re.findall(r"\d[\d.,:'/\-٫٬]*%?", self._text)
        )

    @cached_property
    def _days(self) -> frozenset[tuple[int, int] | None]:
        return frozenset(_day(match) for match in _DATE.finditer(self._text))

    @cached_property
    def _pairs(self) -> set[str]:
        return _pairs(self._folded)

    def has(self, item: KeyFact) -> bool:
        folded = " ".join(item.text.split()).casefold()
        match item.kind:
            case "number":
                return _digits(item.text) in self._numbers
            case "date":
                found = _DATE.search(item.text)
                return folded in self._folded or (found is not None and _day(found) in self._days)
            case "name":
                parts = [match[0].casefold() for match in _WORD.finditer(item.text)]
                return folded in self._folded or (bool(parts) and parts[-1] in self._words)
            case "weekday" | "said" if _says_without_capitals(item.text):
                pairs = _pairs(folded)
                return bool(pairs) and len(pairs & self._pairs) / len(pairs) >= _SAME_PAIRS
            case "decision" | "quote" | "weekday":
                return folded in self._folded or self._mostly(item.text)
            case _:
                return folded in self._folded

    def _mostly(self, text: str) -> bool:
        words = {match[0].casefold() for match in _WORD.finditer(text) if len(match[0]) > 3}
        return bool(words) and len(words & self._words) / len(words) >= _SAME
