"""
People who have asked in a conversation to be forgotten (``!forget me``). An erasure needs a gateway that does
not run, so a request is kept in the home (``state/erasure-requests.json``) until the next start after its
time, in the coming night; `gateway.app.daemon` restarts then.
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
_FILE = "state/erasure-requests.json"
_HOUR = 4
"""Of the night, when hardly anybody waits for an answer."""


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """The addresses of who asked, the code with which they confirmed it, and when it is due (ISO)."""

    addresses: Sequence[str]
    code: str
    due: str


def next_night(now: datetime, zone: tzinfo | None) -> datetime:
    """Return the next time at which requests are due."""
    local = now.astimezone(zone)
    at = local.replace(hour=_HOUR, minute=0, second=0, microsecond=0)
    return at if at > local else at + timedelta(days=1)


def add_request(home: Path, request: ErasureRequest) -> None:
    """Keep a request durably; one of the same person is replaced. Raises `OSError`."""
    _write(home, [*_others(home, request.addresses), request])


def withdraw(home: Path, addresses: Collection[str]) -> bool:
    """Remove a person's request; return False if there was none. Raises `OSError`."""
    left, before = _others(home, addresses), _read(home)
    if len(left) == len(before):
        return False
    _write(home, left)
    return True


def request_of(home: Path, addresses: Collection[str]) -> ErasureRequest | None:
    """Return the request of a person."""
    return next((one for one in _read(home) if set(one.addresses) & set(addresses)), None)


def due_requests(home: Path, now: datetime) -> list[ErasureRequest]:
    """Return the requests whose time has come."""
    return [one for one in _read(home) if datetime.fromisoformat(one.due) <= now]


def next_due(home: Path, after: datetime) -> datetime | None:
    """Return when the first request is due after a time; None if there is none."""
    times = [datetime.fromisoformat(one.due) for one in _read(home)]
    return min((at for at in times if at > after), default=None)


def _others(home: Path, addresses: Collection[str]) -> list[ErasureRequest]:
    return [one for one in _read(home) if not set(one.addresses) & set(addresses)]


def _read(home: Path) -> list[ErasureRequest]:
    """A file that cannot be read says nothing; whoever wants to be forgotten asks once more."""
    try:
        found = [
            ErasureRequest(tuple(map(str, one["addresses"])), str(one["code"]), str(one["due"]))
            for one in json.loads((home / _FILE).read_bytes())
        ]
        return [one for one in found if datetime.fromisoformat(one.due).tzinfo is not None]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _write(home: Path, requests: Sequence[ErasureRequest]) -> None:
    path = home / _FILE
    if requests:
        files.replace(path, json.dumps([asdict(one) for one in requests]).encode())
    else:
        path.unlink(missing_ok=True)
        files.sync(path.parent)
