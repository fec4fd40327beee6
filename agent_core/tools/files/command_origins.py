"""
Determines whose words the output of a command can contain: those in the files that it could read. The
workspace is scanned before and after (`CommandFiles.begin`, `CommandFiles.end`): what is new or different is
the command's, made of all that it could read. Concurrent commands and file tools count too; a foreign program
writing meanwhile cannot be told apart. Files are known by content, read again when their inode's marks
change. Writes through a mapped page may not change these (never on tmpfs), so scans beside a running command,
and files on such disks (`_tells_changes`), are not remembered. Blocks.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog

from agent_core.provenance import Origins, join_origins, untrusted_origin
from agent_core.tools.files.change_journal import ChangeJournal
from agent_core.workspace import is_of_prompt

_MOST_ENTRIES = 20_000
_MOST_HASHED_BYTES = 1_000_000_000
_LARGE_BYTES = 50_000_000
_TICK_NS = 50_000_000
"""Two changes of a file that are closer together may bear the same time."""
_MOST_TOLD = 20
_FOLDER = "folder"
_TOO_MUCH = "more than can be looked at"
_log = structlog.get_logger(__name__)


class TooMuchError(Exception):
    """More than is looked at."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One entry: ``identity`` stands for what it holds, empty if nobody can say; ``known`` is its label."""

    path: str
    identity: str
    mine: bool
    known: Origins | None


@dataclass(slots=True, eq=False)
class WorkspaceScan:
    """A command that runs: the words that it was made of, and the ``label`` of what it can have read."""

    words: Origins
    label: Origins = ()
    strange: frozenset[tuple[str, str]] | None = None
    """What nobody knew at the start; None: that could not be found out."""
    told: list[Origins] = field(default_factory=list)
    """What others have written meanwhile."""
    beside: list[WorkspaceScan] | None = field(default_factory=list)
    """The commands that have run while this one was looking around at its start; None: that is over."""

    def has_made(self, one: _Seen) -> bool:
        """Return True if an unknown file has appeared since this command began."""
        if one.known is not None or not one.mine or self.strange is None:
            return False
        return (one.path, one.identity) not in self.strange


class CommandFiles:
    """
    The workspace as commands can read it, for all conversations.

    ``journal`` knows earlier writers; the origins of files in ``outside`` are unknown.
    """

    def __init__(
        self,
        workspace: Path,
        journal: ChangeJournal,
        *,
        outside: Sequence[str] = (),
        now: Callable[[], datetime],
    ) -> None:
        self.workspace = str(workspace)
        self._journal = journal
        self.outside = outside
        self._now = now
        self._lock = threading.Lock()
        self._running: list[WorkspaceScan] = []
        self._begun_count = 0
        self._telling: dict[int, bool] = {}
        self._cache: dict[str, tuple[tuple[int, ...], str]] = {}

    def begin(self, words: Origins) -> WorkspaceScan:
        """Before a command, whose text is made of these words. `end` must follow."""
        look = WorkspaceScan(words, words)
        self._journal.watch(look.told)
        with self._lock:
            look.beside = list(self._running)
            look.told += [join_origins(other.label, *other.told) for other in self._running]
            self._label_others(words)
            for other in self._running:
                if other.beside is not None:
                    other.beside.append(look)
            self._running.append(look)
            self._begun_count += 1
        try:
            label = self._begun(look)
        except BaseException:
            with self._lock:
                self._forget(look, unknown(_TOO_MUCH, self._now()))
            raise
        with self._lock:
            look.label, look.beside = label, None
            self._label_others(label, but=look)
        return look

    def _begun(self, look: WorkspaceScan) -> Origins:
        found = self._scanned()
        at = self._now()
        label = join_origins(look.words, *(unknown(folder, at) for folder in self.outside))
        if found is None:
            return join_origins(label, unknown(_TOO_MUCH, at))
        look.strange = frozenset((each.path, each.identity) for each in found if each.known is None)
        beside = tuple(look.beside or ())
        # What has come while another command runs is that one's, whose words are counted already.
        count = (each for each in found if not any(other.has_made(each) for other in beside))
        return join_origins(label, self._label_of(count, at))

    def end(self, look: WorkspaceScan) -> Origins:
        """After it, when nothing of it runs any more: whose words are in its output and its files."""
        at = self._now()
        found: list[_Seen] | None = None
        made: dict[str, str] = {}
        seen = unknown(_TOO_MUCH, at)
        labels = self._journal.labels
        noted = labels.noted
        try:
            found = self._scanned()
            if found is not None and look.strange is not None:
                new = [each for each in found if (each.path, each.identity) not in look.strange]
                seen = self._label_of((each for each in new if each.known is not None or not each.mine), at)
                made = {each.path: each.identity for each in new if each.known is None and each.mine}
        finally:
            # Whatever happens: what comes later must not count as made by this one. And nothing begins before
            # what it has made is known as such.
            with self._lock:
                label = self._forget(look, seen)
                try:
                    if found is not None:
                        labels.keep_only({each.path for each in found}, seen=noted)
                    labels.note({path: what for path, what in made.items() if what}, label)
                except OSError as error:
                    _log.warning("files.labels_not_kept", reason=error.strerror or str(error))
        return label

    def note_other_writer(self, look: WorkspaceScan, words: Origins) -> None:
        """While it runs: whose words it is about to get from elsewhere, before it can write them anywhere."""
        with self._lock:
            look.told.append(words)
            self._label_others(words, but=look)

    def _forget(self, look: WorkspaceScan, seen: Origins) -> Origins:
        """Drop a command that has ended; return what it can have read, and others from it."""
        self._journal.unwatch(look.told)
        self._running.remove(look)
        others = [join_origins(other.label, *other.told) for other in self._running]
        label = join_origins(look.label, seen, *look.told, *others)
        self._label_others(label)
        return label

    def _label_others(self, label: Origins, *, but: WorkspaceScan | None = None) -> None:
        for other in self._running:
            if other is not but and label not in other.told:
                other.told.append(label)

    def _label_of(self, found: Iterable[_Seen], at: datetime) -> Origins:
        known: set[Origins] = set()
        strange: list[Origins] = []
        for each in found:
            if each.known is not None:
                known.add(each.known)
            elif len(strange) < _MOST_TOLD:
                strange.append(unknown(each.path, at))
        return join_origins(*known, *strange)

    # ── looking ──

    def _scanned(self) -> list[_Seen] | None:
        """Everything that a command can read the content or the name of; None if it is too much."""
        left = [_MOST_ENTRIES, _MOST_HASHED_BYTES]
        cache: dict[str, tuple[tuple[int, ...], str]] = {}
        seen: list[_Seen] = []
        found: list[_Seen] | None = seen
        begun, is_alone = self._begun_count, len(self._running) < 2
        try:
            for path, status in walk(self.workspace, left):
                identity = self._identity(path, status, left, cache)
                known = self._journal.label_of(path, identity)
                seen.append(_Seen(path, identity, status.st_uid == os.getuid(), known))
        except (TooMuchError, OSError) as error:
            _log.info("files.not_looked_at", reason=str(error))
            found = None
        if is_alone and begun == self._begun_count:
            # What was seen of too much is remembered as well, so that the next look comes further.
            self._cache = cache if found is not None else self._cache | cache
        return found

    def _identity(
        self,
        path: str,
        status: os.stat_result,
        left: list[int],
        cache: dict[str, tuple[tuple[int, ...], str]],
    ) -> str:
        full = f"{self.workspace}/{path}"
        if stat.S_ISDIR(status.st_mode):
            return _FOLDER
        if stat.S_ISLNK(status.st_mode):
            with suppress(OSError):
                return "link " + hashlib.sha256(os.fsencode(os.readlink(full))).hexdigest()  # noqa: PTH115
            return ""
        if not stat.S_ISREG(status.st_mode):
            return ""
        if (known := self._cache.get(path)) is not None and known[0] == _marks(status):
            cache[path] = known
            return known[1]
        identity = identity_of_file(full, left)
        is_telling = self._has_telling_marks(full, status)
        if not is_telling and status.st_size > _LARGE_BYTES:
            identity = ""
        with suppress(OSError):
            now = os.stat(full, follow_symlinks=False)  # noqa: PTH116
            # What was changed a moment ago can be changed once more and look the same.
            if identity and is_telling and _marks(now) == _marks(status) and _is_settled(now):
                cache[path] = _marks(now), identity
        return identity

    def _has_telling_marks(self, full: str, status: os.stat_result) -> bool:
        """Return True if each change of a file changes its marks, provided no earlier writer still runs."""
        if status.st_dev not in self._telling:
            self._telling[status.st_dev] = _tells_changes(full.rpartition("/")[0], status.st_dev)
        return self._telling[status.st_dev]


