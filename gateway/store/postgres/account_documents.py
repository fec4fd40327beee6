"""
Stores the state of accounts in the database, encrypted with a key that is not in it, so that another machine
continues with the same login, device and keys. Calls block, on one connection; each is a transaction that
requires the lease. A first document is taken from the home's folder, whose copy is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from Crypto.Cipher import ChaCha20_Poly1305
from Crypto.Random import get_random_bytes

from agent_core.state_folder import DiskFolder, Row, StateUnreachable
from gateway.store.postgres.bounded_wait import BLOCKING_LIMIT_S, BeforeCall, BoundedWait
from gateway.store.postgres.pool import Pool
from gateway.store.postgres.postgres_connection import Transaction
from gateway.store.postgres.postgres_errors import is_connection_lost, unavailable
from gateway.store.sql.engine import ConnectionPort, lock_first, named_lock
from gateway.store.state_key import StateKey
from gateway.store.store_errors import StoreUnavailable, StoreUnusable

_NONCE_BYTES = 24
_TAG_BYTES = 16


class CannotDecrypt(ValueError):
    """The content was encrypted with another key or for another place, or is damaged."""


class StateEncryption:
    """Encrypts and decrypts documents; ``key`` is random, a password would be too weak."""

    def __init__(self, key: str) -> None:
        self._key = hashlib.sha256(b"squidbot state " + key.encode()).digest()

    def encrypt(self, content: bytes, *place: str) -> bytes:
        """Encrypt the content for this place."""
        nonce = get_random_bytes(_NONCE_BYTES)
        cipher = ChaCha20_Poly1305.new(key=self._key, nonce=nonce)
        cipher.update("\0".join(place).encode())
        covered, tag = cipher.encrypt_and_digest(content)
        return bytes(nonce + tag + covered)

    def decrypt(self, content: bytes, *place: str) -> bytes:
        """Decrypt the content. Raises `CannotDecrypt` if this key cannot."""
        nonce, rest = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
        try:
            cipher = ChaCha20_Poly1305.new(key=self._key, nonce=nonce)
            cipher.update("\0".join(place).encode())
            return bytes(cipher.decrypt_and_verify(rest[_TAG_BYTES:], rest[:_TAG_BYTES]))
        except ValueError as error:
            raise CannotDecrypt("it was encrypted with another key, or is damaged") from error


_Result = TypeVar("_Result")
KEY_CHECK = ("", "state-key")
KEY_PROOF = b"squidbot"
"""The name and the plaintext of the document that shows whether a key is the right one."""
_ADDRESS = "address"
"""The name of the document with the address of an account."""
_AT_ONCE = 500
_ROWS_A_SECOND = 500
_MAX_WAIT_S = 10.0
_DOCUMENTS = (
    *("session.json", "cross_signing.json", "verified.json", "pickle_key"),
    *("oauth.json", "answer-limits.json", "answer-brake.json", _ADDRESS),
)
_OF_SERVERS = (".login", ".told", ".json")


def document_names(folder: Path) -> list[str]:
    """Return the names of the documents in a folder of the home."""
    if folder.name == "mcp":
        return sorted(path.name for path in folder.glob("*") if path.suffix in _OF_SERVERS)
    return [name for name in _DOCUMENTS if (folder / name).is_file()]


def proven_encryption(key: StateKey, proof: bytes, where: str) -> StateEncryption:
    """Return the encryption that made this proof. Raises StoreUnusable: the key is missing or wrong."""
    known = key.read()
    if known is None:
        raise StoreUnusable(
            f"Logins and keys in {where} are encrypted with the state key of the machine that wrote them, "
            "which is not here: give it as gateway.state_key, or copy the file state/state-key of that "
            "machine's home into this one."
        )
    encryption = StateEncryption(known)
    try:
        encryption.decrypt(proof, *KEY_CHECK)
    except CannotDecrypt as error:
        raise StoreUnusable(
            f"Logins and keys in {where} are encrypted with another state key than the one here"
            " (gateway.state_key, or the file state/state-key)."
        ) from error
    return encryption


class AccountState:
    """The state of all accounts of a home; ``key`` encrypts the documents."""

    def __init__(self, reach: Pool, key: StateKey) -> None:
        self._reach = reach
        self._key = key
        self._encryption: StateEncryption | None = None
        self.name = secrets.token_hex(8)
        """The name of this process, for claims."""
        self._lock = threading.Lock()
        self._moment = BoundedWait(reach.where)
        self._db: psycopg.Connection | None = None

    def check(self) -> None:
        """Check the key against stored documents; blocks. Raises StateUnreachable or StoreUnusable."""
        with self._closed_if_not():
            found = self.call("read_state_key", lambda db: stored_content(db, *KEY_CHECK))
            if found is not None:
                self._compare(found)

    def open(self) -> None:
        """Do what `check` does; the first process to open the state determines its key."""
        self.check()
        if self._encryption is not None:
            return
        with self._closed_if_not():
            encrypted = StateEncryption(self._key.read_or_create()).encrypt(KEY_PROOF, *KEY_CHECK)
            self._compare(self.call("write_state_key", lambda db: _first(db, *KEY_CHECK, encrypted)))

    def check_accounts(self, addresses: Mapping[str, str], *, note: bool) -> None:
        """Check addresses; ``note`` records missing ones. Raises StateUnreachable or StoreUnusable."""
        if self._encryption is None:
            return  # nobody has stored anything yet
        for name, address in addresses.items():
            encrypted = self.encryption.encrypt(address.encode(), name, _ADDRESS)
            query = partial(_first, folder=name, name=_ADDRESS, content=encrypted)
            found = self.call("write_state", query) if note else self._stored_address(name)
            if found is None:
                continue
            other = self.encryption.decrypt(found, name, _ADDRESS).decode()
            if other.casefold() != address.casefold():
                raise StoreUnusable(
                    f"In {self._reach.where} the account {name} is {other}, but the configuration of this"
                    f" machine says {address}. The login, the keys and the messages there are {other}'s."
                    " Correct the address here, or give the new account another name.",
                    path=self._reach.where,
                )

    def _stored_address(self, name: str) -> bytes | None:
        return self.call("read_state", lambda db: stored_content(db, name, _ADDRESS))

    @contextlib.contextmanager
    def _closed_if_not(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _compare(self, found: bytes) -> None:
        self._encryption = proven_encryption(self._key, found, self._reach.where)

    def folder(self, name: str, local: Path) -> DatabaseFolder:
        """Return the state of one channel; ``local`` is its folder in this home."""
        return DatabaseFolder(self, name, local)

    @property
    def encryption(self) -> StateEncryption:
        """The encryption of the documents, once the key has been verified."""
        assert self._encryption is not None, "opened first"
        return self._encryption

    @property
    def where(self) -> str:
        """The database, as errors may show it."""
        return self._reach.where

    def close(self) -> None:
        """Close the connection."""
        if self._lock.acquire(timeout=BLOCKING_LIMIT_S):  # otherwise the connection ends with the process
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def call(
        self,
        name: str,
        run: Callable[[ConnectionPort], _Result],
        *,
        locks: tuple[str, ...] = (),
        within_s: float = BLOCKING_LIMIT_S,
    ) -> _Result:
        """Run a function in a transaction; blocks the loop up to ``within_s``. Raises StateUnreachable."""

        def alone(wanted: BeforeCall) -> _Result:
            with self._lock, self._away(name):
                wanted()
                return self._called(name, run, locks)

        return self._moment.wait_for(alone, within_s)

    def read(self, name: str, run: Callable[[psycopg.Connection], Iterator[_Result]]) -> Iterator[_Result]:
        """Yield a query's results in a thread, without time limit. Raises StateUnreachable."""
        with self._away(name):
            db = self._reach.connect()
            with contextlib.closing(db):
                transaction = self._reach.transaction(db, name)
                transaction.execute("SELECT set_config('statement_timeout', '60s', true)")
                yield from run(db)

    @contextlib.contextmanager
    def _away(self, name: str) -> Iterator[None]:
        """Convert errors of an unavailable database to `StateUnreachable`."""
        try:
            yield
        except StoreUnavailable as error:
            raise StateUnreachable(str(error)) from error
        except psycopg.Error as error:
            told = unavailable(error, self._reach.where, name)
            if told is error:
                raise
            if isinstance(told, StoreUnusable):
                raise told from error
            raise StateUnreachable(str(told)) from error

    def _called(self, name: str, run: Callable[[ConnectionPort], _Result], locks: tuple[str, ...]) -> _Result:
        is_second = False
        while True:
            if self._db is None or self._db.closed:
                self._db = self._reach.connect()
            transaction = self._reach.transaction(self._db, name)
            committing = False
            try:
                lock_first(transaction, locks)
                result = run(transaction)
                committing = True
                transaction.commit()
            except BaseException as error:
                lost = isinstance(error, psycopg.Error) and is_connection_lost(error)
                self._undo(transaction, lost=lost)
                if lost and not committing and not is_second:
                    is_second = True
                    continue
                raise
            return result

    def _undo(self, transaction: Transaction, *, lost: bool) -> None:
        try:
            if not lost:
                transaction.undo()
        except psycopg.Error:
            lost = True
        if lost:
            self._disconnect()

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(psycopg.Error):
                db.close()


