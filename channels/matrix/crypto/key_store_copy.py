"""
Copies the rows of a crypto store to a database that several machines share. Imported late, with nio. The
local SQLite file is then a cache made of the rows (`fetch`); TEMP triggers record changed rows, and
`KeyStoreReplica.replicate` sends them before the local commit. A process behind, or without its lease, is
refused and its transaction undone. Keys stay encrypted with the pickle key. A cache has the generation
`CACHE`, which an embedded queue takes for an older copy.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from peewee import DatabaseError, SqliteDatabase  # type: ignore[import-untyped] # it has no types

from agent_core.files import make_folder
from agent_core.state_folder import Row, RowStore
from channels.matrix.crypto.key_types import StoreBroken

CACHE = -1
_SCHEMA = "sqlite_master"
_OWN = "squidbot"
"""The table that holds the generation of a file that is no cache."""


def fetch(path: Path, rows: RowStore, device: str) -> None:
    """Make a device's file from its database rows, if any. Blocks. Raises `OSError`."""
    make_folder(path.parent)
    if rows.generation(device) is None:
        return
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    path.touch(mode=0o600)
    database = SqliteDatabase(str(path), pragmas={"synchronous": "OFF", "foreign_keys": 0})
    try:
        _fill(database, rows.rows(device))
    finally:
        database.close()


def rows_of(path: Path) -> tuple[str, int, list[Row]]:
    """Return an unused file's device, generation and sorted rows. Raises StoreBroken, also for caches."""
    database = SqliteDatabase(str(path), pragmas={"foreign_keys": 0})
    try:
        [device] = database.execute_sql("SELECT device_id FROM accounts").fetchone()
        [generation] = database.execute_sql(f"SELECT generation FROM {_OWN}").fetchone()  # noqa: S608 - a constant
        if generation == CACHE:
            raise StoreBroken("it is a copy of what a database has")
        found = [(_SCHEMA, name, _packed([text])) for name, text in _schema_of(database)]
        for _, name, values in list(found):
            if str(_values(values)[0]).startswith("CREATE TABLE"):
                kept = _all_of(database, name, _keys(database, name))
                found += [(name, key, row if name != _OWN else _packed([1, CACHE])) for key, row in kept]
        return str(device), int(generation), sorted(found)
    except (DatabaseError, TypeError) as error:
        raise StoreBroken(type(error).__name__) from error
    finally:
        database.close()


def _fill(database: Any, rows: Iterable[Row]) -> None:
    texts: dict[str, str] = {}
    with database.atomic():
        for kind, key, values in _schema_first(rows):
            if kind == _SCHEMA:
                database.execute_sql(str(_values(values)[0]))
                continue
            if kind not in texts:
                columns = _columns(database, kind)
                names = columns if _keys(database, kind) else ["rowid", *columns]
                marks = ", ".join("?" * len(names))
                texts[kind] = f"INSERT OR REPLACE INTO {kind} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 - names of our tables
            own = [] if key.startswith("[") else [int(key)]
            database.execute_sql(texts[kind], (*own, *_values(values)))
        database.execute_sql(f"UPDATE {_OWN} SET generation = ?", (CACHE,))  # noqa: S608 - a constant


