"""Checks the tables of histories and memory for damage, without changing them."""

from __future__ import annotations

from collections.abc import Iterator

from agent_core.messages import SessionKey
from agent_core.storage.history_lines import as_object, from_object
from agent_core.storage.memory_files import Version
from agent_core.storage.search_index.indexed_files import searched_line
from agent_core.storage.session_files import parse_record
from gateway.store.postgres.histories import history_rows
from gateway.store.postgres.histories.database_search import IndexedText
from gateway.store.postgres.histories.personal_lines import KeptTables
from gateway.store.stores import Trouble

_SHOWN = 3


_BACKUP = "bring back a backup of the database; everything else goes on meanwhile"


def troubles(kept: KeptTables) -> Iterator[Trouble]:
    """Read every row and report its problems; a daemon may be running."""
    for name in sorted(str(row[0]) for row in kept.select("SELECT DISTINCT session FROM history")):
        yield from _history(kept, name)
    for name, raw, _ in kept.select("SELECT session, record, version FROM consolidation ORDER BY session"):
        yield from _record(kept, name, raw)
    yield from _documents(kept)


def _history(kept: KeptTables, name: str) -> Iterator[Trouble]:
    try:
        history = kept.history(SessionKey.parse(name))
    except ValueError:
        yield Trouble("histories", f"{name!r} is no session", _BACKUP, serious=False)
        return
    bad, unsearched, expected = [], 0, 0
    for seq, raw, said in history.search_lines():
        if seq != expected:
            yield Trouble("histories", f"{name}: lines {expected} to {seq - 1} are missing", _BACKUP)
        expected = seq + 1
        value = as_object(raw.encode())
        if raw and (value is None or from_object(value) is None):
            bad.append(seq)
            continue
        line = searched_line(value, seq)
        unsearched += said != (None if line is None else IndexedText.from_line(kept.home, line).said)
    if bad:
        places = ", ".join(map(str, bad[:_SHOWN])) + (" and more" if len(bad) > _SHOWN else "")
        yield Trouble("histories", f"{name}: {len(bad)} lines cannot be read: {places}", _BACKUP)
    if unsearched:
        yield Trouble(
            "search index",
            f"{name}: {unsearched} lines cannot be found by their words",
            "squidbot sessions reindex rebuilds them",
        )


def _record(kept: KeptTables, name: str, raw: str) -> Iterator[Trouble]:
    remedy = f"squidbot sessions reset {name} resets the conversation; its history stays"
    try:
        record = parse_record(raw.encode(), SessionKey.parse(name), str)
    except ValueError:
        record = None
    if record is None:
        yield Trouble("records", f"{name}: its record cannot be read", remedy)
    elif record.cursor > (end := kept.read(lambda db: history_rows.end(db, name))):
        yield Trouble("records", f"{name}: its cursor ({record.cursor}) is beyond the end ({end})", remedy)


def _documents(kept: KeptTables) -> Iterator[Trouble]:
    expected: dict[str, int] = {}
    for scope, number, raw in kept.select("SELECT scope, version, line FROM memory ORDER BY scope, version"):
        version = Version.parse_or_none(raw.encode())
        if version is None or version.document.version != number:
            yield Trouble("memory", f"{scope}: version {number} cannot be read", _BACKUP)
        if number != expected.get(scope, number):
            yield Trouble("memory", f"{scope}: versions before {number} are missing", _BACKUP, serious=False)
        expected[scope] = number + 1
