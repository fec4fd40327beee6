"""
The origins of words, and how far they are trusted. Everything that a model is shown has origins: lines of the
history, summaries, memory documents, tool results. A text made from it has all of them, because nobody can
say which words a model has followed. Origins are stored beside the text, in fields of our own; nothing inside
a text is ever read as an origin. An origin is never lost over turns, summaries and restarts; only a person's
yes to the very thing that carries it takes it away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from enum import IntEnum
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, JsonValue, ValidationError

from agent_core.language import _, gettext_noop, show_time
from agent_core.text import one_line

KEPT = 12
"""The most origins kept for one text, the least trusted and then the newest first."""
_WHERE_CHARS = 200


class Trust(IntEnum):
    """Trust levels of words; of several, the highest number counts."""

    OWNER = 0
    """The owner's own words, or the program's."""
    KNOWN = 1
    """An allowed person's words."""
    ATTACHED = 2
    """What an allowed person has attached: a picture, a file. Anybody may have made it."""
    UNTRUSTED = 3
    """Anybody's: what was quoted, forwarded, or fetched."""


OriginKind = Literal[
    "person", "attachment", "mail", "quote", "web", "mcp", "file", "shell", "hook", "plugin", "calendar"
]
_TRUSTS = {"person": Trust.KNOWN, "attachment": Trust.ATTACHED}


class Origin(BaseModel):
    """
    One source of words other than the owner.

    ``kind`` is ``person`` for an allowed person, ``attachment`` for their file, else the way of untrusted
    words. ``where`` names the person, page, server or file. ``at`` is the arrival by our clock; None counts
    as now.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: OriginKind
    where: str = ""
    at: AwareDatetime | None = None

    @property
    def trust(self) -> Trust:
        """Return the trust level of this origin; an unknown kind is untrusted."""
        return _TRUSTS.get(self.kind, Trust.UNTRUSTED)


Origins = tuple[Origin, ...]
"""The sources of one text; empty where the owner or the program alone has written it."""
_UNREADABLE = Origin(kind="file", where="a record that cannot be read")


def person(address: str, at: datetime | None = None) -> Origin:
    """The origin of words of an allowed person who is not the owner."""
    return Origin(kind="person", where=one_line(address, _WHERE_CHARS), at=at)


def untrusted_origin(kind: OriginKind, where: str, at: datetime | None = None) -> Origin:
    """The origin of words that anybody may have written."""
    return Origin(kind=kind, where=one_line(where, _WHERE_CHARS), at=at)


def trust_of(origins: Iterable[Origin]) -> Trust:
    """The trust in a text with all of these origins."""
    return max((origin.trust for origin in origins), default=Trust.OWNER)


def join_origins(*groups: Iterable[Origin]) -> Origins:
    """
    The origins of a text made of several, each source once and at its newest.

    Of more than `KEPT` the least trusted are kept, and the newest of each trust: so the trust in the whole is
    never too high, whatever `since` takes away later.
    """
    newest: dict[tuple[str, str], Origin] = {}
    for group in groups:
        for origin in group:
            known = newest.get((origin.kind, origin.where))
            # Written out, because every line of a prompt comes here in each turn.
            if known is None or (known.at is not None and (origin.at is None or origin.at > known.at)):
                newest[origin.kind, origin.where] = origin
    order = sorted(newest.values(), key=lambda each: (-each.trust, -_time(each), each.kind, each.where))
    kept = order[:KEPT]
    known_trusts = {each.trust for each in kept}
    rest = [each for each in order[KEPT:] if each.trust not in known_trusts][:1]
    return (*kept[: KEPT - len(rest)], *rest)


def arriving(origins: Iterable[Origin], at: datetime | None = None) -> Origins:
    """
    The same sources, as what comes into a conversation at ``at``.

    What a tool gives may be older, or say so; a conversation that was called fine before has not seen it yet.
    """
    return tuple(origin.model_copy(update={"at": at}) for origin in origins)


def since(origins: Iterable[Origin], trusted_before: datetime | None) -> Origins:
    """The origins without those from before a time up to which a person has approved everything."""
    if trusted_before is None:
        return tuple(origins)
    return tuple(each for each in origins if each.at is None or each.at > trusted_before)


def to_json(origins: Iterable[Origin]) -> list[JsonValue]:
    """The origins as a list that JSON can hold."""
    return [origin.model_dump(mode="json", exclude_none=True) for origin in origins]


def from_json(value: object) -> Origins:
    """Read what `to_json` wrote; anything else counts as an untrusted source."""
    if not isinstance(value, list):
        return () if value is None else (_UNREADABLE,)
    try:
        return tuple(Origin.model_validate(each) for each in value)
    except ValidationError:
        return (_UNREADABLE,)


_of_call: ContextVar[Origins] = ContextVar("origins_of_call", default=())


def origins_of_call() -> Origins:
    """Return the origins of the current call's result: all shown sources, or none after an approval."""
    return _of_call.get()


