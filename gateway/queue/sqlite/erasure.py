"""
Everything that ``gateway.db`` has of one person: found, and removed for good.

A row of the inbox is the person's if they sent it, or if its session is theirs alone. With it go the answers
to its turn, the steps of the turn, the lines that wait for their file, their jobs and what waits for their
digest, and what is noted of having told them something. What they had said before somebody else's question
goes out of that row. Tokens and money stay in the
sums, under a name that is nobody's: a day's budget must not change after the fact. A digest of each message's
key stays too, so that a server that offers it again is not believed.

Deleted rows leave their bytes in the file, in free pages and in the log beside it. So rows are overwritten
(``secure_delete``), the file is written anew (``VACUUM``) and the log is emptied.

Words of the person also stand inside of other people's messages: what was said before a question goes along
with it (`InboundMessage.background`), into its row and into its line of a history.
"""
# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_core.prompt import without_words_of
from gateway.queue.background import KIND, job_id_of
from gateway.queue.sql.codec import key_digest, session_or_none
from gateway.queue.sql.moves import offline_sources
from gateway.queue.sqlite.errors import unavailable
from gateway.queue.sqlite.schema import open_reader, open_writer, prepare
from gateway.queue.states import InboxState

__all__ = [
    "FORGOTTEN",
    "Gone",
    "PersonRows",
    "changed",
    "erase_rows",
    "named_in_rows",
    "nameless",
    "normal",
    "person_rows",
    "without_in_line",
    "without_in_message",
]

FORGOTTEN = "forgotten/person"
"""The session of sums that are nobody's any more."""
_BUSY_S = 5.0
Gone = Callable[[str], bool]
Thinned = Callable[[Mapping[str, Any], Gone], dict[str, Any]]


