"""
People who have asked in a conversation to be forgotten (``!forget me``). An erasure needs a gateway that does
not run, so a wish is kept in the home (``state/forget-wishes.json``) until the next start after its time, in
the coming night; `gateway.app.daemon` begins anew then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from agent_core import files

EXPORTS = "state/exporting"
"""Where exports that are asked for in conversations are put together; nothing stays there."""
EXPORT_NAME = "squidbot-export-"
"""The beginning of the name of an export that a person is sent."""
_WISHES = "state/forget-wishes.json"
_HOUR = 4
"""Of the night, when hardly anybody waits for an answer."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The addresses of who asked, the code with which they confirmed it, and when it is due (ISO)."""

    addresses: Sequence[str]
    code: str
    due: str


def coming_night(now: datetime, zone: tzinfo | None) -> datetime:
    """Return the next time at which wishes are due."""
    local = now.astimezone(zone)
    at = local.replace(hour=_HOUR, minute=0, second=0, microsecond=0)
    return at if at > local else at + timedelta(days=1)


def add_wish(home: Path, wish: Wish) -> None:
    """Keep a wish durably; one of the same person is replaced. Raises `OSError`."""
    _write(home, [*_others(home, wish.addresses), wish])


def take_back(home: Path, addresses: Collection[str]) -> bool:
    """Remove a person's wish; return False if there was none. Raises `OSError`."""
    left, before = _others(home, addresses), _read(home)
    if len(left) == len(before):
        return False
    _write(home, left)
    return True


def wish_of(home: Path, addresses: Collection[str]) -> Wish | None:
    """Return the wish of a person."""
    return next((one for one in _read(home) if set(one.addresses) & set(addresses)), None)


def end_wish(home: Path, wish: Wish) -> None:
    """Remove a wish that was carried out. Raises `OSError`."""
    take_back(home, wish.addresses)


def due_wishes(home: Path, now: datetime) -> list[Wish]:
    """Return the wishes whose time has come."""
    return [one for one in _read(home) if datetime.fromisoformat(one.due) <= now]


def next_wish_at(home: Path, after: datetime) -> datetime | None:
    """Return when the first wish is due after a time; None if there is none."""
    times = [datetime.fromisoformat(one.due) for one in _read(home)]
    return min((at for at in times if at > after), default=None)


def _others(home: Path, addresses: Collection[str]) -> list[Wish]:
    return [one for one in _read(home) if not set(one.addresses) & set(addresses)]


def _read(home: Path) -> list[Wish]:
    """A file that cannot be read says nothing; whoever wants to be forgotten asks once more."""
    try:
        found = [
            Wish(tuple(map(str, one["addresses"])), str(one["code"]), str(one["due"]))
            for one in json.loads((home / _WISHES).read_bytes())
        ]
        return [one for one in found if datetime.fromisoformat(one.due).tzinfo is not None]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _write(home: Path, wishes: Sequence[Wish]) -> None:
    path = home / _WISHES
    if wishes:
        files.replace(path, json.dumps([asdict(one) for one in wishes]).encode())
    else:
        path.unlink(missing_ok=True)
        files.sync(path.parent)