def _schema_first(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows come sorted by table; tables are made before indexes, and both before there are rows."""
    later: list[Row] = []
    schema: list[Row] = []
    rows = iter(rows)
    for row in rows:
        (schema if row[0] == _SCHEMA else later).append(row)
        if row[0] > _SCHEMA:
            break
    yield from sorted(schema, key=lambda row: not str(_values(row[2])[0]).startswith("CREATE TABLE"))
    yield from later
    yield from rows


class KeyStoreReplica:
    """Follows the changes of an open ``database``. Raises StoreBroken for a mere cache."""

    def __init__(self, database: Any, rows: RowStore, device: str) -> None:
        self._database = database
        self._rows = rows
        self._device = device
        database.execute_sql("PRAGMA synchronous=OFF")  # it is thrown away at the next start
        database.execute_sql("PRAGMA recursive_triggers=ON")  # REPLACE deletes
        found = rows.generation(device)
        [own] = database.execute_sql(f"SELECT generation FROM {_OWN}").fetchone()  # noqa: S608 - a constant
        if found is None and own == CACHE:
            raise StoreBroken("the database has nothing of it")
        self.generation = int(own) if found is None else found
        self._is_new = found is None
        self._texts = {
            name: text for name, text in _schema_of(self._database) if text.startswith("CREATE TABLE")
        }
        self._tables = {name: _keys(database, name) for name in self._texts if name != _OWN}
        self._follow()
        self._whole = self._is_new or not self._same_schema()

    def _same_schema(self) -> bool:
        """Return True if the copy has the current tables; nio may have migrated some."""
        kept = {key: values for _, key, values in self._rows.rows(self._device, _SCHEMA)}
        return kept == {name: _packed([text]) for name, text in _schema_of(self._database)}

    def _follow(self) -> None:
        self._database.execute_sql(
            "CREATE TEMP TABLE squidbot_changed (kind TEXT, key TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID"
        )
        for name, keys in self._tables.items():
            for moment, sides in (("INSERT", ["NEW"]), ("UPDATE", ["OLD", "NEW"]), ("DELETE", ["OLD"])):
                marks = " ".join(
                    f"INSERT OR IGNORE INTO squidbot_changed VALUES ('{name}', {_key_of(side, keys)});"  # noqa: S608 - names of our tables
                    for side in sides
                )
                self._database.execute_sql(
                    f"CREATE TEMP TRIGGER squidbot_{moment}_{name} AFTER {moment} ON main.{name}"
                    f" BEGIN {marks} END"
                )

    def replicate(self) -> bool:
        """Send changes inside their transaction; True if there were any. Raises OSError: undo it then."""
        changed: dict[tuple[str, str], bytes | None] = {}
        if self._whole:
            changed = {(_SCHEMA, name): _packed([text]) for name, text in _schema_of(self._database)}
            changed |= {(_OWN, "1"): _packed([1, CACHE])}
            for name, keys in self._tables.items():
                changed |= {(name, key): values for key, values in _all_of(self._database, name, keys)}
        else:
            noted = self._database.execute_sql("SELECT kind, key FROM squidbot_changed").fetchall()
            changed = {(kind, key): self._row(kind, key) for kind, key in noted}
        if not changed:
            return False
        self._rows.save(self._device, self.generation, changed, whole=self._whole)
        self._database.execute_sql("DELETE FROM squidbot_changed")
        if self._is_new:
            self._database.execute_sql(f"UPDATE {_OWN} SET generation = ?", (CACHE,))  # noqa: S608 - a constant
        self._whole = self._is_new = False
        self.generation += 1
        return True

    def forget(self) -> None:
        """Remove everything that is stored of this device."""
        self._rows.forget(self._device)

    def _row(self, kind: str, key: str) -> bytes | None:
        keys = self._tables[kind]
        where, values = ("rowid = ?", [int(key)]) if not keys else (_equal(keys), json.loads(key))
        found = self._database.execute_sql(f"SELECT * FROM {kind} WHERE {where}", values).fetchone()  # noqa: S608 - names of our tables
        return None if found is None else _packed(found)


def _schema_of(database: Any) -> list[tuple[str, str]]:
    rows = database.execute_sql(
        "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    )
    return [(str(name), str(text)) for name, text in rows.fetchall()]


def _all_of(database: Any, name: str, keys: list[str]) -> Iterator[tuple[str, bytes]]:
    key = _key_of(name, keys)
    for own, *values in database.execute_sql(f"SELECT {key}, * FROM {name}").fetchall():  # noqa: S608 - names of our tables
        yield str(own), _packed(values)


def _columns(database: Any, table: str) -> list[str]:
    return [str(row[1]) for row in database.execute_sql(f"PRAGMA table_info({table})").fetchall()]


def _keys(database: Any, table: str) -> list[str]:
    """The columns that are the key of a table without row numbers; none where there are such numbers."""
    [text] = database.execute_sql("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    if "WITHOUT ROWID" not in str(text).upper():
        return []
    rows = database.execute_sql(f"PRAGMA table_info({table})").fetchall()
    return [str(row[1]) for row in sorted(rows, key=lambda row: int(row[5])) if row[5]]


def _key_of(side: str, keys: list[str]) -> str:
    return f"json_array({', '.join(f'{side}.{key}' for key in keys)})" if keys else f"{side}.rowid"


def _equal(keys: list[str]) -> str:
    return " AND ".join(f"{key} = ?" for key in keys)


def _packed(values: Iterable[Any]) -> bytes:
    plain = [
        {"b": base64.b64encode(value).decode()} if isinstance(value, bytes | memoryview) else value
        for value in values
    ]
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _values(packed: bytes) -> list[Any]:
    return [
        base64.b64decode(value["b"]) if isinstance(value, dict) else value
        for value in json.loads(packed.decode("utf-8", "surrogatepass"))
    ]
