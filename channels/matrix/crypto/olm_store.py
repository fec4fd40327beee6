"""
Uses nio's private parts for storing keys: `KeyStore` is one file with all keys of a device. Imported late.
Deviations, tested in ``tests/unit/channels/matrix/test_olm_store.py``: related changes are one transaction
(`KeyStore.changing`), each raising ``generation``, which is committed beside the position to detect older
copies. Room keys are loaded on demand, once per sending device, kept with their sender and never replaced by
one that reads less: room members could spoil keys or replay ciphertexts. `KeyStore.upkeep` and
`KeyStore.remove_excess` bound keys and sessions: a room key goes when a newer one exists, nothing waits for
it and it was unused for `UNUSED_DAYS` of running; beyond `MAX_KEYS` the largest holder loses the oldest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import vodozemac
from cachetools import LRUCache
from nio.crypto import InboundGroupSession, Olm
from nio.crypto.memorystores import GroupSessionStore
from nio.store import MatrixStore
from peewee import DatabaseError, OperationalError  # type: ignore[import-untyped] # it has no types

from agent_core.state_folder import RowStore, StateUnreachable
from channels.matrix.crypto.key_store_copy import KeyStoreReplica
from channels.matrix.crypto.key_types import StoreBroken, excess_items

UNUSED_DAYS = 30
MAX_OF_A_DEVICE = 5000
MAX_KEYS = 50_000
MAX_UNKNOWN = 1000
"""Of devices with which there is a session, and of which no list tells."""
_COUNT_AFTER = 1000
"""The number of new room keys after which they are counted, which is expensive."""
_CACHE_KIB = 500
_SESSIONS_OF_A_DEVICE = 8
_log = structlog.get_logger(__name__)
_TABLES = (
    "CREATE TABLE IF NOT EXISTS squidbot (id INTEGER PRIMARY KEY, generation INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO squidbot VALUES (1, 0)",
    (
        "CREATE TABLE IF NOT EXISTS squidbot_days"
        " (id INTEGER PRIMARY KEY, date TEXT NOT NULL, day INTEGER NOT NULL)"
    ),
    "INSERT OR IGNORE INTO squidbot_days VALUES (1, '', 0)",
    (
        "CREATE TABLE IF NOT EXISTS squidbot_room_keys"
        " (room_id TEXT NOT NULL, session_id TEXT NOT NULL, sender_key TEXT NOT NULL, fp_key TEXT NOT NULL,"
        " session BLOB NOT NULL, used INTEGER NOT NULL, UNIQUE (session_id, sender_key))"
    ),
    (
        "CREATE TABLE IF NOT EXISTS squidbot_key_owners"
        " (session_id TEXT NOT NULL, sender_key TEXT NOT NULL, user_id TEXT NOT NULL,"
        " PRIMARY KEY (session_id, sender_key)) WITHOUT ROWID"
    ),
    "CREATE INDEX IF NOT EXISTS squidbot_room_keys_of ON squidbot_room_keys (sender_key)",
    # What nio itself has kept, from before.
    (
        "INSERT OR IGNORE INTO squidbot_room_keys SELECT room_id, session_id, sender_key, fp_key, session, 0"
        " FROM megolminboundsessions"
    ),
    "DELETE FROM megolminboundsessions",
)
_KEY = (
    "room_id, squidbot_room_keys.sender_key, fp_key, session, user_id FROM squidbot_room_keys"
    " LEFT JOIN squidbot_key_owners USING (session_id, sender_key)"
)
_PRUNE = """
DELETE FROM squidbot_room_keys WHERE rowid IN (
  SELECT number FROM (
    SELECT rowid AS number, room_id, session_id, used,
      ROW_NUMBER() OVER (PARTITION BY room_id, sender_key ORDER BY rowid DESC) AS newer,
      ROW_NUMBER() OVER (PARTITION BY sender_key ORDER BY rowid DESC) AS newer_anywhere
    FROM squidbot_room_keys)
  WHERE session_id NOT IN (SELECT id FROM squidbot_waited) AND (
    newer_anywhere > ?
    OR (used < ? AND (newer > 1 OR room_id NOT IN (SELECT id FROM squidbot_rooms)))))
"""
_PRUNE_OWNERS = """
DELETE FROM squidbot_key_owners AS owner WHERE NOT EXISTS (
  SELECT 1 FROM squidbot_room_keys AS key
  WHERE key.session_id = owner.session_id AND key.sender_key = owner.sender_key)
"""
_FORGET_DEVICES = (
    "DELETE FROM keys WHERE device_id IN (SELECT id FROM devicekeys WHERE deleted",
    "DELETE FROM devicekeys WHERE (deleted",
)
_PRUNE_OLM = """
SELECT session_id, sender_key FROM (
  SELECT session_id, sender_key,
    ROW_NUMBER() OVER (PARTITION BY sender_key ORDER BY last_usage_date DESC) AS newer FROM olmsessions)
