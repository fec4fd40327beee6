"""
Gives the rows of a person to their new address. Whole values are replaced, never parts of a text: an address,
a session whose last part is the address (mail threads), the name of the person's memory. So what people have
written stays as they wrote it.
"""
# ruff: noqa: S608 - only constants of this file are put into statements; every value is a parameter

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from agent_core.memory.scopes import person_name
from agent_core.messages import SessionKey
from agent_core.models import ScopeKind
from gateway.store.sql.engine import ConnectionPort

_WORDS = frozenset({"text", "content", "summary"})
"""Fields of what somebody has written."""
_SCOPE = f"{ScopeKind.PERSON.value}:"
_COLUMNS = (
    *((table, "session") for table in ("inbox", "outbox", "history_journal", "receipts", "grants", "usage")),
    *(("jobs", column) for column in ("session", "person", "context")),
    *(("grants", column) for column in ("given_by", "people", "origins")),
    *(("receipts", column) for column in ("asked_by", "approved_by", "origins")),
    *(("state", column) for column in ("topic", "value")),
    ("once", "topic"),
    ("collected", "person"),
    ("inbox", "payload"),
    ("outbox", "payload"),
    ("history_journal", "line"),
)


@dataclass(frozen=True, slots=True)
class AddressChange:
    """The change of an address; ``old`` as `spelled`."""

    old: str
    new: str

    def session(self, key: SessionKey) -> SessionKey:
        """The session of a person in a thread, which is named after them."""
        return replace(key, thread=self.new) if key.thread and person_name(key.thread) == self.old else key

    def text(self, text: str) -> str:
        """The same text, unless all of it names the person, their conversation or their memory."""
        if person_name(text) == self.old:
            return self.new
        if text.startswith(_SCOPE):
            name, blank, account = text.removeprefix(_SCOPE).partition(" ")
            return f"{_SCOPE}{self.new}{blank}{account}" if person_name(name) == self.old else text
        try:
            key = SessionKey.parse(text)
        except ValueError:
            return text
        return text if self.session(key) == key else str(self.session(key))

    def value(self, value: Any) -> Any:
        """A JSON value in which the person has the new address."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {
                self.text(name): one if name in _WORDS and isinstance(one, str) else self.value(one)
                for name, one in value.items()
            }
        return value

    def column(self, text: str) -> str:
        """The value of a column: JSON, or words of which one may have a kind in front (``trusted:…``)."""
        try:
            kept = json.loads(text)
        except (ValueError, RecursionError):
            kept = None
        if isinstance(kept, dict | list):
            changed = self.value(kept)
            return text if changed == kept else json.dumps(changed, ensure_ascii=False, separators=(",", ":"))
        return " ".join(map(self._word, text.split(" ")))

    def _word(self, word: str) -> str:
        kind, colon, rest = word.partition(":")
        return changed if (changed := self.text(word)) != word else f"{kind}{colon}{self.text(rest)}"


def rename(db: ConnectionPort, change: AddressChange) -> int:
    """Give all rows to the new address; returns how many values changed. Repeating it changes nothing."""
    count = 0
    for table, column in _COLUMNS:
        query = f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL"
        for (text,) in db.execute(query).fetchall():
            if (changed := change.column(text)) != text:
                count += db.execute(
                    f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (changed, text)
                ).rowcount
    return count
