"""
The record of changes to files and of their earlier versions: ``changes.jsonl`` and ``versions/`` in one
folder. A change is recorded, with the content that it replaces, before the file is touched; a second line
says that it was made. So after a kill in between, the next process knows which of the two contents to look
for. Versions are kept by their content. Older ones go after a while, and before that when they are too many;
what a file's present content is made of is known as long as the file stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import structlog

from agent_core import files
from agent_core.provenance import Origin, Origins, from_json, to_json

ChangeKind = Literal["write", "edit", "move", "delete", "undo"]
WORK = "work"
"""Where commands begin."""
_OUR_FOLDERS = frozenset({WORK, "mcp"})
"""This program gives these names, whoever has caused them to be made."""
_MAX_CHANGES = 20_000
_log = structlog.get_logger(__name__)


def digest_of(content: bytes) -> str:
    """The digest that names a content."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class FileChange:
    """
    One change of a file.

    ``before`` and ``after`` are contents, None for no file; a moved file has a ``source``. ``key`` names the
    call: repeated, it is the same change. ``origins`` are those of ``after`` and of ``folders``, the number
    of new parent folders. ``made`` is False while only intended.
    """

    id: int
    key: str
    at: datetime
    turn: str
    session: str
    kind: ChangeKind
    path: str
    before: str | None
    after: str | None
    mode: int = 0o600
    origins: Origins = ()
    source: str | None = None
    undoes: int | None = None
    folders: int = 0
    made: bool = False