@dataclass(slots=True)
class PersonRows:
    """The rows of one person, as JSON can hold them, and their ids."""

    inbox: list[dict[str, Any]] = field(default_factory=list)
    outbox: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    journal: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    collected: list[dict[str, Any]] = field(default_factory=list)
    receipts: list[dict[str, Any]] = field(default_factory=list)
    grants: list[dict[str, Any]] = field(default_factory=list)

    @property
    def turns(self) -> frozenset[str]:
        """The turns in which the person was answered."""
        return frozenset(row["turn"] for row in self.inbox if row["turn"])

    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {name: len(rows) for name, rows in self.tables()}

    def tables(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Each kind of rows with its name."""
        for name in self.__slots__:
            yield name, getattr(self, name)


def person_rows(
    path: Path, addresses: Collection[str], sessions: Collection[str], turns: Collection[str]
) -> PersonRows:
    """
    Find a person's rows; nothing is changed, and a daemon may be at work.

    Raises:
        StoreUnavailable: It cannot be read now.
    """
    try:
        with closing(open_reader(path, busy_timeout_s=_BUSY_S)) as db:
            db.execute("BEGIN")
            return _found(db, addresses, sessions, turns)
    except sqlite3.Error as error:
        raise unavailable(error, path, "person") from error


def normal(address: str) -> str:
    """One spelling per person: mail addresses regardless of case, Matrix ids as they are."""
    address = address.strip()
    return address if address.startswith("@") else address.lower()


def _rows(db: sqlite3.Connection, query: str, values: Collection[Any]) -> list[dict[str, Any]]:
    cursor = db.execute(query, (json.dumps(sorted(values)),))
    names = [column[0] for column in cursor.description]
    return [
        {name: value for name, value in zip(names, row, strict=True) if not isinstance(value, bytes)}
        for row in cursor
    ]


_IN = "IN (SELECT value FROM json_each(?1))"


def _found(
    db: sqlite3.Connection, addresses: Collection[str], sessions: Collection[str], turns: Collection[str]
) -> PersonRows:
    known = {normal(address) for address in addresses}
    db.create_function("person", 1, lambda text: normal(str(text or "")), deterministic=True)
    sender = "person(CASE WHEN json_valid(payload) THEN json_extract(payload, '$.sender.address') END)"
    inbox = {row["id"]: row for row in _rows(db, f"SELECT * FROM inbox WHERE {sender} {_IN}", known)}
    inbox |= {row["id"]: row for row in _rows(db, f"SELECT * FROM inbox WHERE session {_IN}", sessions)}
    found = PersonRows(inbox=[inbox[number] for number in sorted(inbox)])
    every = {*turns, *found.turns}
    outbox = {row["id"]: row for row in _rows(db, f"SELECT * FROM outbox WHERE turn {_IN}", every)}
    outbox |= {row["id"]: row for row in _rows(db, f"SELECT * FROM outbox WHERE session {_IN}", sessions)}
    hanging = _rows(db, f"SELECT * FROM outbox WHERE inbox_id {_IN}", list(inbox))
    outbox |= {row["id"]: row for row in hanging}
    found.outbox = [outbox[number] for number in sorted(outbox)]
    found.steps = _rows(db, f"SELECT * FROM turn_steps WHERE turn {_IN}", every)
    in_line = "CASE WHEN json_valid(line) THEN json_extract(line, '$.turn') END"
    found.journal = _rows(db, f"SELECT * FROM history_journal WHERE session {_IN}", sessions)
    of_turns = _rows(db, f"SELECT * FROM history_journal WHERE {in_line} {_IN}", every)
    found.journal += [row for row in of_turns if row["session"] not in set(sessions)]
    found.usage = _rows(db, f"SELECT * FROM usage WHERE session {_IN}", sessions)
    found.jobs = _rows(db, f"SELECT * FROM jobs WHERE person(person) {_IN}", known)
    ledger = [f"job:{job['id']}" for job in found.jobs]
    ledger += [
        f"job:{job_id_of(key)}"
        for row in found.inbox
        if row["kind"] == KIND and (key := session_or_none(row["session"])) is not None
    ]
    found.ledger = _rows(db, f"SELECT * FROM ledger WHERE name {_IN}", ledger)
    found.collected = _rows(db, f"SELECT * FROM collected WHERE person(person) {_IN}", known)
    receipts = {row["id"]: row for row in _rows(db, f"SELECT * FROM receipts WHERE turn {_IN}", every)}
    receipts |= {row["id"]: row for row in _rows(db, f"SELECT * FROM receipts WHERE session {_IN}", sessions)}
    receipts |= {
        row["id"]: row for row in _rows(db, f"SELECT * FROM receipts WHERE person(asked_by) {_IN}", known)
    }
    found.receipts = [receipts[number] for number in sorted(receipts)]
    found.grants = [
        row
        for row in _rows(db, "SELECT * FROM grants WHERE ?1 IS NOT NULL", ())
        if row["session"] in sessions
        or known & {normal(address) for address in (row["given_by"], *json.loads(row["people"]))}
    ]
    return found


def erase_rows(
    path: Path, addresses: Collection[str], sessions: Collection[str], turns: Collection[str], *, now: float
) -> PersonRows:
    """
    Remove a person's rows, and their bytes from the file. Nobody else may have it open.

    Raises:
        StoreUnavailable: It was not done, or not to the end; once more does it.
    """
    try:
        with closing(open_writer(path, busy_timeout_s=_BUSY_S)) as db:
            prepare(db, path)
            db.execute("PRAGMA secure_delete = ON")
            db.execute("BEGIN IMMEDIATE")
            found = _found(db, addresses, sessions, turns)
            _erase(db, found, {*turns, *found.turns}, int(now // 86_400))
            _forget_topics(db, {normal(address) for address in addresses}, set(sessions))
            _unquote(db, {normal(address) for address in addresses})
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return found
    except sqlite3.Error as error:
        raise unavailable(error, path, "forget") from error


def _erase(db: sqlite3.Connection, found: PersonRows, turns: Collection[str], day: int) -> None:
    outbox, inbox = [row["id"] for row in found.outbox], [row["id"] for row in found.inbox]
    begun = {row["turn"] for row in found.outbox if row["state"] not in ("pending", "held")}
    unsent = {row["turn"] for row in found.outbox if row["turn"]} - begun
    for row in found.inbox:
        key = key_digest(row["channel"], row["account"], row["native_id"])
        db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, day))
    # The newest row of a table leaves an empty one: its number must not be given out again.
    db.executemany(
        "UPDATE outbox SET inbox_id = NULL, turn = NULL, key = 'forgotten:' || id, payload = NULL,"
        " session = ?, state = 'dead', provider_id = NULL, error = 'forgotten', next_at = NULL"
        " WHERE id = ? AND id = (SELECT MAX(id) FROM outbox)",
        [(FORGOTTEN, number) for number in outbox],
    )
    db.executemany("DELETE FROM outbox WHERE id = ? AND error IS NOT 'forgotten'", _each(outbox))
    # What is still there and hangs on a row that goes was not an answer to it.
    db.executemany("UPDATE outbox SET inbox_id = NULL WHERE inbox_id = ?", _each(inbox))
    db.executemany(
        "UPDATE inbox SET native_id = 'forgotten:' || id, session = ?, payload = NULL, state = 'ignored',"
        " error = 'forgotten', turn = NULL, tail = NULL, next_at = NULL"
        " WHERE id = ? AND id = (SELECT MAX(id) FROM inbox)",
        [(FORGOTTEN, number) for number in inbox],
    )
    db.executemany("DELETE FROM inbox WHERE id = ? AND error IS NOT 'forgotten'", _each(inbox))
    # Messages of others that shared a turn with the person's have lost their answer's row. If nobody has seen
    # anything of that answer they get one of their own, else nothing is due.
    db.executemany(
        "UPDATE inbox SET state = 'ready', turn = NULL, tail = NULL, next_at = NULL, ended_at = NULL"
        f" WHERE {offline_sources(InboxState.READY)} AND turn = ?",
        _each(unsent),
    )
    settles = offline_sources(InboxState.SETTLED)
    db.executemany(f"UPDATE inbox SET state = 'settled' WHERE {settles} AND turn = ?", _each(turns))
    db.executemany("DELETE FROM turn_steps WHERE turn = ?", _each(turns))
    db.executemany("DELETE FROM history_journal WHERE id = ?", _each(row["id"] for row in found.journal))
    for row in found.usage:
        _keep_sum(db, row)
    for job in found.jobs:
        db.execute("DELETE FROM jobs WHERE id = ?", (job["id"],))
    db.executemany("DELETE FROM ledger WHERE id = ?", _each(row["id"] for row in found.ledger))
    db.executemany("DELETE FROM collected WHERE id = ?", _each(row["id"] for row in found.collected))
    db.executemany("DELETE FROM receipts WHERE id = ?", _each(row["id"] for row in found.receipts))
    db.executemany("DELETE FROM grants WHERE id = ?", _each(row["id"] for row in found.grants))


def _forget_topics(db: sqlite3.Connection, addresses: Collection[str], sessions: Collection[str]) -> None:
    """Drop what was posted once to the person, and which of their conversations begin anew."""
    for (topic,) in db.execute("SELECT topic FROM once").fetchall():
        if any(word in sessions or normal(word) in addresses for word in topic.split()):
            db.execute("DELETE FROM once WHERE topic = ?", (topic,))
    db.executemany("DELETE FROM state WHERE topic = ?", _each(f"trusted:{session}" for session in sessions))
    for topic, value in db.execute("SELECT topic, value FROM state").fetchall():
        if topic.startswith("question:") and value.partition(" ")[2] in sessions:
            db.execute("DELETE FROM state WHERE topic = ?", (topic,))
            continue
        if any(session in value for session in sessions) and isinstance(kept := _json(value), dict):
            left = {name: each for name, each in kept.items() if name not in sessions}
            db.execute("UPDATE state SET value = ? WHERE topic = ?", (json.dumps(left), topic))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _unquote(db: sqlite3.Connection, addresses: Collection[str]) -> None:
    """What the person had said before the questions of others goes out of those."""
    gone = lambda address: normal(address) in addresses  # noqa: E731 - bound to these
    for table, column, what in (
        ("inbox", "payload", without_in_message),
        ("history_journal", "line", without_in_line),
    ):
        for address in sorted(addresses):
            rows = db.execute(
                f"SELECT id, {column} FROM {table} WHERE instr(lower({column}), lower(?))", (address,)
            ).fetchall()
            for number, text in rows:
                if (left := changed(text, what, gone)) is not None:
                    db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (left, number))


def _each(values: Any) -> list[tuple[Any]]:
    return [(value,) for value in values]


def _keep_sum(db: sqlite3.Connection, row: dict[str, Any]) -> None:
    db.execute(
        "DELETE FROM usage WHERE day = ? AND session = ? AND purpose = ? AND model = ?",
        (row["day"], row["session"], row["purpose"], row["model"]),
    )
    columns = {**row, "session": FORGOTTEN}
    names = ", ".join(columns)
    db.execute(
        f"INSERT INTO usage ({names}) VALUES ({', '.join('?' * len(columns))})"
        " ON CONFLICT (day, session, purpose, model) DO UPDATE SET"
        " prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
        " completion_tokens = completion_tokens + excluded.completion_tokens, calls = calls + excluded.calls,"
        " cached_tokens = cached_tokens + excluded.cached_tokens,"
        " thinking_tokens = thinking_tokens + excluded.thinking_tokens,"
        " cost_usd = CASE WHEN cost_usd IS NULL AND excluded.cost_usd IS NULL THEN NULL"
        " ELSE COALESCE(cost_usd, 0) + COALESCE(excluded.cost_usd, 0) END",
        tuple(columns.values()),
    )


def named_in_rows(path: Path, names: Collection[str]) -> frozenset[str]:
    """Which of these texts stand in a message that is still there: files that are still needed."""
    try:
        with closing(open_reader(path, busy_timeout_s=_BUSY_S)) as db:
            return frozenset(
                name
                for name in names
                if db.execute(
                    "SELECT 1 FROM inbox WHERE instr(payload, ?1) UNION ALL"
                    " SELECT 1 FROM outbox WHERE instr(payload, ?1) UNION ALL"
                    " SELECT 1 FROM history_journal WHERE instr(line, ?1) LIMIT 1",
                    (name,),
                ).fetchone()
            )
    except sqlite3.Error as error:
        raise unavailable(error, path, "person") from error


def without_in_line(line: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """A line of a history without the words of these people that came with a question, and their names."""
    line = nameless(line, gone)
    content = line.get("content")
    if line.get("role") != "user" or not isinstance(content, str):
        return dict(line)
    return {**line, "content": without_words_of(content, gone)}


def nameless(line: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """A line whose origins do not name these people any more; of what kind they were is still known."""
    origins = line.get("origins")
    if not isinstance(origins, list):
        return dict(line)
    return {
        **line,
        "origins": [
            {**each, "where": ""} if isinstance(each, dict) and gone(str(each.get("where") or "")) else each
            for each in origins
        ],
    }


def without_in_message(message: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """A message, as its row keeps it, without the words of these people that came with it."""
    background = message.get("background")
    if not isinstance(background, list):
        return dict(message)
    kept = [each for each in background if not (isinstance(each, dict) and _is_from(each, gone))]
    return {**message, "background": kept}


def _is_from(said: Mapping[str, Any], gone: Gone) -> bool:
    sender = str(said.get("sender") or "")
    # What is handed on is of whoever the letter says, in whatever form.
    words = sender.translate(str.maketrans("<>(),", "     ")).split()
    return any(gone(word) for word in (words if said.get("kind") == "forwarded" else words[:1]))


def changed(text: str | None, what: Thinned, gone: Gone) -> str | None:
    """JSON of a message or a line without these words; None if they are not in it, or it is no JSON."""
    try:
        before = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(before, dict):
        return None
    after = what(before, gone)
    return None if after == before else json.dumps(after, ensure_ascii=False, separators=(",", ":"))
