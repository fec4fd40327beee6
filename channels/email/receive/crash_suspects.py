"""
Remembers which mail was being read when the process died, so that a mail that crashes its reader does not do
so at each start. A file names what is in flight at this moment; it is written without waiting for the disk,
because it must only outlast the process. What it names at a start was in flight at a death. After
`MAX_DEATHS` of them a mail is taken in as unreadable. Its header is still read once, so that its sender can
be told; after one death more nothing of it is.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import structlog

MAX_DEATHS = 3
_MOST = 1_000
_log = structlog.get_logger(__name__)


class CrashSuspects:
    """The crash suspects of one account."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._in_flight: Counter[str] = Counter()
        self._deaths: dict[str, int] = {}
        self._loaded = False

    def load(self) -> None:
        """Read, once, which mails were in flight when the last process ended. Never fails."""
        if self._loaded:
            return
        self._loaded = True
        try:
            known = json.loads(self._file.read_text())
            self._deaths = {str(name): int(count) for name, count in known["deaths"].items()}
            killers = [str(name) for name in known["in_hand"]]
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            _log.warning("mail.crash_suspects_unreadable", file=str(self._file), error=type(error).__name__)
            return
        for name in killers:
            self._deaths[name] = self._deaths.get(name, 0) + 1
            _log.warning("mail.crash_suspected", mail=name, deaths=self._deaths[name])
        self._write()

    def deaths(self, name: str) -> int:
        """During how many deaths a mail was in flight."""
        return self._deaths.get(name, 0)

    @contextmanager
    def in_flight(self, name: str) -> Generator[None]:
        """Mark a mail as in flight inside the block. For any thread."""
        with self._lock:
            self._in_flight[name] += 1
            self._write()
        try:
            yield
        finally:
            with self._lock:
                self._in_flight[name] -= 1
                self._in_flight += Counter()  # without what is at 0
                self._write()

    def through(self, names: Iterable[str]) -> None:
        """Clear these mails, which were accepted: their deaths mean nothing more."""
        with self._lock:
            if [self._deaths.pop(name) for name in names if name in self._deaths]:
                self._write()

    def _write(self) -> None:
        deaths = dict(list(self._deaths.items())[-_MOST:])
        try:
            if not deaths and not self._in_flight:
                self._file.unlink(missing_ok=True)
                return
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self._file.with_suffix(".new")
            draft.write_text(json.dumps({"in_hand": list(self._in_flight), "deaths": deaths}))
            draft.replace(self._file)
        except OSError as error:
            _log.warning("mail.crash_suspects_not_kept", file=str(self._file), error=type(error).__name__)