class ChangeJournal:
    """The changes of one home; thread-safe, blocks. ``max_bytes`` bounds all earlier versions."""

    def __init__(
        self,
        folder: Path,
        *,
        now: Callable[[], datetime],
        keep_days: float = 30.0,
        max_bytes: int = 500_000_000,
        durable: bool = True,
    ) -> None:
        self._folder = folder
        self._journal = folder / "changes.jsonl"
        self._versions = folder / "versions"
        self._now = now
        self._keep = timedelta(days=keep_days)
        self._max_bytes = max_bytes
        self._durable = durable
        self.labels = Labels(folder / "labels.jsonl")
        self.lock = threading.RLock()
        self._watching: list[list[Origins]] = []
        self._changes: dict[int, FileChange] | None = None
        self._by_key: dict[str, int] = {}
        self._by_content: dict[str, Origins] = {}
        self._by_path: dict[str, FileChange] = {}
        self._folders: dict[str, Origins] = {}
        self._last = 0
        self._since_pruned = 0

    # ── asking ──

    def changes(self, path: str | None = None) -> list[FileChange]:
        """All known changes, newest first; optionally those of one file."""
        with self.lock:
            return [
                change
                for change in reversed(self._loaded().values())
                if path is None or path in (change.path, change.source)
            ]

    def get(self, number: int) -> FileChange:
        """The change with this number. Raises `LookupError`: there is none."""
        with self.lock:
            found = self._loaded().get(number)
        if found is None:
            raise LookupError(f"there is no change {number}")
        return found

    def find_by_call(self, key: str) -> FileChange | None:
        """The change that a call made or was about to make."""
        with self.lock:
            loaded = self._loaded()
            return loaded.get(self._by_key.get(key, 0)) if key else None

    def version(self, digest: str) -> bytes:
        """An earlier content. Raises `LookupError`: it is not kept, or no longer."""
        try:
            content = self._version(digest).read_bytes()
        except FileNotFoundError as error:
            raise LookupError("that version is not kept any more") from error
        if digest_of(content) != digest:
            raise LookupError("that version is damaged")
        return content

    def origins_of(self, path: str, digest: str) -> Origins | None:
        """The origins of a file's content; None: it came from elsewhere."""
        with self.lock:
            here = self.label_of(path, digest)
            return self._by_content.get(digest) if here is None else here

    def label_of(self, path: str, identity: str) -> Origins | None:
        """The origins of a file and of its name; None: no tool has written it."""
        if self.labels.is_trusted(path, identity) or (path in _OUR_FOLDERS and identity == "folder"):
            return ()
        with self.lock:
            self._loaded()
            newest = self._by_path.get(path)
            if newest is not None and newest.after == identity:
                return newest.origins
            if path in self._folders and identity == "folder":
                return self._folders[path]
        return self.labels.origins_of(path, identity)

    def origins_of_name(self, path: str) -> Origins | None:
        """The origins of a file's or a folder's name; None: it came from elsewhere."""
        if path in _OUR_FOLDERS or self.labels.is_name_trusted(path):
            return ()
        with self.lock:
            self._loaded()
            newest = self._by_path.get(path)
            if newest is not None and newest.after is not None:
                return newest.origins
            folder = self._folders.get(path)
        return self.labels.origins_of_name(path) if folder is None else folder

    def watch(self, told: list[Origins]) -> None:
        """Start recording the origins of changes, also of one that is not made in the end."""
        with self.lock:
            self._watching.append(told)

    def unwatch(self, told: list[Origins]) -> None:
        """End `watch`."""
        with self.lock:
            self._watching = [each for each in self._watching if each is not told]

    # ── changing ──

    def begin(self, intended: FileChange, before: bytes | None) -> tuple[FileChange, list[int]]:
        """
        Record an intended change with the replaced content. Raises OSError; then nothing is recorded.

        Returns it with its number, and the handles that `sync` must have seen before the change.
        """
        with self.lock:
            known = self._loaded()
            change = replace(intended, id=self._last + 1, at=self._now())
            files.make_folder(self._folder)
            handles: list[int] = []
            try:
                if before is not None:
                    handles += self._keep_version(digest_of(before), before)
                handles.append(self._append(_as_line(change)))
            except BaseException:
                for handle in handles:
                    os.close(handle)
                raise
            for told in self._watching:
                told.append(change.origins)
            self._last = change.id
            known[change.id] = change
            if change.key:
                self._by_key[change.key] = change.id
            return change, handles

    def sync(self, handles: Sequence[int]) -> None:
        """Make the files behind the handles durable and close them."""
        try:
            for handle in handles if self._durable else ():
                os.fsync(handle)
        finally:
            for handle in handles:
                os.close(handle)

    def record_completion(self, change: FileChange) -> FileChange:
        """Record that a change was made."""
        with self.lock:
            done = replace(change, made=True)
            self._note(done)
            with suppress(OSError):  # what it says can be seen from the file as well
                os.close(self._append({"made": change.id}))
            self._since_pruned += 1
            if self._since_pruned >= 200:
                self.prune()
            return done

    def void(self, change: FileChange) -> None:
        """Record that a change was not made and never will be."""
        with self.lock:
            self._loaded().pop(change.id, None)
            self._by_key.pop(change.key, None)
            with suppress(OSError):
                os.close(self._append({"void": change.id}))

    def prune(self) -> None:
        """Forget entries that are too old, and the oldest versions if there are too many."""
        with self.lock:
            self._since_pruned = 0
            known = self._loaded()
            since = self._now() - self._keep
            if len(known) > _MAX_CHANGES:
                since = max(since, list(known.values())[-_MAX_CHANGES].at)
            stay = {
                change.id: change
                for change in known.values()
                if change.at >= since or change.id == self._last or self._is_present(change)
            }
            if len(stay) < len(known):
                lines = [line for change in stay.values() for line in _as_lines(change)]
                files.replace(self._journal, b"".join(map(_encoded, lines)), durable=self._durable)
                self._changes = stay
                self._by_key = {change.key: change.id for change in stay.values() if change.key}
            wanted = [
                change.before for change in reversed(stay.values()) if change.before and change.at >= since
            ]
            self._drop_versions(dict.fromkeys(wanted))

    def _is_present(self, change: FileChange) -> bool:
        newest = self._by_path.get(change.path)
        return newest is not None and newest.id == change.id and change.after is not None

    def _drop_versions(self, wanted: Iterable[str]) -> None:
        """Keep the ``wanted`` versions, the first ones first, as far as there is room."""
        sizes = {path.name: path for path in self._versions.glob("*")}
        room = self._max_bytes
        for name in wanted:
            path = sizes.get(name)
            if path is not None:
                room -= path.stat().st_size
                if room >= 0:
                    del sizes[name]
        for path in sizes.values():
            path.unlink(missing_ok=True)

    # ── inside ──

    def _loaded(self) -> dict[int, FileChange]:
        if self._changes is None:
            self._changes = {}
            for line in self._lines():
                self._take(line)
            self.prune()
        return self._changes

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            content = self._journal.read_bytes()
        except FileNotFoundError:
            return
        bad = 0
        for line in content.splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                bad += 1
        if bad:
            _log.warning("files.history_damaged", lines=bad)

    def _take(self, line: dict[str, Any]) -> None:
        known = self._changes
        assert known is not None  # it is being loaded
        try:
            if "made" in line and (change := known.get(line["made"])) is not None:
                self._note(replace(change, made=True))
            elif "void" in line and (change := known.pop(line["void"], None)) is not None:
                self._by_key.pop(change.key, None)
            elif "id" in line:
                change = _from_line(line)
                known[change.id] = change
                self._last = max(self._last, change.id)
                if change.key:
                    self._by_key[change.key] = change.id
        except (KeyError, TypeError, ValueError):
            _log.warning("files.history_damaged", lines=1)

    def _note(self, change: FileChange) -> None:
        assert self._changes is not None  # it was looked up
        self._changes[change.id] = change
        self._by_path[change.path] = change
        above = change.path
        for _ in range(change.folders):
            above = above.rpartition("/")[0]
            self._folders[above] = change.origins
        if change.source is not None:
            self._by_path.pop(change.source, None)
        if change.after is not None:
            self._by_content[change.after] = change.origins

    def _version(self, digest: str) -> Path:
        return self._versions / digest

    def _keep_version(self, digest: str, content: bytes) -> list[int]:
        path = self._version(digest)
        if path.exists():
            return []
        files.make_folder(path.parent)
        temporary = path.with_suffix(".tmp")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            files.write_all(handle, content)
            temporary.replace(path)
            return [handle, os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)]
        except BaseException:
            os.close(handle)
            temporary.unlink(missing_ok=True)
            raise

    def _append(self, line: dict[str, Any]) -> int:
        handle = os.open(self._journal, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(handle).st_size
        try:
            torn = size and os.pread(handle, 1, size - 1) != b"\n"
            files.write_all(handle, (b"\n" if torn else b"") + _encoded(line))
        except BaseException:
            with suppress(OSError):
                os.ftruncate(handle, size)
            os.close(handle)
            raise
        return handle


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _as_lines(change: FileChange) -> list[dict[str, Any]]:
    return [_as_line(change), *([{"made": change.id}] if change.made else [])]


def _as_line(change: FileChange) -> dict[str, Any]:
    return {
        "id": change.id,
        "key": change.key,
        "at": change.at.isoformat(),
        "turn": change.turn,
        "session": change.session,
        "kind": change.kind,
        "path": change.path,
        "before": change.before,
        "after": change.after,
        "mode": change.mode,
        "origins": [origin.model_dump(mode="json") for origin in change.origins],
        "source": change.source,
        "undoes": change.undoes,
        "folders": change.folders,
    }


def _from_line(line: dict[str, Any]) -> FileChange:
    return FileChange(
        id=line["id"],
        key=line["key"],
        at=datetime.fromisoformat(line["at"]),
        turn=line["turn"],
        session=line["session"],
        kind=line["kind"],
        path=line["path"],
        before=line["before"],
        after=line["after"],
        mode=line["mode"],
        origins=tuple(Origin.model_validate(origin) for origin in line["origins"]),
        source=line["source"],
        undoes=line["undoes"],
        folders=int(line.get("folders", 0)),
    )


_FEW = 1000
_TRUSTED = "\0"
"""Before a path: what the owner has said of it. No path has it."""


class Labels:
    """
    The origins of files that commands made or changed: ``labels.jsonl`` beside the history.

    A label belongs to a path and its content. It is written after the command: what a crash keeps from being
    written is unknown, which is stricter. Everything here blocks; it may be called from several threads.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, Origins]] | None = None
        self._lines = 0

    def trust(self, path: str, identity: str) -> None:
        """Record the owner's trust in the present content of a file. Raises OSError if it is not stored."""
        self.note({_TRUSTED + path: identity}, ())

    def is_trusted(self, path: str, identity: str) -> bool:
        """Return True if the owner has trusted exactly this content."""
        with self._lock:
            known = self._loaded().get(_TRUSTED + path)
        return known is not None and bool(identity) and known[0] == identity

    def is_name_trusted(self, path: str) -> bool:
        """Return True if the owner has trusted what is there, whatever it holds now: the name is the same."""
        with self._lock:
            return _TRUSTED + path in self._loaded()

    def origins_of(self, path: str, identity: str) -> Origins | None:
        """Return the origins of ``path`` if it has that content; None: no command has written it."""
        with self._lock:
            known = self._loaded().get(path)
        return known[1] if known is not None and identity and known[0] == identity else None

    def origins_of_name(self, path: str) -> Origins | None:
        """Return the origins of the name ``path``, if a command or a person has given it."""
        with self._lock:
            known = self._loaded().get(path)
        return None if known is None else known[1]

    def newest(self) -> Iterator[str]:
        """The files that commands have made or changed, the newest first."""
        with self._lock:
            known = list(self._loaded().items())
        for path, (identity, _) in reversed(known):
            if identity != "folder" and not path.startswith(_TRUSTED):
                yield path

    def note(self, made: Mapping[str, str], origins: Origins) -> None:
        """Note content and origins of each path. Raises OSError; these files are then unknown."""
        if not made:
            return
        with self._lock:
            known = self._loaded()
            files.make_folder(self._path.parent)
            lines = [_line(path, identity, origins) for path, identity in made.items()]
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                # An empty line first: what a crash has cut off before ends there.
                files.write_all(handle, b"\n" + b"".join(lines))
            finally:
                os.close(handle)
            for path, identity in made.items():
                known.pop(path, None)  # the newest comes last
                known[path] = identity, origins
            self._lines += len(lines)

    def keep_only(self, present: Container[str]) -> None:
        """Forget files that are gone, now and then, but nothing that the owner has said."""
        with self._lock:
            known = self._loaded()
            kept = {path: it for path, it in known.items() if path in present or path.startswith(_TRUSTED)}
            if self._lines > 2 * len(kept) + _FEW:
                files.replace(self._path, b"".join(_line(path, *label) for path, label in kept.items()))
                self._known, self._lines = kept, len(kept)

    def _loaded(self) -> dict[str, tuple[str, Origins]]:
        if self._known is None:
            self._known = {}
            for path, label in self._read():
                self._known.pop(path, None)
                self._known[path] = label
        return self._known

    def _read(self) -> Iterable[tuple[str, tuple[str, Origins]]]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        for line in content.splitlines():
            if not line:
                continue
            self._lines += 1
            try:
                found: dict[str, Any] = json.loads(line)
                yield str(found["path"]), (str(found["is"]), from_json(found["origins"]))
            except (ValueError, TypeError, KeyError):
                _log.warning("files.labels_damaged", lines=1)


def _line(path: str, identity: str, origins: Origins) -> bytes:
    told = {"path": path, "is": identity, "origins": to_json(origins)}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"
