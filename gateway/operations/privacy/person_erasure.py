"""
`squidbot forget`: erases everything of one person, and reports what is left. It runs without a daemon.
Histories are rewritten (the one exception), each line keeping its place for cursors; in shared ones the
person's lines become a marker. The database goes first, as its journal would append lines again, then
histories, memory, workspace files with versions (``personal_workspace_files.py``), attachments, index. The
plan is recorded first (``erasure_journal.py``) and repeating completes it. Summaries that may hold the person
are written again; a room's memory loses lines from the person's turns.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agent_core.models import ScopeKind
from agent_core.storage.history_lines import encode_object
from agent_core.storage.layout import Layout
from channels.attachments import LocalFiles, Storage
from gateway.operations.backup.contents import known_backups
from gateway.operations.privacy.erasure_journal import begin, finish, merge_journal
from gateway.operations.privacy.inventory import (
    Person,
    PersonFiles,
    Share,
    find_files,
    is_person_data,
    remove_person_words,
)
from gateway.operations.privacy.personal_histories import KeptDocument, StoredHistories, open_histories
from gateway.operations.privacy.personal_workspace_files import files_of_person, forget_files
from gateway.operations.privacy.repetition_report import identifying_words, places_of
from gateway.store.personal_rows import personal_transaction
from gateway.store.place import QueuePlace
from gateway.store.sql.erasure_statements import Gone, anonymise_origins, erase, named_files

MARKER = "[removed]"
_ATTACHMENT = re.compile(r"attachments/([0-9a-f]{2})/\1[0-9a-f]{62}\.[a-z0-9]{1,8}")
_MAX_REPORTED = 50


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """
    The result of an erasure: removed counts, files that still name an address, places of backups.

    ``repeated`` are the places in answers to others that repeat the person's words; they stay.
    """

    counts: dict[str, int]
    kept_files: int
    still_named: tuple[str, ...]
    backups: tuple[str, ...]
    repeated: tuple[str, ...] = ()


def forget_person(
    layout: Layout,
    database: QueuePlace,
    person: Person,
    *,
    now: datetime,
    only_look: bool = False,
    storage: Storage | None = None,
) -> ErasureResult:
    """
    Erase a person's data, under the home's lock; ``only_look`` changes nothing.

    ``storage`` holds the messages' files; default: the home. Raises OSError or StoreUnavailable; repeating
    completes it.
    """
    with open_histories(layout, database) as kept:
        return _forget(
            layout,
            kept,
            database,
            person,
            now=now,
            only_look=only_look,
            storage=storage or LocalFiles(layout.home),
        )


def _forget(
    layout: Layout,
    kept: StoredHistories,
    database: QueuePlace,
    person: Person,
    *,
    now: datetime,
    only_look: bool,
    storage: Storage,
) -> ErasureResult:
    found = merge_journal(layout, kept, find_files(kept, database, person))
    in_workspace = files_of_person(layout.home, layout.workspace, found)
    counts, total = found.counts() | in_workspace.counts(), len(found.attachments)
    backups = tuple(str(path) for _, path in known_backups(layout.home))
    repeated = tuple(places_of(kept, database, found, identifying_words(kept, found)))
    if only_look:
        return ErasureResult(counts, 0, (), backups, repeated)
    if storage.is_elsewhere:
        storage.probe()  # before anything is changed
    begin(layout, found)
    if database.exists():
        with personal_transaction(database, "forget", change=True, compact=True) as db:
            found.rows = erase(db, person.addresses, found.own_sessions, found.turns, now=now.timestamp())
    turns = found.turns
    for share in found.shares:
        if share.whole:
            share.history.remove()
        else:
            _mark_lines(share, person, turns)
    _forget_documents(kept, found, turns)
    forget_files(layout.home, layout.workspace, found)
    left = _remove_attachments(kept, database, found, storage)
    kept.finish()
    finish(layout, person)
    counts["attachments"] = total - left
    named = (*files_naming(layout.home, person.addresses), *kept.places_naming(person.addresses))
    return ErasureResult(counts, left, named, backups, repeated)


def _mark_lines(share: Share, person: Person, turns: Collection[str]) -> None:
    """Rewrite the history with markers in place of the person's lines."""
    if not share.history.exists():
        return

    def change(raw: bytes, line: dict[str, Any] | None) -> bytes:
        if line is None:
            # A line that cannot be read may hold anything; its place stays, an empty one.
            return b""
        if is_person_data(line, person, turns):
            return encode_object(_marker(line))
        left = remove_person_words(line, person)
        return encode_object(left) if left != line else raw

    share.history.rewrite(change)
    share.history.drop_summary()


