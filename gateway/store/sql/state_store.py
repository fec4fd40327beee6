"""
Stores the gateway's own texts by topic (``state``) and what was posted once (``once``), and generates the SQL
condition under which a row may move to a state, from ``gateway/store/states.py``. A statement finds no row
for a move that the table of states lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from agent_core.messages import SessionKey
from gateway.store.model import JournalLine
from gateway.store.sql.engine import NOTHING, ConnectionPort, Store
from gateway.store.sql.row_codec import journal_line
from gateway.store.states import INBOX_MOVES, OFFLINE_INBOX_MOVES, OUTBOX_MOVES, InboxState, OutboxState


def claim_once(db: ConnectionPort, topic: str, value: str) -> bool:
    """Store the newest value of a topic; return False if the topic has that value already."""
    written = db.execute(
        "INSERT INTO once (topic, value) VALUES (?, ?)"
        " ON CONFLICT (topic) DO UPDATE SET value = excluded.value WHERE once.value <> excluded.value",
        (topic, value),
    )
    return written.rowcount == 1


def remember(db: ConnectionPort, topic: str, value: str) -> None:
    """Store a text, replacing the topic's earlier one."""
    db.execute(
        "INSERT INTO state (topic, value) VALUES (?, ?)"
        " ON CONFLICT (topic) DO UPDATE SET value = excluded.value",
        (topic, value),
    )


class TextChanged(Exception):
    """A text that was to be taken is another one now, or is gone; the transaction ends."""


def take_texts(db: ConnectionPort, texts: Mapping[str, str]) -> None:
    """Delete texts by their topics. Raises `TextChanged`."""
    for each in texts.items():
        if db.execute("DELETE FROM state WHERE topic = ? AND value = ?", each).rowcount != 1:
            raise TextChanged


_INSTEAD = "UPDATE state SET value = ? WHERE topic = ? AND value = ?"


class StateStore(Store):
    """One text for each topic."""

    async def read(self, topic: str) -> str | None:
        """Return the last written text; None if there is none."""
        [found] = await self.read_all(topic)
        return found

    async def read_all(self, *topics: str) -> list[str | None]:
        """Do what `read` does, for several topics in one call."""
        query = "SELECT value FROM state WHERE topic = ?"

        def read(db: ConnectionPort) -> list[str | None]:
            found = [db.execute(query, (topic,)).fetchone() for topic in topics]
            return [None if row is None else str(row[0]) for row in found]

        return await self._reader.call("read_state", read)

    async def read_below(self, prefix: str) -> dict[str, str]:
        """Return the texts of all topics that begin with ``prefix``, which ends with a slash."""
        query = "SELECT topic, value FROM state WHERE topic > ? AND topic < ? ORDER BY topic"
        values = (prefix, f"{prefix[:-1]}0")  # the character after a slash
        rows = await self._reader.call("read_state", lambda db: db.execute(query, values).fetchall())
        return {str(topic): str(value) for topic, value in rows}

    async def write(self, topic: str, value: str) -> None:
        """Store a text durably, replacing the topic's earlier one."""
        await self._writer.call("write_state", lambda db: remember(db, topic, value), locks=NOTHING)

    async def swap(self, topic: str, old: str | None, new: str) -> bool:
        """Do `write` if the stored text is still ``old``; else return False."""
        first = "INSERT INTO state (topic, value) VALUES (?, ?) ON CONFLICT (topic) DO NOTHING"
        query, values = (first, (topic, new)) if old is None else (_INSTEAD, (new, topic, old))
        return await self._writer.call(
            "write_state", lambda db: db.execute(query, values).rowcount == 1, locks=NOTHING
        )


class HistoryJournal(Store):
    """The history lines that were committed with an answer and may not be in their files yet."""

    async def lines(self, session: SessionKey | None = None) -> list[JournalLine]:
        """Return lines that may not be in their files yet, oldest first."""
        where, arguments = ("", ()) if session is None else (" WHERE session = ?", (str(session),))
        query = f"SELECT id, session, line FROM history_journal{where} ORDER BY id"  # noqa: S608 - constants
        raws = await self._reader.call("journal", lambda db: db.execute(query, arguments).fetchall())
        return [line for line in map(journal_line, raws) if line is not None]

    async def delete_filed_lines(self, ids: Sequence[int]) -> None:
        """Delete these lines from the journal: they are durable in their files."""
        gone = [(row_id,) for row_id in ids]
        await self._writer.call(
            "journal_done",
            lambda db: db.executemany("DELETE FROM history_journal WHERE id = ?", gone) and None,
            locks=NOTHING,
            durable=False,
        )


MAX_DELAY_S = 2 * 3600.0
"""No row waits longer: a wrong clock wrote any instant that is later from now, and the row is due at once."""

UNINDEXED_STATE = "(state || '')"
"""The state as an expression that no index matches: for states that most rows share."""


@cache
def inbox_sources(target: InboxState, *only: InboxState) -> str:
    """Return the condition on inbox rows that may move to ``target``; ``only`` restricts the sources."""
    sources = (state for state, targets in INBOX_MOVES.items() if target in targets)
    return _condition(state for state in sources if not only or state in only)


@cache
def offline_sources(target: InboxState) -> str:
    """Return the condition on inbox rows that may move to ``target`` while no gateway is open."""
    return _condition(state for state, targets in OFFLINE_INBOX_MOVES.items() if target in targets)


@cache
def outbox_sources(target: OutboxState, *only: OutboxState, also: tuple[OutboxState, ...] = ()) -> str:
    """
    Return the condition on sends that may move to ``target``; ``only`` restricts the source states.

    States in ``also`` are accepted without a move: the row is there already, or came there unobserved.
    """
    sources = {state for state, targets in OUTBOX_MOVES.items() if target in targets}
    return _condition((sources & set(only) if only else sources) | set(also))


def _condition(states: Iterable[InboxState | OutboxState]) -> str:
    return "state IN (" + ", ".join(f"'{state}'" for state in sorted(states)) + ")"


def due_at(now: float, delay_s: float) -> float:
    """Return the instant to store for a wait that begins now."""
    return now + min(delay_s, MAX_DELAY_S)


def wait_s(next_at: float | None, now: float) -> float:
    """Return the seconds that a row with this instant still waits; 0.0 if it is due."""
    left_s = 0.0 if next_at is None else next_at - now
    return left_s if 0.0 < left_s <= MAX_DELAY_S else 0.0