WHERE newer > ?
"""


def store_path(folder: Path, device_id: str) -> Path:
    """The path of a device's file."""
    return folder / f"crypto-{hashlib.sha256(device_id.encode()).hexdigest()[:16]}.db"


def owner_of(session: Any) -> str:
    """The sender of a room key; empty if it was not stored."""
    return str(getattr(session, "squidbot_owner", ""))


class _Store(MatrixStore):  # type: ignore[misc] # nio is not looked into by the type checker
    """nio's store without room keys, which `RoomKeys` has. It is closed again if it cannot be opened."""

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except BaseException:
            database = getattr(self, "database", None)
            if database is not None:
                database.close()
            raise

    def load_inbound_group_sessions(self) -> Any:
        return GroupSessionStore()

    def save_inbound_group_session(self, session: Any) -> None:
        pass


class RoomKeys:
    """
    All room keys of a device, for nio's `GroupSessionStore`; recent ones in memory.

    They are in ``database``, in its open transaction.
    """

    def __init__(self, database: Any, pickle_key: str) -> None:
        self._database = database
        self._pickle_key = pickle_key
        self._at_hand: LRUCache[tuple[str, str], list[Any]] = LRUCache(500)
        self._used: set[str] = set()
        self._new = _COUNT_AFTER
        self.day = int(self._one("SELECT day FROM squidbot_days")[0])

    def __len__(self) -> int:
        return int(self._one("SELECT COUNT(*) FROM squidbot_room_keys")[0])

    def __iter__(self) -> Iterator[Any]:
        last = -1
        while True:  # in portions: nothing is open while the caller does other things
            rows = self._all(
                f"SELECT squidbot_room_keys.rowid, {_KEY} WHERE squidbot_room_keys.rowid > ?"
                " ORDER BY squidbot_room_keys.rowid LIMIT 200",
                last,
            )
            for last, *row in rows:  # noqa: B007 - the place to go on from
                yield self._loaded(*row)
            if not rows:
                return

    def add(self, session: Any) -> bool:
        """Store a key, unless the same device has sent one that decrypts as much; returns whether it did."""
        for kept in self.keys_of(session.room_id, session.id):
            if kept.sender_key == session.sender_key and kept.first_known_index <= session.first_known_index:
                return False
        self._database.execute_sql(
            "INSERT INTO squidbot_room_keys (room_id, session_id, sender_key, fp_key, session, used)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (session_id, sender_key) DO UPDATE SET"
            " session = excluded.session, used = excluded.used WHERE room_id = excluded.room_id",
            (
                session.room_id,
                session.id,
                session.sender_key,
                session.ed25519,
                session.pickle(self._pickle_key),
                self.day,
            ),
        )
        self._at_hand.pop((session.room_id, session.id), None)
        self._new += 1
        if owner := owner_of(session):
            self.set_owner(session, owner)
        return True

    def set_owner(self, session: Any, user_id: str) -> None:
        """Set the device that sent a key, according to its homeserver and the key itself."""
        self._database.execute_sql(
            "INSERT OR IGNORE INTO squidbot_key_owners VALUES (?, ?, ?)",
            (session.id, session.sender_key, user_id),
        )
        self._at_hand.pop((session.room_id, session.id), None)

    def keys_of(self, room_id: str, session_id: str) -> list[Any]:
        """The keys with that session id, one for each device that sent it."""
        found = self._at_hand.get((room_id, session_id))
        if found is None:
            rows = self._all(
                f"SELECT {_KEY} WHERE squidbot_room_keys.session_id = ? AND room_id = ?", session_id, room_id
            )
            found = [self._loaded(*row) for row in rows]
            if found:
                self._at_hand[room_id, session_id] = found
        return found

    def senders(self, sender_key: str) -> set[tuple[str, str]]:
        """Return the user ids and Ed25519 keys that have sent room keys with a Curve25519 key."""
        rows = self._all(
            "SELECT DISTINCT user_id, fp_key FROM squidbot_room_keys AS key JOIN squidbot_key_owners"
            " USING (session_id, sender_key) WHERE key.sender_key = ?",
            sender_key,
        )
        return {(str(user_id), str(fingerprint)) for user_id, fingerprint in rows}

    def get(self, room_id: str, sender_key: str, session_id: str) -> Any:
        """A key, in the form in which nio asks for it."""
        return next((one for one in self.keys_of(room_id, session_id) if one.sender_key == sender_key), None)

    def mark_used(self, session_id: str) -> None:
        """Note that the key decrypted a message. The next `upkeep` records it."""
        self._used.add(session_id)

    def forget(self) -> None:
        """Drop the cache, because a transaction was rolled back."""
        self._at_hand.clear()

    def remove_excess(self) -> None:
        """After many new keys: remove those beyond the limits."""
        if self._new < _COUNT_AFTER:
            return
        self._new = 0
        if len(self) <= MAX_KEYS:
            return
        rows = self._all(
            "SELECT key.rowid, IFNULL(user_id, '') FROM squidbot_room_keys AS key"
            " LEFT JOIN squidbot_key_owners USING (session_id, sender_key) ORDER BY key.rowid"
        )
        gone = excess_items([(int(row), str(user_id)) for row, user_id in rows], MAX_KEYS * 9 // 10)
        for row, _ in gone:
            self._database.execute_sql("DELETE FROM squidbot_room_keys WHERE rowid = ?", (row,))
        self._database.execute_sql(_PRUNE_OWNERS)
        _log.warning("matrix.keys_crowded_out", gone=len(gone))
        self.forget()

    def prune(self, date: str, *, waiting: Iterable[str], rooms: Iterable[str]) -> int:
        """Remove keys that nobody will miss, see the module; returns how many."""
        if self._one("SELECT date FROM squidbot_days")[0] != date:
            self.day += 1
            self._database.execute_sql("UPDATE squidbot_days SET date = ?, day = ?", (date, self.day))
        for session_id in self._used:
            self._database.execute_sql(
                "UPDATE squidbot_room_keys SET used = ? WHERE session_id = ?", (self.day, session_id)
            )
        self._used.clear()
        for table, values in (("squidbot_waited", waiting), ("squidbot_rooms", rooms)):
            self._database.execute_sql(f"CREATE TEMP TABLE IF NOT EXISTS {table} (id TEXT PRIMARY KEY)")
            self._database.execute_sql(f"DELETE FROM {table}")  # noqa: S608 - one of two constants
            for value in values:
                self._database.execute_sql(f"INSERT OR IGNORE INTO {table} VALUES (?)", (value,))  # noqa: S608
        done = self._database.execute_sql(_PRUNE, (MAX_OF_A_DEVICE, self.day - UNUSED_DAYS))
        self._database.execute_sql(_PRUNE_OWNERS)
        self.forget()
        return max(int(done.rowcount), 0)

    def _loaded(self, room_id: str, sender_key: str, fp_key: str, pickled: bytes, owner: str | None) -> Any:
        session = InboundGroupSession.from_pickle(
            bytes(pickled), fp_key, sender_key, room_id, self._pickle_key
        )
        session.squidbot_owner = owner or ""
        return session

    def _one(self, sql: str, *values: Any) -> Any:
        return self._database.execute_sql(sql, values).fetchone()

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return list(self._database.execute_sql(sql, values).fetchall())


class KeyStore:
    """All keys of one device, in a file made of ``rows``. Raises StoreBroken (lost) or OSError."""

    def __init__(
        self, folder: Path, user_id: str, device_id: str, pickle_key: str, rows: RowStore | None = None
    ) -> None:
        self.user_id = user_id
        self.device_id = device_id
        self.path = store_path(folder, device_id)
        self.is_stale = False
        """Something was undone, or somebody else has written: it is to be opened again."""
        self._rows = rows
        self._shadow: KeyStoreReplica | None = None
        self._database: Any = None
        try:
            self._load(folder, pickle_key)
        except OperationalError as error:
            raise OSError(f"the crypto store {self.path} cannot be used: {error}") from error
        except (StateUnreachable, StoreBroken):
            if self._database is not None:
                self._database.close()
            raise
        except (
            DatabaseError,
            vodozemac.PickleException,
            vodozemac.LibolmPickleException,
            ValueError,
            TypeError,
        ) as error:
            if self._database is not None:
                self._database.close()
            raise StoreBroken(type(error).__name__) from error

    def _load(self, folder: Path, pickle_key: str) -> None:
        self.path.touch(mode=0o600)
        self._store = _Store(self.user_id, self.device_id, str(folder), pickle_key, self.path.name)
        self._database = self._store.database
        self._database.execute_sql("PRAGMA journal_mode=WAL")
        self._database.execute_sql("PRAGMA synchronous=FULL")
        self._database.execute_sql(f"PRAGMA cache_size=-{_CACHE_KIB}")
        with self._database.atomic():
            for statement in _TABLES:
                self._database.execute_sql(statement)
        row = self._database.execute_sql("SELECT generation FROM squidbot").fetchone()
        self.generation = int(row[0])
        self.room_keys = RoomKeys(self._database, pickle_key)
        if self._rows is not None:
            self._shadow = KeyStoreReplica(self._database, self._rows, self.device_id)
            self.generation = self._shadow.generation
        with self._database.atomic():
            for statement in _FORGET_DEVICES:
                self._database.execute_sql(f"{statement})")
            self._olm = Olm(self.user_id, self.device_id, self._store)
            self._olm.inbound_group_store = self.room_keys
            self._unknown = {key: "" for key, found in self._olm.session_store.items() if found}
            """Curve25519 keys with sessions, of which no list of devices may tell, and whose they are."""
            self._shipped()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One transaction of the store."""
        try:
            if self.is_stale:
                raise StateUnreachable("the crypto store is opened again first")  # noqa: TRY301 - ends as one does
            with self._database.atomic():
                yield
                if not self._shipped():
                    self._database.execute_sql("UPDATE squidbot SET generation = ?", (self.generation + 1,))
                    self.generation += 1
        except BaseException as error:
            self.room_keys.forget()
            self.is_stale = self._shadow is not None  # what is in memory may be ahead of what is kept
            if isinstance(error, OperationalError):
                raise OSError(f"the crypto store {self.path} cannot be written: {error}") from error
            raise

    def _shipped(self) -> bool:
        """Have a shared database know what this transaction has changed; False: there is none."""
        if self._shadow is None:
            return False
        self._shadow.replicate()
        self.generation = self._shadow.generation
        return True

    def close(self) -> None:
        """Close the store."""
        self._database.close()

    def discard(self) -> None:
        """Close and remove the file: the device no longer exists."""
        self.close()
        if self._shadow is not None:
            self._shadow.forget()
        for ending in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)

    def adopt(self, other: KeyStore) -> None:
        """Take over the room keys of an earlier device, so that messages to it stay readable."""
        with self.changing():
            for session in other.room_keys:
                self.room_keys.add(session)

    def remove_excess(self, begun: Iterable[tuple[str, str]], asked: Iterable[tuple[str, str]]) -> None:
        """
        Remove entries beyond the limits, after to-device messages.

        ``begun`` maps Curve25519 keys of new sessions to users; ``asked`` are looked-up keys, for each of
        which nio keeps an empty entry.
        """
        sessions, people = self._olm.session_store, self._olm.device_store
        for key, user_id in asked:
            if not sessions[key]:
                del sessions._entries[key]  # noqa: SLF001 - see the module
            if not people[user_id]:
                del people._entries[user_id]  # noqa: SLF001 - as above
        for key, user_id in begun:
            self._unknown.pop(key, None)
            self._unknown[key] = user_id
            self._end_sessions(key, _SESSIONS_OF_A_DEVICE)
        if len(self._unknown) > MAX_UNKNOWN:
            known = {device.curve25519 for device in people if not device.deleted}
            for key in known & self._unknown.keys():
                del self._unknown[key]
            for key, _ in excess_items(list(self._unknown.items()), MAX_UNKNOWN * 9 // 10):
                del self._unknown[key]
                self._end_sessions(key, 0)
                sessions._entries.pop(key, None)  # noqa: SLF001 - as above
        self.room_keys.remove_excess()

    def forget_devices(self, user_id: str) -> None:
        """Forget a person's deleted devices, and to whom their sessions belong."""
        theirs, sessions = self._olm.device_store[user_id], self._olm.session_store
        gone = [device for device in theirs.values() if device.deleted]
        for device in gone:
            del theirs[device.id]
            if sessions[device.curve25519]:
                self._unknown[device.curve25519] = user_id
            else:
                del sessions._entries[device.curve25519]  # noqa: SLF001 - see the module
        for statement in _FORGET_DEVICES if gone else ():
            self._database.execute_sql(f"{statement} AND user_id = ?)", (user_id,))

    def _end_sessions(self, sender_key: str, left: int) -> None:
        """Give up the sessions with a device, except for the newest."""
        known = self._olm.session_store[sender_key]
        for session in known[left:]:
            self._database.execute_sql("DELETE FROM olmsessions WHERE session_id = ?", (session.id,))
        del known[left:]

    def upkeep(self, date: str, *, waiting: Iterable[str], rooms: Iterable[str]) -> int:
        """Remove expired rows; return the number of room keys. ``date`` changes daily."""
        with self.changing():
            pruned = self.room_keys.prune(date, waiting=waiting, rooms=rooms)
            rows = self._database.execute_sql(_PRUNE_OLM, (_SESSIONS_OF_A_DEVICE,)).fetchall()
            for session_id, sender_key in rows:
                self._database.execute_sql("DELETE FROM olmsessions WHERE session_id = ?", (session_id,))
                known = self._olm.session_store[sender_key]
                known[:] = [session for session in known if session.id != session_id]
        return pruned