def _marker(line: dict[str, Any]) -> dict[str, Any]:
    """The line without anything of the person: its place, its time, who could read along."""
    kept: dict[str, Any] = {name: line[name] for name in ("id", "turn", "timestamp", "n") if name in line}
    scope = line.get("scope")
    if isinstance(scope, str) and scope.startswith(f"{ScopeKind.ROOM.value}:"):
        kept["scope"] = scope
    return {**kept, "role": "user" if line.get("role") == "user" else "assistant", "content": MARKER}


def _forget_documents(kept: StoredHistories, found: PersonFiles, turns: Collection[str]) -> None:
    for scope in found.documents:
        kept.document(scope).remove()
    for document in kept.documents():
        _unwrite(document, turns, found.person.matches_sender)


def _unwrite(document: KeptDocument, turns: Collection[str], gone: Gone) -> None:
    """Take the lines out of a document that came into it in these turns, out of every version."""
    known = document.versions()
    every = [anonymise_origins(line, gone) for line in known]
    before: set[str] = set()
    theirs: set[str] = set()
    for version in every:
        now = set(str(version.get("text", "")).splitlines())
        if version.get("turn") in turns:
            theirs |= now - before
        before = now
    theirs.discard("")
    if not theirs and every == known:
        return
    text = document.text()
    document.replace_text(None if text is None else _left(text, theirs))
    # The last, because they tell which lines these are.
    document.replace_versions(
        [{**version, "text": _left(str(version.get("text", "")), theirs)} for version in every]
    )


def _left(text: str, gone: Collection[str]) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if line.rstrip("\r\n") not in gone)


def _remove_attachments(
    kept: StoredHistories, database: QueuePlace, found: PersonFiles, storage: Storage
) -> int:
    """Remove files that nobody else's message names; returns how many are kept because of that."""
    files = {path for path in found.attachments if _ATTACHMENT.fullmatch(path)}
    if not files:
        return 0
    needed = files & kept.named_files()
    if database.exists():
        with personal_transaction(database) as db:
            needed |= named_files(db, files)
    for path in files - needed:
        storage.erase(path)
    return len(needed)


def files_naming(root: Path, addresses: Collection[str]) -> Iterator[str]:
    """The files under the home that still contain one of the addresses, whoever wrote it there."""
    wanted = [re.escape(address.encode()) for address in sorted(addresses)]
    pattern = re.compile(b"|".join(wanted), re.IGNORECASE)
    longest = max(map(len, wanted))
    told = 0
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            found = sorted(folder.iterdir())
            waiting += [path for path in reversed(found) if path.is_dir() and not path.is_symlink()]
            holding = [path for path in found if path.is_file() and not path.is_symlink()]
            named = [path for path in holding if _holds(path, pattern, longest)]
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            named = [folder]  # in so many folders that nobody can look
        for path in named:
            if told >= _MAX_REPORTED:
                yield "…"
                return
            told += 1
            yield str(path.relative_to(root))


def _holds(path: Path, pattern: re.Pattern[bytes], longest: int) -> bool:
    rest = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        while block := file.read(1 << 20):
            if pattern.search(rest + block):
                return True
            rest = block[-longest:]
    return False
