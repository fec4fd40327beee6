"""
The key under which logins and keys of accounts lie in a database: without it a copy of that is worth nothing.

It is a secret of the settings, or a file of the home that is made at first use. It is never in the database;
a second machine gets it as every secret.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from agent_core.files import replace
from gateway.queue.errors import StoreUnusable


class StateKey:
    """
    Where the key comes from.

    Args:
        given: That of the settings.
        file: That of the home, if there is none.
    """

    def __init__(self, given: str | None, file: Path) -> None:
        self._given = given
        self._file = file

    def known(self) -> str | None:
        """The key, if there is one. Raises `StoreUnusable`: the file cannot be read."""
        if self._given is not None:
            return self._given
        try:
            return self._file.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeError) as error:
            raise StoreUnusable(f"the state key {self._file} cannot be read: {error}") from error

    def made(self) -> str:
        """The key, made if there is none yet. Raises `StoreUnusable`."""
        if (known := self.known()) is not None:
            return known
        key = secrets.token_urlsafe(32)
        try:
            replace(self._file, key.encode())
        except OSError as error:
            raise StoreUnusable(f"the state key {self._file} cannot be written: {error}") from error
        return key
