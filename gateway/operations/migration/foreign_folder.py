"""
The folder of another assistant, read as input of anybody: no link is followed, every text and line has a
limit, and a database is opened for reading alone. What cannot be read is named in `ForeignFolder.notes`.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agent_core.confined_files import folder_below, open_below, parts_of

MAX_TEXT_BYTES = 4 * 1024 * 1024
"""A longer document is not read: none that an assistant reads in each prompt comes near it."""
_MAX_LINE_BYTES = 8 * 1024 * 1024
_MAX_NAMES = 200_000


class ForeignFolder:
    """A folder, whose paths are relative and have no ``..``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes: list[str] = []

    def note(self, path: str, why: str) -> None:
        """Record that something is not read, once each."""
        text = f"{path}: {why}"
        if text not in self.notes[-50:] and len(self.notes) < 1000:
            self.notes.append(text)

    def entries(self, path: str = "") -> tuple[list[str], list[str]]:
        """Return the names of the files and of the folders in a folder, sorted; none if it is missing."""
        files, folders = list[str](), list[str]()
        with suppress(LookupError):
            try:
                with folder_below(self.root, parts_of(path) if path else ()) as here:
                    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            except (OSError, ValueError) as error:
                self.note(path or ".", _reason(error))
                return files, folders
            try:
                with os.scandir(handle) as found:
                    for number, entry in enumerate(found):
                        if number >= _MAX_NAMES:
                            self.note(
                                path or ".", f"only the first {_MAX_NAMES} names of the folder are read"
                            )
                            break
                        if entry.is_symlink():
                            self.note(
                                f"{path}/{entry.name}".lstrip("/"), "is a link, and links are not followed"
                            )
                        elif entry.is_dir(follow_symlinks=False):
                            folders.append(entry.name)
                        elif entry.is_file(follow_symlinks=False):
                            files.append(entry.name)
            finally:
                os.close(handle)
        return sorted(files), sorted(folders)

    def content(self, path: str, most: int = MAX_TEXT_BYTES) -> bytes | None:
        """Return the content of a file; None if it is missing, too long or cannot be read."""
        try:
            with os.fdopen(open_below(self.root, path), "rb") as file:
                found = file.read(most + 1)
        except LookupError:
            return None
        except (OSError, ValueError) as error:
            self.note(path, _reason(error))
            return None
        if len(found) > most:
            self.note(path, f"is longer than {most} bytes")
            return None
        return found

    def text(self, path: str) -> str:
        """Return a document without a byte order mark and with plain line ends; empty if there is none."""
        found = self.content(path)
        try:
            text = (found or b"").decode("utf-8-sig")
        except UnicodeDecodeError:
            self.note(path, "is not UTF-8 text")
            return ""
        return text.replace("\r\n", "\n").replace("\0", "").strip()

    def json(self, path: str) -> Any:
        """Return what a JSON document says; None if there is none."""
        try:
            return json.loads(text) if (text := self.text(path)) else None
        except (ValueError, RecursionError) as error:
            self.note(path, f"is not JSON ({error})")
            return None

    def lines(self, path: str) -> Iterator[tuple[str, Any]]:
        """Yield what each line of a JSONL file says, with its place, such as ``a.jsonl:3``."""
        try:
            file = os.fdopen(open_below(self.root, path), "rb")
        except (LookupError, OSError, ValueError) as error:
            self.note(path, _reason(error))
            return
        with file:
            number = 0
            while raw := file.readline(_MAX_LINE_BYTES):
                number += 1
                place, is_too_long = f"{path}:{number}", len(raw) == _MAX_LINE_BYTES
                while len(raw) == _MAX_LINE_BYTES and not raw.endswith(b"\n"):
                    raw = file.readline(_MAX_LINE_BYTES)
                if is_too_long:
                    self.note(place, f"is longer than {_MAX_LINE_BYTES} bytes")
                elif raw.strip() and (value := self._parsed(place, raw)) is not None:
                    yield place, value

    def rows(self, path: str, table: str, columns: str, rest: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table of an SQLite database, which is not changed; none if it has no such table."""
        try:
            os.close(open_below(self.root, path))
        except LookupError:
            return
        except (OSError, ValueError) as error:
            self.note(path, _reason(error))
            return
        place = self.root / path
        beside = [place.with_name(place.name + end) for end in ("-wal", "-journal", "-shm")]
        if any(each.is_symlink() for each in beside):
            self.note(path, "has a link beside it, and links are not followed")
            return
        # Without a log nothing can be missing, and nothing is made in a folder of somebody else's.
        way = "mode=ro" if any(each.exists() for each in beside) else "immutable=1"
        try:
            link = sqlite3.connect(f"file:{quote(str(place))}?{way}", uri=True, check_same_thread=False)
            with closing(link) as database:
                database.text_factory = lambda raw: raw.decode("utf-8", "replace")
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * _MAX_LINE_BYTES)
                database.execute("PRAGMA trusted_schema = OFF")
                known = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchall()
                if known != [("table",)]:
                    self.note(path, f"has no table {table}: its version is one that squidbot does not know")
                    return
                # The names are ours, not those of the folder.
                yield from database.execute(f"SELECT {columns} FROM {table} {rest}")  # noqa: S608
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            self.note(path, f"cannot be read: {error}")

    def _parsed(self, place: str, raw: str | bytes) -> Any:
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            self.note(place, "is not JSON")
            return None


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
