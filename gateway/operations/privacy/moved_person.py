"""
`squidbot person move`: everything of a person goes to their new address. It is done while no daemon runs.
Histories, memory and rows are changed one after the other, each atomically and such that repeating it changes
nothing more. What is under way stands in ``state/moving-person.json``, so that after a crash the same command
does the rest and does not take what it has moved already for somebody else's; until then no daemon starts,
whose new lines would be replaced. In a database it is one transaction.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from agent_core import files
from agent_core.memory.scopes import person_name
from agent_core.models import MemoryScope, ScopeKind
from agent_core.storage import durable_files, storage_integrity
from agent_core.storage.history_lines import MAX_LINE_BYTES, as_object, encode_object
from agent_core.storage.history_paging import lines_forwards
from agent_core.storage.layout import Layout
from gateway.errors import NotFound
from gateway.operations.privacy.erasure_journal import MOVE_FILE_NAME, interrupted_move
from gateway.operations.privacy.inventory import Person, PersonUnclear, find_files, people
from gateway.operations.privacy.personal_histories import StoredHistories, open_histories
from gateway.store.personal_rows import rename_person
from gateway.store.place import QueuePlace
from gateway.store.sql.person_address import AddressChange


def move_person(
    layout: Layout, database: QueuePlace, old: str, new: str, owner_aliases: tuple[str, ...]
) -> dict[str, int]:
    """
    Move a person's data to a new address, under the home's lock and the database's lease; return the counts.

    Raises PersonUnclear, NotFound, and OSError or StoreUnavailable: repeating completes it.
    """
    person, other = people([old], owner_aliases), people([new], owner_aliases)
    change = AddressChange(person_name(old), person_name(new))
    begun = interrupted_move(layout)
    if begun not in (None, [change.old, change.new]):
        raise PersonUnclear(f"{begun[0]} is being moved to {begun[1]}; finish that with the same command")
    with open_histories(layout, database) as kept:
        counts = find_files(kept, database, Person(frozenset({change.old}))).counts()
        if begun is None:
            if not any(counts.values()):
                raise NotFound(f"nothing is known of {old}")
            _check_sessions_free(kept, change)
            _check_free(kept, database, other, person, new)
        if isinstance(database, Path):
            _move_files(layout, database, change)
        else:
            rename_person(database, change)
        kept.finish()
    plan = layout.home / "state" / MOVE_FILE_NAME
    plan.unlink(missing_ok=True)
    files.sync(plan.parent)
    return counts


def _move_files(layout: Layout, database: Path, change: AddressChange) -> None:
    files.replace(layout.home / "state" / MOVE_FILE_NAME, json.dumps([change.old, change.new]).encode())
    for key, path in storage_integrity.histories(layout):
        if key is not None:
            _move_history(layout, path, layout.history(change.session(key)), change)
    _move_documents(layout, change)
    rename_person(database, change)


def _check_sessions_free(kept: StoredHistories, change: AddressChange) -> None:
    """Raise `PersonUnclear`: a conversation of the new address, the owner's too, would be replaced."""
    for history in kept.histories():
        moved = change.session(history.key)
        if moved != history.key and kept.history(moved).exists():
            raise PersonUnclear(f"{change.new} has a conversation in the same thread already ({moved})")


def _check_free(kept: StoredHistories, database: QueuePlace, other: Person, person: Person, new: str) -> None:
    """Raise `PersonUnclear`: the new address is the same, or somebody else already."""
    if other.owner and person.owner:
        return
    if other.owner or other.addresses == person.addresses:
        raise PersonUnclear(f"{new} is the owner already" if other.owner else "that is the same address")
    if sum(find_files(kept, database, other).counts().values()):
        raise PersonUnclear(
            f"{other.name} is somebody here already; if that is the same person, look at it with `squidbot "
            f"export {other.name}` and remove it with `squidbot forget {other.name}` first"
        )


def _move_history(layout: Layout, path: Path, target: Path, change: AddressChange) -> None:
    """Write a history with the new address, under its new name; the old files go last."""
    making = target.with_name(f"{target.name}.moving")
    changed = path != target
    with os.fdopen(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as out:
        handle = durable_files.open_regular(path, os.O_NOFOLLOW)
        try:
            for _, raw in lines_forwards(handle, 0, max_line_bytes=MAX_LINE_BYTES):
                line = as_object(raw) if raw else None
                moved = None if line is None else change.value(line)
                changed = changed or moved != line
                written = (raw or b"") if moved is None or moved == line else encode_object(moved)
                out.write(written.rstrip(b"\n") + b"\n")
        finally:
            os.close(handle)
        out.flush()
        os.fsync(out.fileno())
    if not changed:
        making.unlink()
        return
    memory, record = layout.home / "memory", path.with_name(f"{path.stem}.meta.json")
    if (value := as_object(durable_files.read(record)) if record.exists() else None) is not None:
        moved = json.dumps(change.value(value), ensure_ascii=False).encode()
        files.replace(target.with_name(f"{target.stem}.meta.json"), moved)
    if path != target and (summary := memory / path.stem / "summary.md").exists():
        files.replace(memory / target.stem / "summary.md", summary.read_bytes())
    making.replace(target)
    files.sync(target.parent)
    if path != target:
        path.with_name(f"{path.stem}.meta.json").unlink(missing_ok=True)
        shutil.rmtree(memory / path.stem, ignore_errors=True)
        path.unlink()


def _move_documents(layout: Layout, change: AddressChange) -> None:
    names = {change.old, *(scope.name for scope in layout.scopes() if scope.kind is ScopeKind.PERSON)}
    for name in sorted(names):
        address, blank, account = name.partition(" ")
        here = layout.versions(MemoryScope(ScopeKind.PERSON, name)).parent
        if person_name(address) != change.old or not here.exists():
            continue
        there = layout.versions(MemoryScope(ScopeKind.PERSON, f"{change.new}{blank}{account}")).parent
        here.rename(there)  # atomic
        files.sync(there.parent)
