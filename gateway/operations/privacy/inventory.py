"""
Finds the data of one person under a home folder, for `squidbot export` and `squidbot forget`. A person is a
set of addresses (on Matrix, by mail). A conversation in which nobody else has ever said anything is theirs,
whole. In one that they shared, what they said is theirs, and what the assistant said and did in the turns
that answered them, because answers repeat questions; what others said about them is not. What they had said
before the question of somebody else, and came along with it, is theirs again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from agent_core.memory.scopes import person_name
from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.storage.history_lines import as_object
from gateway.errors import GatewayError
from gateway.operations.privacy.erasure_requests import EXPORT_NAME
from gateway.operations.privacy.personal_histories import KeptHistory, StoredHistories
from gateway.routing.access import LOCAL_ADDRESS
from gateway.store.personal_rows import personal_transaction
from gateway.store.place import QueuePlace
from gateway.store.sql.erasure_statements import PersonRows, find, remove_from_line


class PersonUnclear(GatewayError):
    """It is not clear who is meant."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Person:
    """The person who is meant: their addresses in one spelling, and whether they are the owner."""

    addresses: frozenset[str]
    owner: bool = False

    @property
    def name(self) -> str:
        """Their name in file names and messages."""
        return "owner" if self.owner else min(self.addresses)

    def matches_sender(self, sender: str) -> bool:
        """Return True if a sender is this person; for the owner also the terminal."""
        return person_name(sender) in self.addresses or (self.owner and sender == LOCAL_ADDRESS)


@dataclass(frozen=True, slots=True)
class Share:
    """
    A person's share of one conversation: all of it, or these turns.

    ``quoted``: their words are in others' questions, too, or only there.
    """

    history: KeptHistory
    whole: bool
    turns: frozenset[str]
    lines: int
    quoted: bool = False

    @property
    def key(self) -> SessionKey:
        """Its session."""
        return self.history.key


@dataclass(slots=True)
class PersonFiles:
    """All data of one person. ``attachments`` are paths relative to the home, as messages name them."""

    person: Person
    shares: list[Share] = field(default_factory=list)
    rows: PersonRows = field(default_factory=PersonRows)
    documents: list[MemoryScope] = field(default_factory=list)
    attachments: frozenset[str] = frozenset()
    exports: frozenset[str] = frozenset()
    """Those of them that are exports which were sent to the person: the next one would contain them all."""
    known_turns: frozenset[str] = frozenset()
    """Those that are known from before and cannot be found any more; see `privacy.erasure_journal`."""

    @property
    def turns(self) -> frozenset[str]:
        """All turns that answered them."""
        return self.rows.turns.union(self.known_turns, *(share.turns for share in self.shares))

    @property
    def own_sessions(self) -> list[str]:
        """The conversations that are theirs alone."""
        return [str(share.key) for share in self.shares if share.whole]

    def counts(self) -> dict[str, int]:
        """The amount of data by kind."""
        return {
            "conversations": len(self.own_sessions),
            "shared_conversations": len(self.shares) - len(self.own_sessions),
            "lines": sum(share.lines for share in self.shares),
            "memory_documents": len(self.documents),
            "attachments": len(self.attachments),
            **{f"queue_{name}": count for name, count in self.rows.counts().items()},
        }


def people(names: Collection[str], owner_aliases: Collection[str]) -> Person:
    """Return the person of these addresses, or ``owner``. Raises PersonUnclear if ambiguous."""
    aliases = {person_name(alias) for alias in owner_aliases}
    wanted: set[str] = set()
    for name in names:
        if name == "owner":
            wanted |= aliases
        elif "@" not in name.strip():
            raise PersonUnclear(f"{name!r} is not an address; write @person:server, person@domain or owner")
        else:
            wanted.add(person_name(name))
    if not wanted:
        raise PersonUnclear("no person is named; write an address, or set owner.aliases if you mean owner")
    of_owner = wanted & aliases
    if of_owner and wanted - aliases:
        raise PersonUnclear(
            f"{', '.join(sorted(of_owner))} is the owner and the other addresses are not; name one "
            "person at a time"
        )
    return Person(frozenset(wanted | (aliases if of_owner else set())), owner=bool(of_owner))


def find_files(kept: StoredHistories, database: QueuePlace, person: Person) -> PersonFiles:
    """Search all histories and the database, read-only. Raises OSError or StoreUnavailable."""
    found = PersonFiles(person)
    files: set[str] = set()
    for history in kept.histories():
        share, named = _share_of(history, person)
        if share is not None:
            found.shares.append(share)
            files |= named
    if database.exists():
        with personal_transaction(database) as db:
            found.rows = find(db, person.addresses, found.own_sessions, found.turns)
    for row in (*found.rows.inbox, *found.rows.outbox):
        files |= _files_in(as_object((row["payload"] or "").encode("utf-8", "replace")) or {})
    sent = (as_object((row["payload"] or "").encode("utf-8", "replace")) for row in found.rows.outbox)
    found.exports = frozenset(path for one in sent for path in _files_in(one or {}, EXPORT_NAME))
    found.attachments = frozenset(files)
    names = set(person.addresses)
    names |= {f"{address} {share.key.channel}" for address in names for share in found.shares}
    names |= {scope.name for scope in kept.scopes() if scope.name.partition(" ")[0] in person.addresses}
    scopes = [MemoryScope(ScopeKind.PERSON, name) for name in sorted(names)]
    for scope in [MemoryScope(ScopeKind.OWNER), *scopes] if person.owner else scopes:
        if kept.document(scope).exists():
            found.documents.append(scope)
    return found


def is_person_data(line: dict[str, Any], person: Person, turns: Collection[str]) -> bool:
    """Return True if a line of a shared conversation is the person's, or was an answer to them."""
    sender = line.get("sender")
    if isinstance(sender, str) and sender:
        return person.matches_sender(sender)
    return line.get("role") != "user" and line.get("turn") in turns


def _share_of(history: KeptHistory, person: Person) -> tuple[Share | None, set[str]]:
    """Return a person's share of a conversation, and the files that it names."""
    turns: set[str] = set()
    others = quoted = False
    for _, line in history.lines():
        quoted = quoted or (line is not None and remove_person_words(line, person) != line)
        sender = line.get("sender") if line is not None else None
        if line is None or not isinstance(sender, str) or not sender:
            continue
        if not person.matches_sender(sender):
            others = True
        elif isinstance(line.get("turn"), str):
            turns.add(line["turn"])
        else:
            turns.add("")
    if not turns and not quoted:
        return None, set()
    others = others or not turns
    files: set[str] = set()
    count = 0
    for _, line in history.lines():
        if line is not None and (not others or is_person_data(line, person, turns - {""})):
            count += 1
            files |= _files_in(line)
    return Share(history, not others, frozenset(turns - {""}), count, quoted), files


def remove_person_words(line: dict[str, Any], person: Person) -> dict[str, Any]:
    """A line without what the person had said before somebody else's question, and without their address."""
    told = f"{line.get('content')} {line.get('origins')}".lower()
    if not any(one.lower() in told for one in person.addresses):
        return line
    return remove_from_line(line, person.matches_sender)


def _files_in(message: dict[str, Any], name: str = "") -> set[str]:
    """Return the paths of a message's files whose names begin with ``name``."""
    listed = message.get("attachments")
    return {
        str(one["path"])
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
        and isinstance(one.get("path"), str)
        and str(one.get("name", "")).startswith(name)
    }
