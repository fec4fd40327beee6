"""
Detects which signals the embedded queue must fire, by triggers on the one connection that writes. They are
TEMP triggers, which belong to the connection and not to the file. Signals are fired after the commit; a
transaction that is rolled back fires none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from gateway.store.sql.change_triggers import RULES, Rule
from gateway.store.sql.signals import Fact, Signals

_WORK = (
    "SELECT became_true('session', session, next_at, channel, kind,"
    " CASE WHEN json_valid(payload) THEN json_extract(payload, '$.sender.address') END,"
    " CASE WHEN json_valid(payload) THEN json_extract(payload, '$.sender.verified') END)"
    " FROM main.inbox WHERE "
)


def _trigger(rule: Rule) -> str:
    columns = ", ".join(f"NEW.{column}" for column in rule.columns)
    found = f"{_WORK}{rule.work.format(here='', inbox='main.inbox')}"
    fired = found if rule.work else f"SELECT became_true('{rule.signal}', {columns})"
    return (
        f"CREATE TEMP TRIGGER {rule.name} AFTER {rule.moment} ON main.{rule.table} WHEN {rule.when}"
        f" BEGIN {fired}; END"
    )


class CommitWatch:
    """Records on the writing thread what became true, and reports it on the event loop."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._noted: dict[Fact, None] = {}

    # ── on the thread ──

    def install(self, db: sqlite3.Connection) -> None:
        """Watch this connection."""
        db.create_function("became_true", -1, self._note)
        for rule in RULES:
            db.execute(_trigger(rule))

    def _note(self, *fact: Any) -> None:
        self._noted[fact] = None

    def forget_rolled_back(self) -> None:
        """Forget the facts of a transaction that was rolled back."""
        self._noted.clear()

    def facts_of_commit(self) -> list[Fact]:
        """Return what became true with this commit, each fact once."""
        facts = list(self._noted)
        self._noted.clear()
        return facts

    # ── on the event loop ──

    def fire(self, facts: Sequence[Fact]) -> None:
        """Fire the signals of these facts."""
        self._signals.fire(facts)
