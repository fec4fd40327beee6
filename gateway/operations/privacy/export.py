"""
`squidbot export PERSON`: writes the data of one person into a folder that is readable without squidbot.
Markdown for people, JSON and lines of JSON for programs. It is made while a daemon runs or not; nothing is
changed. In a conversation that others shared, only what the person said and what the assistant answered them
is in it: what others said is theirs.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from agent_core import files
from agent_core.models import MemoryScope
from agent_core.storage.layout import Layout, folder_name
from channels.attachments import PATH, Damaged, LocalFiles, Storage, StorageUnreachable
from channels.attachments.file_storage import read_pieces
from gateway.errors import GatewayError
from gateway.operations.privacy.inventory import Person, PersonFiles, Share, find_files, is_person_data
from gateway.operations.privacy.personal_histories import StoredHistories, open_histories
from gateway.store.place import QueuePlace
from gateway.store.sql.erasure_statements import blank_words, remove_from_line, remove_from_message

_README = """\
# What squidbot stores about {name}

Made on {when}. Addresses: {addresses}.

- `conversations/*/history.jsonl`: the messages, one JSON object per line, oldest first; `history.md`: the
  same for reading. `summary.md`: the assistant's summary of a conversation that nobody else took part in.
- `memory/`: what the assistant remembers, and every earlier version (`versions.jsonl`).
- `attachments/`: files that came or went with messages.
- `queue.json`: messages in the durable queue with their states; `usage.json`: tokens and money by day;
  `jobs.json`: reminders and recurring tasks.

Not included: what others said in shared conversations, and backups.
"""


class ExportRefused(GatewayError):
    """The export cannot be written there."""

    exit_code = 73


def export_person(
    layout: Layout,
    database: QueuePlace,
    person: Person,
    target: Path,
    *,
    now: datetime,
    storage: Storage | None = None,
) -> PersonFiles:
    """
    Write a person's data into a new private folder.

    ``storage`` holds the messages' files; default: the home. Raises ExportRefused (nothing is left), OSError
    or StoreUnavailable.
    """
    with open_histories(layout, database) as kept:
        return _export(kept, database, person, target, now, storage or LocalFiles(layout.home))


def _export(  # noqa: PLR0917 - what `export_person` was given
    kept: StoredHistories,
    database: QueuePlace,
    person: Person,
    target: Path,
    now: datetime,
    storage: Storage,
) -> PersonFiles:
    found = find_files(kept, database, person)
    try:
        target.mkdir(mode=0o700, parents=False)
    except OSError as error:
        raise ExportRefused(f"{target} cannot be created: {error.strerror or error}") from error
    try:
        _write_all(kept, found, target, now, storage)
    except StorageUnreachable as error:
        shutil.rmtree(target, ignore_errors=True)
        raise ExportRefused(f"attachments cannot be fetched: {error.strerror}") from error
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise ExportRefused(f"{target} cannot be written: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return found


def _write_all(
    kept: StoredHistories, found: PersonFiles, target: Path, now: datetime, storage: Storage
) -> None:
    person = found.person
    _write(
        target / "README.md",
        _README.format(
            name=person.name,
            when=f"{now.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
            addresses=", ".join(sorted(person.addresses)),
        ),
    )
    for share in (one for one in found.shares if one.whole or one.lines):
        _write_share(found, share, target / "conversations" / share.history.name)
    for scope in found.documents:
        _write_document(kept, scope, target / "memory" / folder_name(str(scope)))
    for path in sorted(found.attachments - found.exports):
        if PATH.fullmatch(path):
            _fetch(storage, path, target / "attachments")
    rows = dict(found.rows.tables())
    rows["inbox"] = [_without_others_words(row, found) for row in rows["inbox"]]
    for name, tables in (("usage", ("usage",)), ("jobs", ("jobs", "ledger"))):
        _write(target / f"{name}.json", _json({table: rows.pop(table) for table in tables}))
    _write(target / "queue.json", _json(rows))


def _fetch(storage: Storage, path: str, folder: Path) -> None:
    """Fetch a file of a message, as it was saved; what is not kept any more, or damaged, is left out."""
    there = storage.find(path)
    if there is None:
        return
    files.make_folder(folder)
    copy = folder / PurePosixPath(path).name
    try:
        with open(_made(copy), "wb") as file:
            file.writelines(read_pieces(storage, path, there.size_bytes))
    except (FileNotFoundError, Damaged):
        copy.unlink()
        with (folder / "damaged.txt").open("a", encoding="utf-8") as left_out:
            left_out.write(f"{copy.name} has changed since it was saved, and was left out\n")


def _write_share(found: PersonFiles, share: Share, folder: Path) -> None:
    files.make_folder(folder)
    turns = found.turns
    with _new(folder / "history.jsonl") as raw, _new(folder / "history.md") as text:
        text.write(f"# {share.key}\n")
        for line in _lines(share, found, turns):
            raw.write(json.dumps(line) + "\n")
            who = line.get("sender") or line.get("role")
            text.write(f"\n**{who}**, {line.get('timestamp') or '?'}\n\n{_printable(line.get('content'))}\n")
    if share.whole and (summary := share.history.summary()):
        _write(folder / "summary.md", summary)


def _lines(share: Share, found: PersonFiles, turns: frozenset[str]) -> Iterator[dict[str, Any]]:
    for _, line in share.history.lines():
        if line is not None and share.whole:
            yield line
        elif line is not None and is_person_data(line, found.person, turns):
            yield remove_from_line(line, lambda who: not found.person.matches_sender(who))


def _without_others_words(row: dict[str, Any], found: PersonFiles) -> dict[str, Any]:
    """A row without what others had said in a shared conversation before the question."""
    if row["session"] in found.own_sessions:
        return row
    gone = lambda who: not found.person.matches_sender(who)  # noqa: E731 - bound to this person
    left = blank_words(row["payload"], remove_from_message, gone)
    return row if left is None else {**row, "payload": left}


def _write_document(kept: StoredHistories, scope: MemoryScope, folder: Path) -> None:
    files.make_folder(folder)
    document = kept.document(scope)
    if (text := document.text()) is not None:
        _write(folder / "MEMORY.md", text)
    if versions := document.raw_versions():
        with open(_made(folder / "versions.jsonl"), "wb") as copy:
            copy.write(versions)


def _printable(content: object) -> str:
    return str(content or "").encode("utf-8", "replace").decode()


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str)


def _made(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _new(path: Path) -> Any:
    return os.fdopen(_made(path), "w", encoding="utf-8", errors="replace")


def _write(path: Path, text: str) -> None:
    with _new(path) as file:
        file.write(text)
