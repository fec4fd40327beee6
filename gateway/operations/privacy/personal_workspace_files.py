"""
What `squidbot forget` does about files that the assistant has changed for somebody. Their earlier versions
go, and the notes of the changes. A file of the workspace that nobody else has ever changed is theirs, whole,
and goes as well; one that others have changed, too, stays as it is, and so does everything in the folders
that the owner has named. The owner's own files stay, as the owner's to delete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_core import files
from agent_core.confined_files import folder_below, open_below, parts_of
from agent_core.memory.scopes import person_name
from agent_core.storage.history_lines import as_object, encode_object
from gateway.operations.privacy.inventory import PersonFiles
from gateway.store.sql.erasure_statements import anonymise_origins


@dataclass(slots=True)
class FilesOfPerson:
    """
    The files and versions (by digest) of the workspace to remove.

    ``changes`` are the person's. Those of a file that was wholly theirs are ``removed``; in a remaining file
    they lose the author.
    """

    paths: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    changes: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)

    def counts(self) -> dict[str, int]:
        """The amount by kind."""
        return {"files": len(self.paths), "file_versions": len(self.versions)}


def files_of_person(home: Path, workspace: Path, found: PersonFiles) -> FilesOfPerson:
    """Find them; nothing is changed."""
    gone = FilesOfPerson()
    known = [line for line in _lines(home / "state/files/changes.jsonl") if isinstance(line.get("id"), int)]
    turns, sessions, people = found.turns, set(found.own_sessions), found.person.addresses
    theirs = [line for line in known if line.get("turn") in turns or line.get("session") in sessions]
    gone.changes = {line["id"] for line in theirs}
    named = {
        line["id"]
        for line in known
        if anonymise_origins(line, lambda who: person_name(who) in people) != line
    }
    mine = [line for line in known if line["id"] in gone.changes | named]
    others = {line.get("after") for line in known if line["id"] not in gone.changes | named}
    made = {str(line["after"]) for line in mine if line.get("after")} - others
    kept = home / "state/files/versions"
    gone.versions = {digest for digest in made if (kept / digest).is_file()}
    if found.person.owner:
        gone.removed = gone.changes
        return gone
    about: dict[str, list[dict[str, Any]]] = {}
    for line in known:
        for name in {str(line.get("path")), str(line.get("source"))}:
            about.setdefault(name, []).append(line)
    for path in dict.fromkeys(str(line.get("path")) for line in theirs):
        if _is_whole(path, about, gone.changes, set()):
            gone.removed |= {line["id"] for line in about[path]}
            if _holds(workspace, path, about[path]):
                gone.paths.append(path)
    return gone


def forget_files(home: Path, workspace: Path, found: PersonFiles) -> None:
    """Remove them; a second call does what the first one could not. Raises `OSError`: not all is removed."""
    gone, people = files_of_person(home, workspace, found), found.person.addresses
    for path in gone.paths:
        parts = parts_of(path)
        with suppress(LookupError, ValueError), folder_below(workspace, parts[:-1]) as folder:
            with suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=folder)
            _sync(folder)
    for digest in gone.versions:
        (home / "state/files/versions" / digest).unlink(missing_ok=True)
    # The notes last: they tell which files and versions these are.
    journal, labels = home / "state/files/changes.jsonl", home / "state/files/labels.jsonl"
    is_theirs = lambda who: person_name(who) in people  # noqa: E731 - bound to them
    last = max(gone.removed, default=0)
    for notes in (labels, journal):
        before = _lines(notes)
        after = [
            anonymise_origins(line | _NOBODY if line.get("id") in gone.changes else line, is_theirs)
            for line in before
            if not _numbers(line) & gone.removed
        ]
        if after != before:
            # The last number is not given again: somebody may still mean the old one.
            after += [{**_NOTHING, "id": last}, {"void": last}] if notes == journal and last else []
            files.replace(notes, b"".join(map(encode_object, after)))


_NOBODY = dict.fromkeys(("key", "turn", "session"), "")
_NOTHING: Mapping[str, Any] = {
    **_NOBODY,
    "path": "",
    "at": "1970-01-01T00:00:00+00:00",
    "kind": "delete",
    "mode": 0,
    "origins": [],
    **dict.fromkeys(("before", "after", "source", "undoes")),
}


def _lines(path: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return [
            line for raw in path.read_bytes().splitlines() if raw and (line := as_object(raw)) is not None
        ]
    return []


def _numbers(line: Mapping[str, Any]) -> set[Any]:
    return {line[name] for name in ("id", "made", "void") if isinstance(line.get(name), int)}


def _is_whole(
    path: str, about: Mapping[str, list[dict[str, Any]]], theirs: Collection[int], seen: set[str]
) -> bool:
    """Return True if nobody else has ever changed a file, under this name and earlier ones."""
    changes = about.get(path, [])
    if path.startswith("/") or path in seen or not changes or changes[0].get("before") is not None:
        return False
    before = {str(line["source"]) for line in changes if line.get("source") and line.get("path") == path}
    return all(line["id"] in theirs for line in changes) and all(
        _is_whole(each, about, theirs, seen | {path}) for each in before
    )


def _holds(workspace: Path, path: str, changes: list[dict[str, Any]]) -> bool:
    """Return True if the file is unchanged since its last recorded change; others' edits are kept."""
    newest = [line for line in changes if line.get("path") == path][-1]
    try:
        with os.fdopen(open_below(workspace, path), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == newest.get("after")
    except (LookupError, ValueError, OSError):
        return False  # nor what a link leads to


def _sync(folder: int) -> None:
    """Sync by a handle of its own: one for walking cannot be synced."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
