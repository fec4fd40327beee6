"""
The state of an account that survives restarts: logins, keys, small documents. On disk, or in a database.
`DiskFolder` is a folder of the home. Where several machines may have the account one after the other, the
folder is in their database (`gateway.store.postgres.account_documents`), and so are the rows of the local
files of keys (`RowStore`). Every method waits for a disk or a server; all of them raise `OSError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from agent_core import files

_ROOM_BYTES = 16_384
Row = tuple[str, str, bytes]
"""The name of a table, the key of a row in it, its values."""


class StateUnreachable(OSError):
    """
    The database cannot be reached now, or this process may no longer write there.

    Whether the call has happened is not known.
    """

    def __init__(self, why: str) -> None:
        super().__init__(None, why)

    def __str__(self) -> str:
        return str(self.strerror)


class RowStore(Protocol):
    """
    The rows of local database files, so that another machine can make the same file.

    A file's generation grows with each `save`; a writer of an older one is refused.
    """

    def generation(self, file: str) -> int | None:
        """The generation of the stored rows of a file; None: nothing is stored."""
        ...

    def rows(self, file: str, table: str = "") -> Iterator[Row]:
        """All stored rows of a file at one moment, or those of one table, sorted; none if none are stored."""
        ...

    def save(
        self, file: str, generation: int, changed: Mapping[tuple[str, str], bytes | None], *, whole: bool
    ) -> None:
        """Replace changed rows (None: deleted), or all (``whole``). Raises StateUnreachable."""
        ...

    def forget(self, file: str) -> None:
        """Remove the stored rows of a file."""
        ...


class StateFolder(Protocol):
    """Small documents by name. A completed write is durable, and nobody else can read it."""

    @property
    def local(self) -> Path:
        """A folder on this machine, for data whose loss does no harm."""
        ...

    @property
    def row_store(self) -> RowStore | None:
        """Return the store that also holds the rows of local files; None if there are only local files."""
        ...

    def read(self, name: str) -> bytes | None:
        """Read a document; None: there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a document, whatever was there."""
        ...

    def swap(self, name: str, old: bytes, new: bytes) -> bytes | None:
        """Replace this document by another; returns the stored one, which may be somebody else's."""
        ...

    def remove(self, name: str) -> bool:
        """Delete a document; returns whether there was one."""
        ...

    def claim(self, name: str, *, for_s: float) -> bool:
        """Become the only renewer of a document until written or timed out; False: taken. Raises OSError."""
        ...


class DiskFolder:
    """A folder of the home, which one process uses."""

    row_store: RowStore | None = None

    def __init__(self, folder: Path) -> None:
        self.local = folder

    def __str__(self) -> str:
        return str(self.local)

    def read(self, name: str) -> bytes | None:
        """See `StateFolder.read`."""
        try:
            return (self.local / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """See `StateFolder.write`."""
        files.replace(self.local / name, content)

    def swap(self, name: str, old: bytes, new: bytes) -> bytes | None:
        """See `StateFolder.swap`."""
        found = self.read(name)
        if found != old:
            return found
        self.write(name, new)
        return new

    def remove(self, name: str) -> bool:
        """See `StateFolder.remove`."""
        try:
            (self.local / name).unlink()
        except FileNotFoundError:
            return False
        files.sync(self.local)
        return True

    def claim(self, name: str, *, for_s: float) -> bool:
        """See `StateFolder.claim`: whether there is room for a new document."""
        trial = (self.local / name).with_suffix(".try")
        files.make_folder(self.local)
        try:
            files.write_new(trial, b" " * _ROOM_BYTES)
        finally:
            trial.unlink(missing_ok=True)
        return True


def state_in(place: Path | StateFolder) -> StateFolder:
    """The folder itself, or the one on disk."""
    return DiskFolder(place) if isinstance(place, Path) else place