@contextmanager
def use_origins(origins: Origins) -> Iterator[None]:
    """Inside the block, `origins_of_call` returns these."""
    token = _of_call.set(origins)
    try:
        yield
    finally:
        _of_call.reset(token)


def describe(origins: Sequence[Origin], *, most: int = 3, dated: bool = True) -> str:
    """The sources as people read them, such as ``a mail from bob@example.org, 10:02 on 22 November``."""
    told = [_origin_text(origin if dated else origin.model_copy(update={"at": None})) for origin in origins]
    left, is_all = len(told) - most, len(told) < KEPT
    if left > 0:
        more = _(" and {n} more", n=left) if is_all else _(" and at least {n} more", n=left)
    else:
        more = "" if is_all else _(" and perhaps others")
    return "; ".join(told[:most]) + more


_NAMES = {
    "person": gettext_noop("words of {name}"),
    "mail": gettext_noop("a mail from {name}"),
    "quote": gettext_noop("words of {name} that were quoted"),
    "web": gettext_noop("the page {name}"),
    "mcp": gettext_noop("the server {name}"),
    "attachment": gettext_noop("the file {name}"),
    "file": gettext_noop("the file {name}"),
    "shell": gettext_noop("the output of {name}"),
    "hook": gettext_noop("the hook {name}"),
    "plugin": gettext_noop("the plugin {name}"),
    "calendar": gettext_noop("the calendar of {name}"),
}
_UNNAMED = {
    ("mail", "somebody else"): gettext_noop("a mail that somebody else wrote"),
    ("mail", "this assistant"): gettext_noop(
        "words of mine that were quoted, and whose source I no longer know"
    ),
    ("quote", "this assistant"): gettext_noop(
        "words of mine that were quoted, and whose source I no longer know"
    ),
    ("mail", "somebody"): gettext_noop("words that were quoted in a mail"),
    ("quote", "somebody else"): gettext_noop("words of somebody else that were quoted"),
    ("quote", "somebody"): gettext_noop("words that were quoted"),
    ("file", "somebody else"): gettext_noop("a file that somebody else sent"),
    ("attachment", "somebody else"): gettext_noop("a file that somebody else sent"),
    ("file", "a record that cannot be read"): gettext_noop("a record that cannot be read"),
    ("shell", "a watch"): gettext_noop("the output of a watch"),
    ("hook", "check-ins"): gettext_noop("what earlier check-ins had found"),
}
"""Where the place is no name but words of ours."""
_STARTED_BY = {
    "the webhook ": gettext_noop("the webhook {name}"),
    "the background job ": gettext_noop("the background job {name}"),
}
_OUTPUT = gettext_noop("the output of the background job {name}")


def _origin_text(origin: Origin) -> str:
    # One line, and no character in it that could end a quotation of ours or turn the direction of text.
    where = "".join(char for char in origin.where if char.isprintable() and char != "`").strip() or "unknown"
    what, name = _NAMES[origin.kind], where
    if origin.kind == "file" and where.endswith("/"):
        what = gettext_noop("names in the folder {name}")
    for ours, started_by in _STARTED_BY.items():
        if origin.kind in ("hook", "shell") and where.startswith(ours):
            name = where.removeprefix(ours)
            what = _OUTPUT if origin.kind == "shell" else started_by
    unnamed = _UNNAMED.get((origin.kind, where))
    named = _(unnamed) if unnamed else _(what, name=f"`{name}`")
    at = origin.at.astimezone() if origin.at else None  # as all times that people see
    return f"{named}, {show_time(at, gettext_noop('%H:%M %Z on %-d %B'))}" if at else named


def _time(origin: Origin) -> float:
    return origin.at.timestamp() if origin.at else math.inf
