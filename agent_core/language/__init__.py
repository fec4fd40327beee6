"""
The language of what squidbot itself says in conversations: texts, plurals, dates and numbers.

The English text is the key, and ``de.po`` beside this file has the German one; what is missing there is
English. A text is made in the language of its reader when it is written: `use_language` sets that of a home,
which is the owner's, for the tasks of its gateway, and `speaking` that of one person inside of them; the
control socket and the console are English, as is the log. Templates are literals, and what others wrote is
only ever a value of one, so no text of theirs is read as a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cache, wraps
from gettext import GNUTranslations, NullTranslations
from io import BytesIO
from pathlib import Path
from typing import ParamSpec, TypeVar

ENGLISH = "en"
_Given = ParamSpec("_Given")
_Text = TypeVar("_Text")
_FOLDER = Path(__file__).parent
_of_home: ContextVar[str] = ContextVar("home_language", default=ENGLISH)
_of_reader: ContextVar[str] = ContextVar("language", default="")


@contextmanager
def use_language(language: str) -> Iterator[None]:
    """Let a home have a language, such as ``de``, in the block and the tasks that it starts."""
    token = _of_home.set(language)
    try:
        yield
    finally:
        _of_home.reset(token)


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Make texts in a language in the block and the tasks that it starts; empty: in that of the home."""
    token = _of_reader.set(language)
    try:
        yield
    finally:
        _of_reader.reset(token)


def for_owner(make: Callable[_Given, _Text]) -> Callable[_Given, _Text]:
    """Let a function make its text in the language of the home, whoever's turn calls it."""

    @wraps(make)
    def run(*args: _Given.args, **kwargs: _Given.kwargs) -> _Text:
        with speaking(""):
            return make(*args, **kwargs)

    return run


def chosen_language() -> str:
    """The language that `speaking` has set; empty: that of the home."""
    return _of_reader.get()


def check_code(value: str) -> str:
    """Return a language as the settings have it; empty: that of the home. Raises ValueError."""
    if value and re.fullmatch("[a-z]{2,3}", value) is None:
        raise ValueError(f"{value!r} is no language; write its two letters, such as de or en")
    return value


def languages() -> list[str]:
    """The languages that have texts."""
    return sorted({ENGLISH, *(path.stem for path in _FOLDER.glob("*.po"))})


def environment_language(environ: Mapping[str, str]) -> str:
    """Return the language of a person's environment if it has texts other than English, else nothing."""
    locale = next(filter(None, map(environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    code = re.split(r"[_.@]", locale)[0]
    return code if code in languages() and code != ENGLISH else ""


def gettext(text: str, /, **values: object) -> str:
    """Return a text in the language of the conversation, with ``values`` for its named placeholders."""
    told = _catalogue(_of_reader.get() or _of_home.get()).gettext(text) if text else text
    return told.format(**values) if values else told


_ = gettext
"""The usual short name of it."""


def ngettext(one: str, many: str, n: int, /, **values: object) -> str:
    """Do `gettext`, for a number of things; the texts may name it as ``{n}``."""
    return (
        _catalogue(_of_reader.get() or _of_home.get())
        .ngettext(one, many, n)
        .format(n=show_number(n), **values)
    )


def gettext_noop(text: str) -> str:
    """Return a text as it is: it is in the catalogue, and `gettext` translates it where it is used."""
    return text


def show_time(at: datetime, pattern: str) -> str:
    """Return a time by a pattern of ``strftime``, itself a text of the catalogue, with translated names."""
    shown = _(pattern).replace("%-d", str(at.day)).replace("%Z", _(at.tzname() or ""))
    for name in ("%a", "%A", "%b", "%B"):
        shown = shown.replace(name, _(at.strftime(name)))
    return at.strftime(shown)


def show_number(number: float, digits: int = 0) -> str:
    """Return a number with separators of thousands, and so many digits behind the point."""
    return f"{number:,.{digits}f}".translate(str.maketrans(",.", _(",.")))


def list_of(parts: Sequence[str], word: str = " and ") -> str:
    """Return ``a, b and c``; ``word`` is " and " or " or "."""
    return _(word).join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


@cache
def _catalogue(language: str) -> NullTranslations:
    if not (_FOLDER / f"{language}.po").is_file():
        return NullTranslations()
    import polib  # noqa: PLC0415 - English needs none of it

    return GNUTranslations(BytesIO(polib.pofile(str(_FOLDER / f"{language}.po")).to_binary()))
