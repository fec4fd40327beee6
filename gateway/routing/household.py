"""
What the settings say of single people (``people``): which addresses are one person, what that person may
have done, and in which language they are told things. Pure. It only ever takes away: who may talk to the bot
is decided by `gateway.routing.access`, and what a call needs by the tool policy. Whoever has no entry is an
adult with no settings, as everybody is without ``people``; `OTHERS` gives them others.

An address counts as it is proven. On an account that verifies less than the first of its kind, or for a
message that somebody has released by hand, it may be somebody else's: nothing is gained by it there, and what
an entry forbids stays forbidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from agent_core.language import ENGLISH
from channels.base import PlaceRules

OTHERS = "others"
"""The entry for everybody who has none."""
GUEST_TOOLS = ("memory_write", "read_attachment", "read_skill", "schedule", "search_history")
"""The tools of a guest's turn: what is said and remembered in their conversations, and reminders there."""
GUEST_SHARE = 0.25
"""Up to so much of the day's budget a guest is served."""


class HouseholdRole(StrEnum):
    """The place of somebody in the household."""

    OWNER = "owner"
    """May decide what the owner may decide about people who are no owners. Has a memory of their own."""
    ADULT = "adult"
    GUEST = "guest"


@dataclass(frozen=True, slots=True)
class PersonRules(PlaceRules):
    """
    The settings of one person.

    ``addresses`` are normalised, the first names their memory; ``share`` is the part of the day's budget up
    to which they are served (None: as all others).
    """

    name: str = ""
    addresses: Sequence[str] = ()
    role: HouseholdRole = HouseholdRole.ADULT
    share: float | None = None

    @classmethod
    def default(cls, role: HouseholdRole) -> PersonRules:
        """Return the rules of a role if nothing else is set."""
        if role is HouseholdRole.GUEST:
            return cls(role=role, tools=GUEST_TOOLS, share=GUEST_SHARE)
        return cls(role=role, share=1.0 if role is HouseholdRole.OWNER else None)

    def without_proof(self) -> PersonRules:
        """Return the rules where the address may be somebody else's."""
        role = HouseholdRole.GUEST if self.role is HouseholdRole.GUEST else HouseholdRole.ADULT
        share = None if self.role is HouseholdRole.OWNER else self.share
        return replace(self, addresses=(), role=role, share=share, persona="", pool="")


@dataclass(frozen=True)
class Household:
    """The people of a home, by name; ``language`` is the home's, and the owner's."""

    people: Mapping[str, PersonRules] = field(default_factory=dict)
    language: str = ENGLISH

    def __post_init__(self) -> None:
        known = {address: each for each in self.people.values() for address in each.addresses}
        object.__setattr__(self, "_by_address", known)
        object.__setattr__(self, "_others", self.people.get(OTHERS, PersonRules()))

    def rules(self, address: str, *, proven: bool = True) -> PersonRules:
        """The rules for a normalised address of somebody who is not the owner."""
        found: PersonRules = self._by_address.get(address, self._others)  # type: ignore[attr-defined]
        return found if proven else found.without_proof()

    def same_person(self, addresses: Iterable[str]) -> frozenset[str]:
        """These normalised addresses with all others of the same people."""
        return frozenset(each for one in addresses for each in (one, *self.rules(one).addresses))
