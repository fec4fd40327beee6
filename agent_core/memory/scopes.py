"""
Who may see which memory. The people who can read along decide it, never a model or a message.

| conversation | sender | memory document |
|---|---|---|
| direct | the owner | the owner's (``workspace/MEMORY.md``) |
| direct | somebody else, address proven | that person's |
| direct | somebody else, address not proven | this conversation's alone |
| shared | anybody, the owner too | the room's; in a mail thread each person's own of that thread |

A person is an address; on an account that verifies people in another way than the others, an address there.

In a shared room everybody sees the answer even to the owner's message, so the owner's document stays
out of it. An address that may be forged opens nobody's document.

The same holds inside one conversation whose audience changes, as a direct room does when somebody is invited:
what was said with one person alone (`private_in`) is shown to a model only in turns of that person alone.
What was said before all who are in the room may be told to each of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent_core.messages import Audience, SessionKey
from agent_core.models import MemoryScope, ScopeKind

OWNER = MemoryScope(ScopeKind.OWNER)
_SHARED = f"{ScopeKind.ROOM.value}:"


def scope_for(
    key: SessionKey,
    audience: Audience,
    sender_is_owner: bool,  # noqa: FBT001 (the four facts of the rule stand side by side)
    sender_address: str,
    *,
    sender_verified: bool = True,
    account: str = "",
) -> MemoryScope:
    """
    Return the scope of a conversation's memory document.

    ``sender_address`` is the channel's address, never a display name; ``sender_is_owner`` holds for a
    verified one. ``account`` is set where the address may be another person on another account.
    """
    if audience is not Audience.DIRECT:
        return MemoryScope(ScopeKind.ROOM, str(room_of(key)))
    if sender_is_owner:
        return OWNER
    name = person_name(sender_address)
    if not name or not sender_verified:
        return MemoryScope(ScopeKind.ROOM, str(room_of(key)))
    # No address holds a blank, so this is nobody else's name.
    return MemoryScope(ScopeKind.PERSON, f"{name} {account}" if account else name)


def private_in(scopes: Iterable[str | None]) -> frozenset[str]:
    """The scopes of history lines (`Message.scope`) that belong to one person alone."""
    return frozenset(scope for scope in scopes if scope is not None and not scope.startswith(_SHARED))


def hidden_from(scope: str | None, private: Iterable[str]) -> bool:
    """Return True if these private scopes must not be shown in ``scope`` (None: the operator, sees all)."""
    return scope is not None and bool(set(private) - {scope})


def room_of(key: SessionKey) -> SessionKey:
    """
    Return the room of a session, shared by its threads.

    In mail, everybody who has seen an id may claim its thread; the person (``key.thread``) is proven, so each
    person has a room of the thread.
    """
    person = key.thread if key.thread is not None and "@" in key.thread else None
    return SessionKey(key.channel, key.conversation, person)


def person_name(address: str) -> str:
    """Return one name per person: mail addresses lower-cased, Matrix ids as they are (case matters)."""
    address = address.strip()
    return address if address.startswith("@") else address.lower()
