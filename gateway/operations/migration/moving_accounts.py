"""
Moves logins and keys of accounts between a home and a database, for
`gateway.operations.migration.migrate_operation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.state_folder import DiskFolder, Row
from gateway.plugins import channel_kinds
from gateway.store.state_key import StateKey
from gateway.system.home import Home

if TYPE_CHECKING:
    from gateway.store.postgres.account_tables import AccountTables


@dataclass(slots=True)
class HomeAccounts:
    """Logins and keys in the folders of a home. ``notes`` says what cannot be moved."""

    home: Home
    key: StateKey
    notes: list[str] = field(default_factory=list)

    def documents(self) -> Iterator[tuple[str, str, bytes]]:
        """Folder, name and content of each."""
        from gateway.store.postgres.account_documents import document_names

        for folder in _folders(self.home):
            for name in document_names(folder):
                if (content := DiskFolder(folder).read(name)) is not None:
                    yield folder.name, name, content

    def files(self) -> Iterator[tuple[str, str, int, list[Row]]]:
        """Folder, device, generation and rows of each key store."""
        for folder, plugin in product(_folders(self.home), channel_kinds().values()):
            for device, generation, rows in plugin.read_row_files(folder, self.notes.append):
                yield folder.name, device, generation, rows

    def copy(self, target: AccountTables) -> None:
        """Put all of it into the database."""
        target.clear()
        encryption = target.encryption(self.key)
        for folder, name, content in self.documents():
            target.add(encryption, folder, name, content)
        for folder, device, generation, rows in self.files():
            target.add_file(folder, device, generation, rows)


def write_accounts(home: Home, source: AccountTables, key: StateKey) -> None:
    """Write a database's logins and keys into a home's folders. Raises StoreUnusable, OSError."""
    for folder, name, content in source.documents(source.encryption(key)):
        disk = DiskFolder(home.state(folder))
        if content is None:
            disk.remove(name)
        else:
            disk.write(name, content)
    for folder, device, generation in source.files():
        rows = source.rows(folder, device)
        any(
            plugin.write_row_file(home.state(folder), device, generation, rows)
            for plugin in channel_kinds().values()
        )


def _folders(home: Home) -> list[Path]:
    return sorted(path for path in home.state("").glob("*") if path.is_dir() and not path.is_symlink())
