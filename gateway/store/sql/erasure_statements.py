"""
Finds everything that the tables have of one person, and removes it for good, with their words in other
people's rows. An inbox row is the person's if they sent it or its session is theirs alone. Usage stays under
a neutral name, as a day's budget must not change, and so do key digests, to recognise repetitions. Payloads
are read in Python, a thousand rows at a time.
"""

# ruff: noqa: S608 - only constants of this package are put into statements; every value is a parameter

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_core.memory.scopes import person_name
from agent_core.models import Usage
from agent_core.prompt import remove_words_of
from gateway.store.background_job_rows import KIND, job_id_of
from gateway.store.sql.engine import ConnectionPort
from gateway.store.sql.inbox_statements import add_usage
from gateway.store.sql.job_store import delete_job
from gateway.store.sql.maintenance_statements import see
from gateway.store.sql.row_codec import Raw, payload_object, sender_of, session_or_none
from gateway.store.sql.state_store import offline_sources
from gateway.store.sql.tables import COLUMNS
from gateway.store.states import InboxState

FORGOTTEN = "forgotten/person"
"""The session of sums that no longer belong to anybody."""
_AT_ONCE = 1000
Gone = Callable[[str], bool]
Thinned = Callable[[Mapping[str, Any], Gone], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PersonRows:
    """The rows of one person, as JSON values, with their ids."""

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
        """Return the number of rows of each kind."""
        return {name: len(rows) for name, rows in self.tables()}

    def tables(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield each kind of rows with its name."""
        for name in self.__slots__:
            yield name, getattr(self, name)


def _select(table: str) -> str:
    return f"SELECT {', '.join(COLUMNS[table])} FROM {table}"


def _dicts(table: str, rows: Iterable[Raw]) -> Iterator[dict[str, Any]]:
    return (dict(zip(COLUMNS[table], row, strict=True)) for row in rows)


def _rows(db: ConnectionPort, table: str, column: str, values: Collection[Any]) -> list[dict[str, Any]]:
    asked = sorted(values)
    found: list[dict[str, Any]] = []
    for first in range(0, len(asked), _AT_ONCE):
        some = asked[first : first + _AT_ONCE]
        query = f"{_select(table)} WHERE {column} IN ({', '.join('?' * len(some))})"
        found += _dicts(table, db.execute(query, some).fetchall())
    return found


def texts_of(db: ConnectionPort, table: str, column: str) -> Iterator[tuple[Any, str]]:
    """Yield id and text of each row that has one, in order of the ids; the rows may be changed meanwhile."""
    query = f"SELECT id, {column} FROM {table} WHERE {column} IS NOT NULL AND id > ? ORDER BY id LIMIT ?"
    last: int = 0
    while rows := db.execute(query, (last, _AT_ONCE)).fetchall():
        yield from rows
        last = rows[-1][0]


def _by_id(*found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge rows that were found in several ways, each once."""
    rows = {row["id"]: row for some in found for row in some}
    return [rows[number] for number in sorted(rows)]


def find(
    db: ConnectionPort, addresses: Collection[str], sessions: Collection[str], turns: Collection[str]
) -> PersonRows:
    """Find a person's rows; nothing is changed."""
    known = {person_name(address) for address in addresses}

    def select_rows(table: str, column: str) -> list[dict[str, Any]]:
        """Return the rows whose column is one of the person's addresses, in any spelling."""
        spellings = db.execute(f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
        return _rows(db, table, column, {text for (text,) in spellings if person_name(text) in known})

    sent = [
        number
        for number, text in texts_of(db, "inbox", "payload")
        if person_name(sender_of(text) or "") in known
    ]
    inbox = _by_id(_rows(db, "inbox", "id", sent), _rows(db, "inbox", "session", sessions))
    every = {*turns, *PersonRows(inbox).turns}
    lines = [
        number
        for number, text in texts_of(db, "history_journal", "line")
        if (payload_object(text) or {}).get("turn") in every
    ]
    jobs = select_rows("jobs", "person")
    ledger = [f"job:{job['id']}" for job in jobs]
    ledger += [
        f"job:{job_id_of(key)}"
        for row in inbox
        if row["kind"] == KIND and (key := session_or_none(row["session"])) is not None
    ]
    grants = db.execute(f"{_select('grants')} ORDER BY id").fetchall()
    return PersonRows(
        inbox=inbox,
        outbox=_by_id(
            _rows(db, "outbox", "turn", every),
            _rows(db, "outbox", "session", sessions),
            _rows(db, "outbox", "inbox_id", [row["id"] for row in inbox]),
        ),
        steps=_rows(db, "turn_steps", "turn", every),
        journal=_by_id(
            _rows(db, "history_journal", "session", sessions), _rows(db, "history_journal", "id", lines)
        ),
        usage=_rows(db, "usage", "session", sessions),
        jobs=jobs,
        ledger=_rows(db, "ledger", "name", set(ledger)),
        collected=select_rows("collected", "person"),
        receipts=_by_id(
            _rows(db, "receipts", "turn", every),
            _rows(db, "receipts", "session", sessions),
            select_rows("receipts", "asked_by"),
        ),
        grants=[
            row
            for row in _dicts("grants", grants)
            if row["session"] in sessions
            or known & {person_name(address) for address in (row["given_by"], *json.loads(row["people"]))}
        ],
    )


def erase(
    db: ConnectionPort,
    addresses: Collection[str],
    sessions: Collection[str],
    turns: Collection[str],
    *,
    now: float,
) -> PersonRows:
    """Remove a person's rows, and their words from the rows of others; return the rows that were found."""
    found = find(db, addresses, sessions, turns)
    known = {person_name(address) for address in addresses}
    _erase(db, found, {*turns, *found.turns}, now)
    _forget_topics(db, known, set(sessions))
    _unquote(db, known)
    return found


def _erase(db: ConnectionPort, found: PersonRows, turns: Collection[str], now: float) -> None:
    outbox, inbox = [row["id"] for row in found.outbox], [row["id"] for row in found.inbox]
    begun = {row["turn"] for row in found.outbox if row["state"] not in ("pending", "held")}
    unsent = {row["turn"] for row in found.outbox if row["turn"]} - begun
    for row in found.inbox:
        see(db, [(row["channel"], row["account"], row["native_id"], now)])
    # The newest row of a table is emptied instead: its number must not be assigned again.
    db.executemany(
        "UPDATE outbox SET inbox_id = NULL, turn = NULL, key = 'forgotten:' || id, payload = NULL,"
        " session = ?, state = 'dead', provider_id = NULL, error = 'forgotten', next_at = NULL"
        " WHERE id = ? AND id = (SELECT MAX(id) FROM outbox)",
        [(FORGOTTEN, number) for number in outbox],
    )
    db.executemany("DELETE FROM outbox WHERE id = ? AND COALESCE(error, '') <> 'forgotten'", _each(outbox))
    # A remaining send that refers to a deleted row was not an answer to it.
    db.executemany("UPDATE outbox SET inbox_id = NULL WHERE inbox_id = ?", _each(inbox))
    db.executemany(
        "UPDATE inbox SET native_id = 'forgotten:' || id, session = ?, payload = NULL, state = 'ignored',"
        " error = 'forgotten', turn = NULL, tail = NULL, next_at = NULL"
        " WHERE id = ? AND id = (SELECT MAX(id) FROM inbox)",
        [(FORGOTTEN, number) for number in inbox],
    )
    db.executemany("DELETE FROM inbox WHERE id = ? AND COALESCE(error, '') <> 'forgotten'", _each(inbox))
    # Messages of others that shared a turn with the person's have lost their answer's row. If nobody has seen
    # any part of that answer, they get an answer of their own; otherwise none is due.
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
        delete_job(db, str(job["id"]))
    db.executemany("DELETE FROM ledger WHERE id = ?", _each(row["id"] for row in found.ledger))
    db.executemany("DELETE FROM collected WHERE id = ?", _each(row["id"] for row in found.collected))
    db.executemany("DELETE FROM receipts WHERE id = ?", _each(row["id"] for row in found.receipts))
    db.executemany("DELETE FROM grants WHERE id = ?", _each(row["id"] for row in found.grants))


def _forget_topics(db: ConnectionPort, addresses: Collection[str], sessions: Collection[str]) -> None:
    """Drop the records of one-time posts to the person, and of their conversations that are reset."""
    for (topic,) in db.execute("SELECT topic FROM once").fetchall():
        if any(word in sessions or person_name(word) in addresses for word in topic.split()):
            db.execute("DELETE FROM once WHERE topic = ?", (topic,))
    topics = (f"{kind}:{session}" for session in sessions for kind in ("trusted", "model", "continue"))
    db.executemany("DELETE FROM state WHERE topic = ?", _each(topics))
    for topic, value in db.execute("SELECT topic, value FROM state").fetchall():
        if topic.startswith("question:") and value.split(" ")[1] in sessions:
            db.execute("DELETE FROM state WHERE topic = ?", (topic,))
            continue
        if topic.startswith("let-in:") and isinstance(people := _json(value), dict):
            left = {name: each for name, each in people.items() if person_name(name) not in addresses}
            db.execute("UPDATE state SET value = ? WHERE topic = ?", (json.dumps(left), topic))
        elif topic == "linked-people" and isinstance(links := _json(value), dict):
            db.execute("UPDATE state SET value = ? WHERE topic = ?", (_unlinked(links, addresses), topic))
        elif any(session in value for session in sessions) and isinstance(kept := _json(value), dict):
            left = {name: each for name, each in kept.items() if name not in sessions}
            db.execute("UPDATE state SET value = ? WHERE topic = ?", (json.dumps(left), topic))


def _unlinked(links: dict[str, Any], addresses: Collection[str]) -> str:
    """The stored links of people without those that name one of these addresses."""

    def is_left(names: str | Mapping[str, Any]) -> bool:
        named = [names] if isinstance(names, str) else [str(names.get("main")), str(names.get("address"))]
        return not any(person_name(name) in addresses for name in named)

    linked = {name: one for name, one in links["linked"].items() if is_left(name) and is_left(one)}
    return json.dumps({"linked": linked, "requests": list(filter(is_left, links["requests"]))})


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _unquote(db: ConnectionPort, addresses: Collection[str]) -> None:
    """Remove what the person had written before the questions of others from those questions."""
    gone = lambda address: person_name(address) in addresses  # noqa: E731 - bound to these
    words = {address.lower() for address in addresses}
    for table, column, what in (
        ("inbox", "payload", remove_from_message),
        ("history_journal", "line", remove_from_line),
    ):
        for number, text in texts_of(db, table, column):
            lowered = text.lower()
            if any(word in lowered for word in words) and (left := blank_words(text, what, gone)) is not None:
                db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (left, number))


def _each(values: Any) -> list[tuple[Any]]:
    return [(value,) for value in values]


def _keep_sum(db: ConnectionPort, row: dict[str, Any]) -> None:
    db.execute(
        "DELETE FROM usage WHERE day = ? AND session = ? AND purpose = ? AND model = ?",
        (row["day"], row["session"], row["purpose"], row["model"]),
    )
    usage = Usage(**{name: row[name] for name in Usage.model_fields})
    add_usage(db, row["day"], FORGOTTEN, row["purpose"], usage)


def named_files(db: ConnectionPort, names: Collection[str]) -> frozenset[str]:
    """Return which of these texts occur in a message that still exists: files that are still needed."""
    left, found = set(names), set()
    for table, column in (("inbox", "payload"), ("outbox", "payload"), ("history_journal", "line")):
        for _, text in texts_of(db, table, column):
            there = {name for name in left if name in text}
            found |= there
            left -= there
    return frozenset(found)


def remove_from_line(line: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """Return a history line without the words of these people that came with a question, and their names."""
    line = anonymise_origins(line, gone)
    content = line.get("content")
    if line.get("role") != "user" or not isinstance(content, str):
        return dict(line)
    return {**line, "content": remove_words_of(content, gone)}


def anonymise_origins(line: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """Return a line whose origins no longer name these people; the kind of each origin is kept."""
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


def remove_from_message(message: Mapping[str, Any], gone: Gone) -> dict[str, Any]:
    """Return a stored message without the words of these people that came with it."""
    background = message.get("background")
    if not isinstance(background, list):
        return dict(message)
    kept = [each for each in background if not (isinstance(each, dict) and _is_from(each, gone))]
    return {**message, "background": kept}


def _is_from(said: Mapping[str, Any], gone: Gone) -> bool:
    sender = str(said.get("sender") or "")
    # A forwarded text belongs to whomever the mail names, in any form.
    words = sender.translate(str.maketrans("<>(),", "     ")).split()
    return any(gone(word) for word in (words if said.get("kind") == "forwarded" else words[:1]))


def blank_words(text: str | None, what: Thinned, gone: Gone) -> str | None:
    """Return the JSON of a message or a line without these words; None if unchanged, or not JSON."""
    try:
        before = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(before, dict):
        return None
    after = what(before, gone)
    return None if after == before else json.dumps(after, ensure_ascii=False, separators=(",", ":"))


_STEPS = (
    "SELECT turn, request, result FROM turn_steps WHERE turn NOT IN"
    " (SELECT turn FROM inbox WHERE state IN ('ready', 'running') AND turn IS NOT NULL)"
)


def count_repetitions(
    db: ConnectionPort, repeats: Callable[[Any], bool], theirs: PersonRows
) -> dict[str, int]:
    """Count the texts of each table that ``repeats`` recognises, without ``theirs``."""
    return dict(Counter(table for table, text in _texts(db, theirs) if _repeats(text, repeats)))


def _texts(db: ConnectionPort, theirs: PersonRows) -> Iterator[tuple[str, str]]:
    """Yield table and text of what is neither the person's nor somebody's question."""
    sends, lines = {row["id"] for row in theirs.outbox}, {row["id"] for row in theirs.journal}
    for number, text in texts_of(db, "outbox", "payload"):
        if number not in sends:
            yield "outbox", text
    for number, text in texts_of(db, "history_journal", "line"):
        if number not in lines and (payload_object(text) or {}).get("role") not in (None, "user"):
            yield "history_journal", text
    turns = {row["turn"] for row in theirs.steps}
    for turn, request, result in db.execute(_STEPS).fetchall():
        if turn not in turns:
            yield from (("turn_steps", text) for text in (request, result) if text is not None)


def _repeats(text: str, repeats: Callable[[Any], bool]) -> bool:
    try:
        return repeats(json.loads(text))
    except (ValueError, RecursionError):
        return False
