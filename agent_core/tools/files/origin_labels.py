"""
The origins of files that commands made or changed: ``labels.jsonl`` beside the history. A label belongs to a
path and to what was there, so it says nothing about another content. It is written after the command; what a
crash keeps from being written is a file that nobody knows, which is the stricter of both.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from agent_core import files
from agent_core.provenance import Origins, from_json, to_json

_FEW = 1000
_TRUSTED = "\0"
"""Before a path: what the owner has said of it. No path has it."""
_log = structlog.get_logger(__name__)


class Labels:
    """The labels of one home. Everything here blocks; it may be called from several threads."""

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
