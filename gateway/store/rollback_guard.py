"""
Detects an older copy in place of the database, by recording outside of it how far it was. Servers would
deliver again what a copy lacks, and the bot would answer twice, so a start is refused until the operator
accepts it (`squidbot restored`). `squidbot restore` knows the interval in which the lost gateway ran:
messages of that `Gap` wait for a person. A missing or older mark only notices less.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import structlog
from pydantic import TypeAdapter, ValidationError

from agent_core.ports import Clock
from gateway.errors import ConfigInvalid
from gateway.store.store_errors import StoreUnavailable

_EVERY_S = 60.0
_KNOWN_FOR = timedelta(days=7)
_GAP_FOR = timedelta(days=90)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Extent:
    """The identity of a database (not secret), and its highest ids of messages and of answers."""

    identity: str
    inbox: int
    outbox: int

    @classmethod
    def from_counts(cls, secret: str, inbox: int, outbox: int) -> Extent:
        """Return the extent of the database with this secret."""
        return cls(hashlib.sha256(f"mark\0{secret}".encode()).hexdigest()[:16], inbox, outbox)


@dataclass(frozen=True, slots=True)
class Gap:
    """The interval from a backup to the latest moment at which the lost gateway can have run."""

    since: datetime
    until: datetime

    def covers(self, instant: datetime) -> bool:
        """
        Return True if a message of this time that the backup lacks may have been answered.

        Times before the backup count, too: the message may have been fetched after it, and mail dates are in
        whole seconds.
        """
        return instant <= self.until


@dataclass(frozen=True, slots=True)
class HighWaterMark:
    """The extent, its time, and the last found older copy; ``gap`` is set after a restore."""

    extent: Extent
    at: datetime
    older_since: datetime | None = None
    told: str = ""
    gap: Gap | None = None


_MARK = TypeAdapter(HighWaterMark)


def read_high_water_mark(path: Path) -> HighWaterMark | None:
    """Read the last recorded mark; None if there is none, or it is unreadable."""
    try:
        return _MARK.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def older_copy(mark: HighWaterMark | None, now: Extent) -> str | None:
    """Describe the problem for the operator if the database is behind the mark; return None if it is not."""
    if mark is None or (mark.extent.identity == now.identity and mark.extent.inbox <= now.inbox):
        return None
    known = f"On {mark.at:%Y-%m-%d %H:%M} UTC it had {mark.extent.inbox} messages"
    if mark.extent.identity != now.identity and not (now.inbox or now.outbox):
        # It has no position either, so every channel begins as at a first start.
        return (
            f"The database of the queue is gone, and a new one was begun. {known}. What waited in it, "
            "and what has come since, is not answered any more: whoever wrote it must write again. "
            "Histories and memory are as they were."
        )
    if mark.extent.identity != now.identity:
        was = f"The database of the queue is another one than before. {known}, now it has {now.inbox}."
    else:
        was = f"The database of the queue is an older copy. {known}, now it has {now.inbox}."
    return (
        f"{was} What it does not know of would be answered once more. Accept it with `squidbot restored`: "
        "what may have been answered waits for you then. Or bring a backup back with `squidbot restore`."
    )


def warning_of(path: Path, now: datetime) -> str | None:
    """Return the check's warning about an older copy that was found in the last days."""
    mark = read_high_water_mark(path)
    if mark is None or mark.older_since is None or now - mark.older_since > _KNOWN_FOR:
        return None
    return f"{mark.told} (found on {mark.older_since:%Y-%m-%d %H:%M} UTC)"


class RollbackGuard:
    """Checks once at the start, and records the extent from then on."""

    def __init__(self, path: Path, extent: Callable[[], Awaitable[Extent]], clock: Clock) -> None:
        self._path = path
        self._extent = extent
        self._clock = clock
        self._gap: Gap | None = None
        self._mark: HighWaterMark | None = None

    async def check(self, gap: Gap | None = None, *, refuses: bool = False) -> str | None:
        """Return and log a warning about an older copy. Raises ConfigInvalid if ``refuses`` is set."""
        self._gap = gap
        mark, extent, now = read_high_water_mark(self._path), await self._extent(), self._clock.now()
        told = older_copy(mark, extent)
        since, text = (mark.older_since, mark.told) if mark is not None else (None, "")
        own = mark.gap if mark is not None else None
        if own is not None and now - own.until > _GAP_FOR:
            own = None  # no server still has unfetched messages of that time
        if told is not None:
            if refuses and (extent.inbox or extent.outbox):
                raise ConfigInvalid(told)
            _log.warning("rollback_guard.older_copy_found", detail=told)
            since, text = now, told
        self._mark = HighWaterMark(extent, now, since, text, own)
        self._write(self._mark)
        return told

    @property
    def is_checked(self) -> bool:
        """Return True if the database was accepted at the start."""
        return self._mark is not None

    async def run(self) -> None:
        """Record the extent every minute."""
        while True:
            await anyio.sleep(_EVERY_S)
            await self.note()

    async def check_as_standby(self) -> None:
        """Record the extent while another process works; an older copy is left to `check`."""
        while True:
            with suppress(StoreUnavailable):
                mark, extent = read_high_water_mark(self._path), await self._extent()
                if older_copy(mark, extent) is None:
                    self._record(extent, mark)
            await anyio.sleep(_EVERY_S)

    async def note(self) -> None:
        """Record the current extent, if the database was accepted."""
        if self._mark is not None:
            with suppress(StoreUnavailable):
                self._mark = self._record(await self._extent(), self._mark)

    def _record(self, extent: Extent, last: HighWaterMark | None) -> HighWaterMark:
        if last is not None and last.extent == extent:
            return last
        mark = HighWaterMark(
            extent,
            self._clock.now(),
            last.older_since if last else None,
            last.told if last else "",
            last.gap if last else None,
        )
        self._write(mark)
        return mark

    def may_have_answered(self, sent_at: datetime) -> bool:
        """Return True if the gateway whose data is lost may have answered a message of this time."""
        own = self._mark.gap if self._mark is not None else None
        return any(gap is not None and gap.covers(sent_at) for gap in (own, self._gap))

    def _write(self, mark: HighWaterMark) -> None:
        try:
            _write(self._path, mark)
        except OSError as error:
            _log.info("rollback_guard.not_written", path=str(self._path), error=str(error))


def write_restore(
    path: Path, extent: Extent, *, made_at: datetime | None, now: datetime, gap: Gap | None
) -> None:
    """Record a restore or, without ``made_at``, an accepted older copy. Raises OSError."""
    of = (
        "was an older copy"
        if made_at is None
        else f"was restored from a backup of {made_at:%Y-%m-%d %H:%M} UTC"
    )
    told = f"The database of the queue {of}."
    if gap is not None:
        told += (
            f" Messages of the time until {gap.until:%Y-%m-%d %H:%M} UTC that are not in it may have "
            "been answered by what was lost: they are kept and not answered by themselves; squidbot inbox "
            "list --quarantine shows them, squidbot inbox release ID lets one in"
        )
    _write(path, HighWaterMark(extent, now, now if gap is not None else None, told, gap))


def _write(path: Path, mark: HighWaterMark) -> None:
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(mark), file, default=datetime.isoformat)
    new.replace(path)