class DatabaseFolder:
    """
    One channel's state: a `agent_core.state_folder.StateFolder` with ``RowStore``.

    ``local`` is its folder for caches, and for documents not in the database yet.
    """

    def __init__(self, state: AccountState, name: str, local: Path) -> None:
        self._state = state
        self._name = name
        self.local = local
        self._disk = DiskFolder(local)

    def __str__(self) -> str:
        return f"{self._state.where} {self._name}"

    @property
    def row_store(self) -> DatabaseFolder:
        """This object."""
        return self

    # ── documents ──

    def read(self, name: str) -> bytes | None:
        """See `agent_core.state_folder.StateFolder.read`."""
        query = "SELECT content FROM account_document WHERE folder = ? AND name = ?"
        found = self._state.call("read_state", lambda db: db.execute(query, (self._name, name)).fetchone())
        if found is None:
            return self._taken_over(name)
        return None if found[0] is None else self._decrypted(name, bytes(found[0]))

    def _taken_over(self, name: str) -> bytes | None:
        """Take over a document of the home that the database has never had."""
        here = self._disk.read(name)
        if here is None:
            return None
        encrypted = self._encrypted(name, here)
        kept = self._state.call("write_state", lambda db: _first(db, self._name, name, encrypted))
        self._disk.remove(name)
        return self._decrypted(name, kept)

    def write(self, name: str, content: bytes) -> None:
        """See `agent_core.state_folder.StateFolder.write`."""
        encrypted = self._encrypted(name, content)
        self._state.call("write_state", lambda db: put_content(db, self._name, name, encrypted))
        self._disk.remove(name)

    def swap(self, name: str, old: bytes, new: bytes) -> bytes | None:
        """See `agent_core.state_folder.StateFolder.swap`."""

        def swap(db: ConnectionPort) -> bytes | None:
            kept = stored_content(db, self._name, name)
            found = None if kept is None else self._decrypted(name, kept)
            if found != old:
                return found
            put_content(db, self._name, name, self._encrypted(name, new))
            return new

        return self._state.call("write_state", swap, locks=(self._lock_of(name),))

    def remove(self, name: str) -> bool:
        """See `agent_core.state_folder.StateFolder.remove`. A row records that the document existed."""

        def remove(db: ConnectionPort) -> bool:
            there = stored_content(db, self._name, name) is not None
            put_content(db, self._name, name, None)
            return there

        was_here = self._disk.remove(name)
        return self._state.call("write_state", remove, locks=(self._lock_of(name),)) or was_here

    def claim(self, name: str, *, for_s: float) -> bool:
        """See `agent_core.state_folder.StateFolder.claim`. It expires by the server's clock."""
        taken = (
            "UPDATE account_document SET claim = ?, claimed_until = extract(epoch FROM clock_timestamp()) + ?"
            " WHERE folder = ? AND name = ? AND (claim = ?"
            " OR COALESCE(claimed_until, 0) < extract(epoch FROM clock_timestamp()))"
        )
        me = self._state.name
        count = self._state.call(
            "write_state", lambda db: db.execute(taken, (me, for_s, self._name, name, me)).rowcount
        )
        return count == 1

    def _lock_of(self, name: str) -> str:
        return named_lock("account", f"{self._name}/{name}")

    def _encrypted(self, name: str, content: bytes) -> bytes:
        return self._state.encryption.encrypt(content, self._name, name)

    def _decrypted(self, name: str, encrypted: bytes) -> bytes:
        try:
            return self._state.encryption.decrypt(encrypted, self._name, name)
        except CannotDecrypt as error:
            raise OSError(None, f"{name} in {self} is damaged") from error

    # ── rows of files ──

    def generation(self, file: str) -> int | None:
        """See `agent_core.state_folder.RowStore.generation`."""
        query = "SELECT generation FROM account_file WHERE folder = ? AND file = ?"
        found = self._state.call("read_state", lambda db: db.execute(query, (self._name, file)).fetchone())
        return None if found is None else int(found[0])

    def rows(self, file: str, table: str = "") -> Iterator[Row]:
        """See `agent_core.state_folder.RowStore.rows`. Read all of them on a worker thread only."""
        if table:
            found = (
                "SELECT kind, key, content FROM account_row WHERE folder = ? AND file = ? AND kind = ?"
                " ORDER BY key"
            )
            of = (self._name, file, table)
            some = self._state.call("read_state", lambda db: db.execute(found, of).fetchall())
            return iter([_row(*row) for row in some])

        def read(db: psycopg.Connection) -> Iterator[Row]:
            with db.cursor("account_rows") as cursor:
                cursor.itersize = _AT_ONCE
                cursor.execute(
                    "SELECT kind, key, content FROM account_row WHERE folder = %s AND file = %s"
                    " ORDER BY kind, key",
                    (self._name, file),
                )
                for row in cursor:
                    yield _row(*row)

        return self._state.read("read_state", read)

    def save(
        self, file: str, generation: int, changed: Mapping[tuple[str, str], bytes | None], *, whole: bool
    ) -> None:
        """See `agent_core.state_folder.RowStore.save`."""
        of = (self._name, file)

        def save(db: ConnectionPort) -> bool:
            moved = db.execute(
                "UPDATE account_file SET generation = generation + 1"
                " WHERE folder = ? AND file = ? AND generation = ?",
                (*of, generation),
            ).rowcount
            if not moved and whole:
                moved = db.execute(
                    "INSERT INTO account_file (folder, file, generation) VALUES (?, ?, ?)"
                    " ON CONFLICT DO NOTHING",
                    (*of, generation + 1),
                ).rowcount
            if not moved:
                return False
            if whole:
                db.execute("DELETE FROM account_row WHERE folder = ? AND file = ?", of)
            db.executemany(
                "DELETE FROM account_row WHERE folder = ? AND file = ? AND kind = ? AND key = ?",
                [(*of, *row) for row, content in changed.items() if content is None],
            )
            db.executemany(
                "INSERT INTO account_row (folder, file, kind, key, content) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (folder, file, kind, key) DO UPDATE SET content = excluded.content",
                [(*of, *row, content) for row, content in changed.items() if content is not None],
            )
            return True

        within_s = min(_MAX_WAIT_S, BLOCKING_LIMIT_S + len(changed) / _ROWS_A_SECOND)
        if not self._state.call("write_state", save, within_s=within_s):
            raise StateUnreachable("another squidbot has written to the keys of this account")

    def forget(self, file: str) -> None:
        """See `agent_core.state_folder.RowStore.forget`."""

        def forget(db: ConnectionPort) -> None:
            db.execute("DELETE FROM account_row WHERE folder = ? AND file = ?", (self._name, file))
            db.execute("DELETE FROM account_file WHERE folder = ? AND file = ?", (self._name, file))

        self._state.call("write_state", forget)


def _row(kind: Any, key: Any, content: Any) -> Row:
    return str(kind), str(key), bytes(content)


def stored_content(db: ConnectionPort, folder: str, name: str) -> bytes | None:
    """Return the encrypted content of a document; None if there is none, or it was removed."""
    query = "SELECT content FROM account_document WHERE folder = ? AND name = ?"
    found = db.execute(query, (folder, name)).fetchone()
    return None if found is None or found[0] is None else bytes(found[0])


def put_content(db: ConnectionPort, folder: str, name: str, content: bytes | None) -> None:
    """Store the encrypted content of a document; None: it was removed."""
    db.execute(
        "INSERT INTO account_document (folder, name, content) VALUES (?, ?, ?)"
        " ON CONFLICT (folder, name) DO UPDATE"
        " SET content = excluded.content, claim = NULL, claimed_until = NULL",
        (folder, name, content),
    )


def _first(db: ConnectionPort, folder: str, name: str, content: bytes) -> bytes:
    """Insert a document where there was never one; return what is there afterwards."""
    db.execute(
        "INSERT INTO account_document (folder, name, content) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (folder, name, content),
    )
    return stored_content(db, folder, name) or content
