"""
Finds where answers to others repeat a person's words, and blanks them if asked to.

A question of somebody else can be answered with what the person has said: by the search, by a room's memory,
by a summary. Those answers are not the person's, so `squidbot forget` leaves them unless told otherwise.
They are recognised by runs of six words (or by all of a shorter message, of three words at least) and by
single words that are rare: numbers, addresses, very long ones. What others have said themselves does not
count. So something told in other words is not found, and nobody can promise that it is.

It is done before anything else of the person is removed, because their words tell what to look for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from agent_core.messages import SessionKey
from agent_core.storage.lines import as_object, encode_object
from gateway.operations.privacy.histories import Kept, KeptHistory
from gateway.operations.privacy.inventory import PersonFiles, is_theirs
from gateway.queue.persons import repeated_in_rows
from gateway.queue.place import QueuePlace

BLANK = "[removed]"
_WORD = re.compile(r"[^\W_]+(?:[@.:/+_\-][^\W_]+)*")
_RUN = 6
_SHORTEST_RUN = 3
_RARE_DIGITS = 4
_RARE_LENGTH = 16


@dataclass(slots=True)
class Words:
    """Word sequences and rare words that identify what somebody has said."""

    runs: set[str] = field(default_factory=set)
    rare: set[str] = field(default_factory=set)

    def add(self, text: str) -> None:
        """Add something that was said."""
        words = [match[0].casefold() for match in _WORD.finditer(text)]
        self.rare.update(filter(_is_rare, words))
        length = min(_RUN, len(words))
        if length >= _SHORTEST_RUN:
            self.runs.update(" ".join(words[at : at + length]) for at in range(len(words) - length + 1))

    def without(self, other: Words) -> Words:
        """These without what somebody else has said as well."""
        return Words(self.runs - other.runs, self.rare - other.rare)

    def blanked(self, text: str) -> str:
        """The text with every repetition replaced; the same text if there is none."""
        found = list(_WORD.finditer(text))
        words = [match[0].casefold() for match in found]
        gone = [word in self.rare for word in words]
        for length in range(_SHORTEST_RUN, _RUN + 1):
            for at in range(len(words) - length + 1):
                if " ".join(words[at : at + length]) in self.runs:
                    gone[at : at + length] = [True] * length
        out, end, inside = [], 0, False
        for match, is_gone in zip(found, gone, strict=True):
            if is_gone and not inside:
                out += [text[end : match.start()], BLANK]
            elif not is_gone and inside:
                out.append(text[end : match.start()])
                end = match.start()
            if is_gone:
                end = match.end()
            inside = is_gone
        return text if not out else "".join([*out, text[end:]])

    def blanked_in(self, value: Any) -> Any:
        """The same in all texts of a value of JSON, however deep; names stay."""
        if isinstance(value, str):
            return self.blanked(value)
        if isinstance(value, list):
            return [self.blanked_in(one) for one in value]
        if isinstance(value, dict):
            return {key: one if key in _NO_TEXT else self.blanked_in(one) for key, one in value.items()}
        return value


_NO_TEXT = frozenset(
    {"id", "turn", "timestamp", "scope", "role", "key", "session", "channel", "account", "path", "sha256"}
)
"""What machines read; a number of the person's in it is not theirs."""


def _is_rare(word: str) -> bool:
    digits = sum(char.isdigit() for char in word)
    return digits >= _RARE_DIGITS or "@" in word or "://" in word or len(word) >= _RARE_LENGTH


def words_of(kept: Kept, found: PersonFiles) -> Words:
    """The words that identify what a person has said."""
    theirs, others = Words(), Words()
    for history in kept.histories():
        for _, line in history.lines():
            sender = line.get("sender") if line is not None else None
            if line is not None and isinstance(sender, str) and sender:
                of_person = found.person.speaks_as(sender)
                (theirs if of_person else others).add(str(line.get("content") or ""))
    for row in found.rows.inbox:
        payload = as_object((row.get("payload") or "").encode("utf-8", "replace")) or {}
        theirs.add(str(payload.get("text") or ""))
    return theirs.without(others)


def places_of(kept: Kept, database: QueuePlace, found: PersonFiles, words: Words) -> list[str]:
    """The places of repetitions that `squidbot forget` leaves; nothing is changed."""
    told = []
    for history in kept.histories():
        lines = (line for _, line in history.lines() if line is not None)
        count = sum(_left(line, words, found, history.key) != line for line in lines)
        told += [f"{history.told} ({count} lines)"] if count else []
        if words.blanked(text := history.summary()) != text:
            told.append(f"the summary of {history.key}")
    if database.exists():
        rows = repeated_in_rows(database, words.blanked_in, found.rows, change=False)
        told += [f"{database.name}, {table} ({count} rows)" for table, count in rows.items()]
    for document in kept.documents():
        texts = (document.text() or "", document.raw_versions().decode("utf-8", "replace"))
        told += [
            place for place, text in zip(document.told, texts, strict=True) if words.blanked(text) != text
        ]
    return told


def blank_everywhere(kept: Kept, database: QueuePlace, found: PersonFiles, words: Words) -> None:
    """
    Replace every repetition by `BLANK`. A summary that has one is written again from what is left.

    Raises:
        OSError, StoreUnavailable: Not to the end; the same once more does the rest.
    """
    for document in kept.documents():
        if words.blanked(text := document.text() or "") != text:
            document.replace_text(words.blanked(text))
        if words.blanked(text := document.raw_versions().decode("utf-8", "replace")) != text:
            document.replace_versions([words.blanked_in(version) for version in document.versions()])
    if database.exists():
        repeated_in_rows(database, words.blanked_in, found.rows, change=True)
    for history in kept.histories():
        changed = _rewritten(history, words, found)
        if changed or words.blanked(text := history.summary()) != text:
            history.drop_summary()


def _left(line: dict[str, Any], words: Words, found: PersonFiles, key: SessionKey) -> dict[str, Any]:
    """A line without repetitions. What people have said is theirs; the person's own lines go otherwise."""
    if line.get("role") == "user":
        return line
    turns = next((share.turns for share in found.shares if share.key == key), frozenset[str]())
    if is_theirs(line, found.person, found.turns | turns):
        return line
    changed: dict[str, Any] = words.blanked_in(line)
    return changed


def _rewritten(history: KeptHistory, words: Words, found: PersonFiles) -> bool:
    """Write a history anew without repetitions, each line in its place; whether there was one."""

    def left(line: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if line is None else _left(line, words, found, history.key)

    if all(left(line) == line for _, line in history.lines()):
        return False

    def change(raw: bytes, line: dict[str, Any] | None) -> bytes:
        now = left(line)
        return raw if now is None or now == line else encode_object(now)

    history.rewrite(change)
    return True
