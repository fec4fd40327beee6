"""
Provides the key that encrypts logins and keys of accounts in a database, so that a copy of the database alone
does not reveal them. It is a secret of the settings, or a file of the home that is created at first use. It
is never in the database; a second machine receives it like every other secret.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from agent_core.files import replace
from gateway.store.store_errors import StoreUnusable


class StateKey:
    """The source of the key: ``given`` by the settings, else the home's key ``file``."""

    def __init__(self, given: str | None, file: Path) -> None:
        self._given = given
        self._file = file

    def read(self) -> str | None:
        """Return the key, if there is one. Raises `StoreUnusable` if the file cannot be read."""
        if self._given is not None:
            return self._given
        try:
            return self._file.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeError) as error:
            raise StoreUnusable(f"the state key {self._file} cannot be read: {error}") from error

    def read_or_create(self) -> str:
        """Return the key; create it if there is none. Raises `StoreUnusable`."""
        if (known := self.read()) is not None:
            return known
        key = secrets.token_urlsafe(32)
        try:
            replace(self._file, key.encode())
        except OSError as error:
            raise StoreUnusable(f"the state key {self._file} cannot be written: {error}") from error
        return key
