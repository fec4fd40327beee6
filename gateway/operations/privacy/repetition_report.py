"""
Finds where answers to others repeat a person's words, so that `squidbot forget` can list these places. Those
answers belong to others and stay. Repetitions are runs of six words (or a whole message of three or more) and
rare words: numbers, addresses, very long ones. Paraphrases are not found. It runs before anything is removed,
because the person's words are the pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from agent_core.messages import SessionKey
from agent_core.prompt import remove_words_of
from agent_core.storage.history_lines import as_object
from gateway.operations.privacy.inventory import PersonFiles, is_person_data
from gateway.operations.privacy.personal_histories import StoredHistories
from gateway.store.personal_rows import personal_transaction
from gateway.store.place import QueuePlace
from gateway.store.sql.erasure_statements import count_repetitions

_WORD = re.compile(r"[^\W_]+(?:[@.:/+_\-][^\W_]+)*")
_RUN = 6
_SHORTEST_RUN = 3


@dataclass(slots=True)
class IdentifyingWords:
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

    def excluding(self, other: IdentifyingWords) -> IdentifyingWords:
        """These without what somebody else has said as well."""
        return IdentifyingWords(self.runs - other.runs, self.rare - other.rare)

    def occur_in(self, text: str) -> bool:
        """Return True if a text repeats the words."""
        words = [match[0].casefold() for match in _WORD.finditer(text)]
        return any(word in self.rare for word in words) or any(
            " ".join(words[at : at + length]) in self.runs
            for length in range(_SHORTEST_RUN, _RUN + 1)
            for at in range(len(words) - length + 1)
        )

    def occur_in_value(self, value: Any) -> bool:
        """Return True if a text in a JSON value repeats the words, at any depth; keys do not count."""
        if isinstance(value, str):
            return self.occur_in(value)
        if isinstance(value, list):
            return any(map(self.occur_in_value, value))
        if isinstance(value, dict):
            return any(self.occur_in_value(one) for key, one in value.items() if key not in _NO_TEXT)
        return False


_NO_TEXT = frozenset(
    {"id", "turn", "timestamp", "scope", "role", "key", "session", "channel", "account", "path", "sha256"}
)
"""What machines read; a number of the person's in it is not theirs."""


def _is_rare(word: str) -> bool:
    digits = sum(char.isdigit() for char in word)
    return digits >= 4 or "@" in word or "://" in word or len(word) >= 16


def identifying_words(kept: StoredHistories, found: PersonFiles) -> IdentifyingWords:
    """The words that identify what a person has said."""
    theirs, others = IdentifyingWords(), IdentifyingWords()
    for history in kept.histories():
        for _, line in history.lines():
            sender = line.get("sender") if line is not None else None
            if line is not None and isinstance(sender, str) and sender:
                text, person, said = str(line.get("content") or ""), found.person.matches_sender, list[str]()
                if not person(sender):  # what they said in a group to others stands before others' questions
                    text = remove_words_of(text, person, removed=said)
                (theirs if person(sender) else others).add(text)
                for each in said:
                    theirs.add(each)
    for row in found.rows.inbox:
        payload = as_object((row.get("payload") or "").encode("utf-8", "replace")) or {}
        theirs.add(str(payload.get("text") or ""))
    return theirs.excluding(others)


def places_of(
    kept: StoredHistories, database: QueuePlace, found: PersonFiles, words: IdentifyingWords
) -> list[str]:
    """The places of repetitions that `squidbot forget` leaves; nothing is changed."""
    told = []
    for history in kept.histories():
        lines = (line for _, line in history.lines() if line is not None)
        count = sum(_repeats(line, words, found, history.key) for line in lines)
        told += [f"{history.place_text} ({count} lines)"] if count else []
        if words.occur_in(history.summary()):
            told.append(f"the summary of {history.key}")
    if database.exists():
        with personal_transaction(database, "forget") as db:
            rows = count_repetitions(db, words.occur_in_value, found.rows)
        told += [f"{database.name}, {table} ({count} rows)" for table, count in rows.items()]
    for document in kept.documents():
        texts = (document.text() or "", document.raw_versions().decode("utf-8", "replace"))
        told += [
            place for place, text in zip(document.place_text, texts, strict=True) if words.occur_in(text)
        ]
    return told


def _repeats(line: dict[str, Any], words: IdentifyingWords, found: PersonFiles, key: SessionKey) -> bool:
    """Return True if a line repeats the words and is neither a person's own nor removed otherwise."""
    if line.get("role") == "user":
        return False
    turns = next((share.turns for share in found.shares if share.key == key), frozenset[str]())
    return not is_person_data(line, found.person, found.turns | turns) and words.occur_in_value(line)
