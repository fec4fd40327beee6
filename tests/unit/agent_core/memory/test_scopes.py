"""Whose memory a conversation has."""

from __future__ import annotations

import pytest

from agent_core.memory.scopes import OWNER, hidden_from, private_in, scope_for
from agent_core.messages import Audience, SessionKey
from agent_core.models import MemoryScope, ScopeKind

ROOM = SessionKey("matrix", "!room:hs")
ROOM_SCOPE = MemoryScope(ScopeKind.ROOM, "matrix/!room%3ahs")


def test_the_owner_alone_has_the_owners_memory() -> None:
    """A direct conversation with the owner, on any channel, opens the owner's document."""
    assert scope_for(ROOM, Audience.DIRECT, True, "@alice:hs") == OWNER
    assert scope_for(SessionKey("email", "<root@m>"), Audience.DIRECT, True, "alice@m") == OWNER


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_group_has_the_rooms_memory(is_owner: bool) -> None:
    """Whoever speaks in a group, the owner too: only the room's document is open, in all of its threads."""
    assert scope_for(ROOM, Audience.GROUP, is_owner, "@alice:hs") == ROOM_SCOPE
    assert scope_for(SessionKey("matrix", "!room:hs", "$t"), Audience.GROUP, is_owner, "@a:hs") == ROOM_SCOPE


def test_another_person_has_their_own() -> None:
    """Somebody else's direct conversations share that person's document and no other."""
    bob = MemoryScope(ScopeKind.PERSON, "@bob:hs")
    assert scope_for(ROOM, Audience.DIRECT, False, " @bob:hs ") == bob
    assert scope_for(SessionKey("matrix", "!other:hs"), Audience.DIRECT, False, "@bob:hs") == bob
    assert scope_for(ROOM, Audience.DIRECT, False, "@Bob:hs") != bob


def test_mail_addresses_are_one_person_in_any_case() -> None:
    """Bob@Mail.Test and bob@mail.test are the same."""
    wanted = MemoryScope(ScopeKind.PERSON, "bob@mail.test")
    assert scope_for(ROOM, Audience.DIRECT, False, "Bob@Mail.Test") == wanted


@pytest.mark.parametrize("address", ["bob@mail.test", "", "  "])
def test_an_address_without_proof_opens_nobodys_memory(address: str) -> None:
    """What may be forged, or is not there, gives a document of this conversation alone."""
    assert scope_for(ROOM, Audience.DIRECT, False, address, sender_verified=False) == ROOM_SCOPE
    assert scope_for(ROOM, Audience.DIRECT, False, "") == ROOM_SCOPE


@pytest.mark.parametrize(
    ("said_in", "asked_in", "hidden"),
    [
        ("owner", "owner", False),
        ("owner", "room:matrix/!room%3ahs", True),
        ("owner", "person:@bob:hs", True),
        ("person:@bob:hs", "owner", True),
        ("person:@bob:hs", "person:@bob:hs", False),
        ("person:@bob:hs", "person:@eve:hs", True),
        ("room:matrix/!room%3ahs", "owner", False),
        ("room:matrix/!room%3ahs", "person:@bob:hs", False),
        (None, "person:@bob:hs", False),
        ("owner", None, False),
    ],
)
def test_who_may_hear_what_was_said_here(said_in: str | None, asked_in: str | None, hidden: bool) -> None:
    """What one person said alone is for that person alone; what all have heard is for all of them."""
    assert hidden_from(asked_in, private_in([said_in])) is hidden