def unknown(path: str, at: datetime) -> Origins:
    """Return the origin of text from an unknown author."""
    return (untrusted_origin("file", path if path.isprintable() else ascii(path), at),)


def walk(top: str, left: list[int], *, with_skills: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the entries below by path; no links or prompt files. Raises TooMuchError past ``left[0]``."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(f"{top}/{folder}" if folder else top) as entries:
            for entry in entries:
                kept = is_of_prompt(entry.name) and not (with_skills and entry.name == "skills")
                if not folder and (kept or entry.name == "memory"):
                    continue
                left[0] -= 1
                if left[0] < 0:
                    raise TooMuchError("too many files")
                path = f"{folder}/{entry.name}" if folder else entry.name
                with suppress(FileNotFoundError):
                    status = os.stat(entry.path, follow_symlinks=False)  # noqa: PTH116
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(path)
                    yield path, status


def identity_of_file(path: str, left: list[int]) -> str:
    """Return a file's identity, "" if it changes or is unreadable. Raises TooMuchError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(handle, "rb") as file:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            return ""
        if before.st_size > _LARGE_BYTES:
            return _identity_of_large(handle)
        left[1] -= before.st_size
        if left[1] < 0:
            raise TooMuchError("too much to read")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return digest if _marks(os.fstat(handle)) == _marks(before) else ""


def _identity_of_large(handle: int) -> str:
    """By the marks of its inode, once these cannot stand for two contents any more."""
    if not _is_settled(os.fstat(handle)):
        time.sleep(_TICK_NS / 1e9)
    status = os.fstat(handle)
    return f"large {status.st_dev}.{status.st_ino}.{status.st_size}.{status.st_ctime_ns}" * _is_settled(
        status
    )


def _tells_changes(folder: str, device: int) -> bool:
    """Test if a write through a previously read mapped page changes the file's marks on this disk."""
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        os.ftruncate(handle, 1)
        with mmap.mmap(handle, 1) as page:
            before, first = os.fstat(handle), page[0]
            time.sleep(_TICK_NS / 1e9)
            page[0] = first
            return before.st_dev == device and _marks(os.fstat(handle)) != _marks(before)
    except (OSError, ValueError):
        return False
    finally:
        os.close(handle)


def _is_settled(status: os.stat_result) -> bool:
    return time.time_ns() - status.st_ctime_ns >= _TICK_NS


def _marks(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
