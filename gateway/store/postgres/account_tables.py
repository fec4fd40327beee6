"""Reads and writes the state of accounts in a database as one side of a move, inside its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from agent_core.state_folder import Row
from gateway.store.copied_tables import batches
from gateway.store.postgres.account_documents import (
    KEY_CHECK,
    KEY_PROOF,
    CannotDecrypt,
    StateEncryption,
    proven_encryption,
    put_content,
    stored_content,
)
from gateway.store.sql.engine import ConnectionPort
from gateway.store.state_key import StateKey
from gateway.store.store_errors import StoreUnusable

_ROWS = 500
Streamed = Callable[[str, Sequence[object]], Iterator[tuple[object, ...]]]


class AccountTables:
    """The documents and files' rows of accounts; ``streamed`` runs queries with many rows."""

    def __init__(self, db: ConnectionPort, streamed: Streamed, where: str) -> None:
        self._db = db
        self._streamed = streamed
        self._where = where

    def has_content(self) -> bool:
        """Return True if an account has ever stored anything."""
        query = "SELECT 1 FROM account_document WHERE folder <> '' LIMIT 1"
        return self._db.execute(query).fetchone() is not None

    def clear(self) -> None:
        """Delete everything."""
        for name in ("account_document", "account_file", "account_row"):
            self._db.execute(f"DELETE FROM {name}")  # noqa: S608 - constants

    def encryption(self, key: StateKey) -> StateEncryption:
        """Return the encryption of the documents. Raises StoreUnusable for a missing or other key."""
        found = stored_content(self._db, *KEY_CHECK)
        if found is not None:
            return proven_encryption(key, found, self._where)
        made = StateEncryption(key.read_or_create())
        self.add(made, *KEY_CHECK, KEY_PROOF)
        return made

    def add(self, encryption: StateEncryption, folder: str, name: str, content: bytes) -> None:
        """Insert a document."""
        put_content(self._db, folder, name, encryption.encrypt(content, folder, name))

    def documents(self, encryption: StateEncryption) -> Iterator[tuple[str, str, bytes | None]]:
        """Yield each document's folder, name and content (None: removed). Raises StoreUnusable."""
        query = "SELECT folder, name, content FROM account_document WHERE folder <> '' ORDER BY folder, name"
        for folder, name, content in self._db.execute(query).fetchall():
            try:
                yield (
                    folder,
                    name,
                    None if content is None else encryption.decrypt(bytes(content), folder, name),
                )
            except CannotDecrypt as error:
                raise StoreUnusable(f"{name} of {folder} in {self._where} is damaged") from error

    def add_file(self, folder: str, file: str, generation: int, rows: Iterable[Row]) -> None:
        """Insert the rows of a file."""
        self._db.execute(
            "INSERT INTO account_file (folder, file, generation) VALUES (?, ?, ?)", (folder, file, generation)
        )
        text = "INSERT INTO account_row (folder, file, kind, key, content) VALUES (?, ?, ?, ?, ?)"
        for batch in batches(rows, _ROWS):
            self._db.executemany(text, [(folder, file, *row) for row in batch])

    def files(self) -> list[tuple[str, str, int]]:
        """Return folder, name and generation of each file."""
        query = "SELECT folder, file, generation FROM account_file ORDER BY folder, file"
        return [
            (str(folder), str(file), int(number))
            for folder, file, number in self._db.execute(query).fetchall()
        ]

    def rows(self, folder: str, file: str) -> Iterator[Row]:
        """Yield the rows of a file, sorted."""
        query = (
            "SELECT kind, key, content FROM account_row WHERE folder = %s AND file = %s ORDER BY kind, key"
        )
        for kind, key, content in self._streamed(query, (folder, file)):
            assert isinstance(content, bytes | memoryview), "the column is of bytes"
            yield str(kind), str(key), bytes(content)

    def make_older(self) -> None:
        """Make every key store count as an older copy at its next start, which replaces the device."""
        self._db.execute("UPDATE account_file SET generation = -1")
