"""
The words of `time_grammar`, in English and German: the tokenizer, and tables of phrases and what they mean.
Phrases are written in small letters and without umlauts (``fuenf``), as the tokenizer gives them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from agent_core.language import gettext_noop

_T = TypeVar("_T")
_TOKEN = re.compile(
    r"(?P<instant>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"(?![\w:]|\s?[ap]\.?m\b))"
    r"|(?P<date>\d{4}-\d\d-\d\d(?:T(?=\d)|(?![\w-]))"
    r"|\d{1,2}\.\s?\d{1,2}\.(?:\s?\d{4}|\d\d)?(?!\w)|\d{1,2}/\d{1,2}/\d{4}(?!\w))"
    r"|(?P<clock>\d{1,2}[:.]\d\d(?![:.]?\d))"
    r"|(?P<number>\d{1,6}(?:\.\d{1,3}|,\d)?(?![:.,]?\d))"
    r"|(?P<word>[ap]\.m\b\.?"
    r"|(?:(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch|sonnabend)"
    r"(?=(?:morgen|mittag|abend|früh|(?:vor|nach)mittag)\b)"
    r"|[^\W\d_]+(?:['’][^\W\d_]+)?)"
    r"|(?P<mark>[^\s,])",
    re.IGNORECASE,
)
MAX_TOKENS = 60
"""No time is longer; a text behind it is not looked at."""
_AS_IN_TABLES = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", ".": None})


class Token(NamedTuple):
    """A part of a text, in small letters; ``is_glued``: there is nothing between it and the one before."""

    kind: str
    text: str
    start: int
    end: int
    has_comma: bool = False
    is_glued: bool = False


NOTHING = Token("", "", 0, 0)


def tokens_of(text: str) -> list[Token]:
    """The first parts of a text, enough for any time."""
    found: list[Token] = []
    end = 0
    for each in islice(_TOKEN.finditer(text), MAX_TOKENS):
        said, gap = each[0].lower(), text[end : each.start()]
        word = said.translate(_AS_IN_TABLES) if each.lastgroup == "word" else said
        found.append(Token(each.lastgroup or "", word, *each.span(), "," in gap, bool(end) and not gap))
        end = each.end()
    return found


def _table(lines: Mapping[_T, str]) -> dict[str, _T]:
    """The value of each phrase; ``|`` separates them."""
    return {phrase: value for value, phrases in lines.items() for phrase in phrases.split("|")}


def _set(phrases: str) -> frozenset[str]:
    return frozenset(phrases.split("|"))


WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAY_NAMES = _table(
    {
        0: "monday|mon|montag", 1: "tuesday|tue|tues|dienstag", 2: "wednesday|wed|mittwoch",
        3: "thursday|thu|thur|thurs|donnerstag", 4: "friday|fri|freitag", 5: "saturday|sat|samstag|sonnabend",
        6: "sunday|sun|sonntag",
    }
)  # fmt: skip
SHORT_GERMAN = {"mo": 0, "di": 1, "mi": 2, "do": 3, "fr": 4, "sa": 5, "so": 6}
SHORT_DAYS = frozenset(name for name in DAY_NAMES if len(name) < 6).union(SHORT_GERMAN)
_DAY_SETS = _table(
    {
        (0, 1, 2, 3, 4): "weekday|work day|workday|working day|werktag|wochentag",
        (5, 6): "weekend|wochenende",
    }
)
_EACH: dict[str, tuple[int, ...]] = {name: (day,) for name, day in DAY_NAMES.items()} | _DAY_SETS
PLURALS = {f"{name}s": days for name, days in _EACH.items() if name not in SHORT_DAYS | {"wochenende"}}
EACH_DAYS = _EACH | PLURALS
DAY_NAMES |= SHORT_GERMAN
ENDS_OF_RANGES = DAY_NAMES | {name: days[0] for name, days in PLURALS.items() if len(days) == 1}
MONTHS = _table(
    {
        1: "january|jan|januar", 2: "february|feb|februar", 3: "march|mar|maerz", 4: "april|apr",
        5: "may|mai", 6: "june|jun|juni", 7: "july|jul|juli", 8: "august|aug", 9: "september|sep|sept",
        10: "october|oct|oktober|okt", 11: "november|nov", 12: "december|dec|dezember|dez",
    }
)  # fmt: skip
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
UNITS = _table(
    {
        "s": "s|sec|secs|second|seconds|sek|sekunde|sekunden",
        "m": "m|min|mins|minute|minutes|minuten",
        "h": "h|hr|hrs|hour|hours|std|stunde|stunden",
        "d": "d|day|days|tag|tage|tagen",
        "w": "w|week|weeks|woche|wochen",
    }
)
HOURS = _table(
    {
        1: "one|eins|ein uhr", 2: "two|zwei", 3: "three|drei", 4: "four|vier", 5: "five|fuenf",
        6: "six|sechs", 7: "seven|sieben", 8: "eight|acht", 9: "nine|neun", 10: "ten|zehn", 11: "eleven|elf",
        12: "twelve|zwoelf",
    }
)  # fmt: skip
COUNTS = {word: float(hour) for word, hour in HOURS.items()} | _table(
    {
        1.0: "a|an|ein|eine|einer|einem|einen", 1.5: "anderthalb|eineinhalb", 2.5: "zweieinhalb",
        15.0: "fifteen|fuenfzehn", 20.0: "twenty|zwanzig", 25.0: "twenty five|fuenfundzwanzig",
        30.0: "thirty|dreissig", 40.0: "forty|vierzig", 45.0: "forty five|fuenfundvierzig",
    }
)  # fmt: skip
MONTHS_AHEAD = _table({1: "month|months|monat|monate|monaten", 12: "year|years|jahr|jahre|jahren"})
MONTH_UNITS = MONTHS_AHEAD | _table(
    {3: "quarter|quarters|quartal|quartale|vierteljahr", 6: "half year|halbe jahr|halbes jahr|halbjahr"}
)
HALF_A_YEAR = _table({6: "half a year|half year|halben jahr|einem halben jahr"})
SPANS = _table(
    {
        900.0: "quarter of an hour|a quarter of an hour|viertelstunde|einer viertelstunde",
        1800.0: "half an hour|half hour|a half hour|halbe stunde|halben stunde|einer halben stunde",
        2700.0: "three quarters of an hour|dreiviertelstunde|einer dreiviertelstunde",
    }
)
AND_HALF = _table({0.5: "and a half|und eine halbe"})
ADVERBS = _table({"h": "hourly|stuendlich", "d": "daily|taeglich", "w": "weekly|woechentlich"})

MORNING, AFTERNOON, EVENING = (9, 0), (15, 0), (20, 0)
PARTS = _table(
    {
        MORNING: "morning|morgen|frueh|vormittag",
        AFTERNOON: "afternoon|nachmittag",
        EVENING: "evening|night|abend",
    }
)
EARLIEST = {MORNING: 0, AFTERNOON: 12, EVENING: 17}
"""The first hour that a part of the day can mean; before it an hour without am and pm means none."""
PARTS_ALONE = _table(
    {
        MORNING: "in the morning|am morgen|am vormittag",
        AFTERNOON: "in the afternoon|am nachmittag",
        EVENING: "in the evening|at night|am abend",
    }
)
TRAILING_PARTS = {phrase: EARLIEST[part] for phrase, part in PARTS_ALONE.items()}
TRAILING_PARTS |= _table({0: "morgens|frueh|vormittags", 12: "nachmittags", 17: "abends"})
PARTS_OF_TODAY = _table(
    {MORNING: "this morning", AFTERNOON: "this afternoon", EVENING: "tonight|this evening|heute abend"}
)
FROM_TODAY = _table(
    {
        0: "today|heute",
        1: "tomorrow|tmrw|tmr|morgen",
        2: "day after tomorrow|the day after tomorrow|uebermorgen",
    }
)
NEXT_WEEK = _table({7: "next week|naechste woche|naechster woche|kommende woche"})
NEXT_MONTH = _table({1: "next month|naechsten monat|naechster monat|kommenden monat"})
WHICH = _table(
    {
        "next": "next|naechste|naechsten|naechster|naechstes",
        "": "this|coming|diese|diesen|dieser|kommende|kommenden|kommender",
    }
)
NAMED_TIMES = _table({(12, 0): "noon|midday|mittag|mittags", (24, 0): "midnight|mitternacht"})
TO_THE_HOUR = _table(
    {
        30: "half past", -30: "halb", 15: "quarter past|a quarter past|quarter after|viertel nach",
        -15: "quarter to|a quarter to|viertel vor",
    }
)  # fmt: skip
PAST, BEFORE = _table({1: "past|nach|minutes past|minuten nach"}), _table({-1: "to|vor"})
MINUTES_BEFORE = _table({-1: "minutes to|minuten vor"})
HALVES, OCLOCK = _table({"a": "am", "p": "pm"}), _table({True: "uhr|o'clock|o’clock|oclock"})

IN, AT, ON, OF = _set("in"), _set("at|um"), _set("on|am"), _set("of")
AND = _set("and|und|&")
EVERY = _set("every|each|jede|jeder|jedes|jeden|alle")
OTHER = _set("other|second|zweite|zweiten|zweiter|zweites")
DAY = _set("day|tag")
NTH_NAMES = {
    1: gettext_noop("first"),
    2: gettext_noop("second"),
    3: gettext_noop("third"),
    4: gettext_noop("fourth"),
    5: gettext_noop("fifth"),
    -1: gettext_noop("last"),
}
NTH = _table(
    {
        1: "first|erste|ersten|erster|erstes", 2: "second|zweite|zweiten|zweiter|zweites",
        3: "third|dritte|dritten|dritter|drittes", 4: "fourth|vierte|vierten|vierter|viertes",
        5: "fifth|fuenfte|fuenften|fuenfter|fuenftes", -1: "last|letzte|letzten|letzter|letztes",
    }
)  # fmt: skip
MONTHS_BETWEEN = _table(
    {
        1: "monthly|monatlich",
        3: "quarterly|vierteljaehrlich|quartalsweise",
        6: "half yearly|half - yearly|halbjaehrlich",
        12: "yearly|annually|jaehrlich",
    }
)
OF_THE_MONTH = _table(
    {True: "of the month|of month|in the month|of this month|des monats|im monat|dieses monats"}
)
OF_EACH_MONTH = _table(
    {
        True: "of every month|of each month|in every month|in each month|every month|each month"
        "|jedes monats|jeden monats|eines jeden monats|jeden monat|in jedem monat"
    }
)
EXCEPT = _set("except|but|ausser")
"""Before days that are left out."""
DASHES = _set("bis|-|–")
THROUGH = DASHES | _set("to|through|thru")
"""Between the first and the last of several days."""
ORDINALS = _set("st|nd|rd|th")
JOINS = AND | _set(":|or|until|till|to|at|from|for|between|oder|bis|um|ab|zwischen|-|–|+|/")
"""Before a number behind a time, which is then a part of the time."""
LEADS = JOINS | _set("in|on|am|of|through|starting|except|von|vor|nach|fuer|ausser")
ARTICLES = _set("the|den|dem|a|an|next|this")
FROM_NOW = _table({True: "from now|from now on|ab jetzt|von jetzt an"})
NO_SPAN = _set("of|from|before|after|ago|later|long|vor|nach|lang|spaeter")
"""Behind ``5 minutes``, which is then no time from now."""
INTRODUCTORY_WORDS = _set("that|about|dass")
TIME_OF_A_PLACE = _set("time|zeit")
"""Behind the name of a place: "9am London time", "9 Uhr Londoner Zeit"."""
TIME_WORDS = _set(
    "so|half|halb|quarter|viertel|month|months|monat|monats|past|ago|nacht|nachts"
    "|yesterday|gestern|someday|advent|weihnachtstag|weihnachtsfeiertag|feiertag"
    "|utc|gmt|z|cet|cest|mez|mesz|bst|est|edt|cst|cdt|mst|mdt|pst|pdt|ist"
).union(
    EACH_DAYS,
    EVERY,
    ADVERBS,
    MONTHS_BETWEEN,
    FROM_TODAY,
    NAMED_TIMES,
    PARTS,
    TRAILING_PARTS,
    PARTS_OF_TODAY,
    OCLOCK,
)
"""Behind a time, they may belong to it."""
BEFORE_A_TIME = LEADS.union(
    ARTICLES,
    _set(
        "about|around|by|before|after|since|within|every|last|past|gegen|circa|ca|seit|ueber|zum|vom|zur|letzten|der|die|das"
    ),
)
"""A text that ends in one is not over before the time behind it: "tickets for friday"."""
_NOT_IN_A_TEXT = TIME_WORDS.union(MONTHS_AHEAD, (unit for unit in UNITS if len(unit) > 2))


def is_of_a_time(word: str) -> bool:
    """Return True for a word that may belong to a time behind it ("twice a day at 9"), also with a slip."""
    return word in _NOT_IN_A_TEXT or (
        len(word) > 5 and bool(get_close_matches(word, _NOT_IN_A_TEXT, 1, 0.83))
    )


@cache
def zones_by_name() -> Mapping[str, str]:
    """
    The zones of the time zone database by their names and those of their places, in small letters.

    Empty: there are several of this name, which do not go by the same time.
    """
    found: dict[str, str] = {}
    for zone in files("tzdata").joinpath("zones").read_text("utf-8").split():
        name = zone.lower()
        place = name.rpartition("/")[2].replace("_", " ")
        found[name] = zone
        if place != name:
            other = found.setdefault(place, zone)
            found[place] = zone if other == zone or _offsets(zone) == _offsets(other) else ""
    return found


def _offsets(zone: str) -> tuple[timedelta | None, ...]:
    return (
        tuple(datetime(2026, month, 1, tzinfo=ZoneInfo(zone)).utcoffset() for month in (1, 7)) if zone else ()
    )
