"""
What is set for the people of a turn and for its room: tools, language, manner, models, share of the budget.
The strictest of all who speak in the turn counts for the tools. What is set for a person's manner and models
counts in private alone, because others would notice it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agent_core.language import speaking, use_language
from agent_core.messages import Audience
from channels.base import Channel, PlaceRules, SupportsPlaceRules
from gateway.routing.access import Access
from gateway.routing.household import PersonRules
from gateway.store.stores import Turn
from gateway.turns.questions.questions import OWNER_QUESTIONS


@dataclass(frozen=True, slots=True)
class TurnRules:
    """
    The rules for one turn.

    ``room`` is None in private; ``people`` are those who speak in it, None for the owner.
    """

    room: PlaceRules | None
    people: Sequence[PersonRules | None]

    def permits(self, tool: str) -> bool:
        """Return True if a tool may be used."""
        return all(each.permits(tool) for each in (self.room, *self.people) if each is not None)

    @property
    def place(self) -> PlaceRules:
        """The rules of the room, or of the one person in private."""
        if self.room is not None:
            return self.room
        return self.people[0] or PlaceRules() if len(set(self.people)) == 1 else PlaceRules()

    @property
    def share(self) -> float | None:
        """The part of the day's budget up to which it is served: the greatest of its people's."""
        shares = [None if each is None else each.share for each in self.people]
        known = [share for share in shares if share is not None]
        return max(known) if known and len(known) == len(shares) else None

    @property
    def language(self) -> str:
        """The language of its people, if it is one, or of the room; empty: that of the home."""
        spoken = {"" if each is None else each.language for each in self.people}
        return (self.room.language if self.room else "") or (spoken.pop() if len(spoken) == 1 else "")


def rules_of_turn(turn: Turn, access: Access, channels: Mapping[str, Channel]) -> TurnRules:
    """The rules of a turn; those of the owner's own reminders that something waits are the owner's."""
    if turn.session == OWNER_QUESTIONS:
        return TurnRules(None, (None,))
    messages, channel = [row.message for row in turn.rows], channels.get(turn.channel)
    room = None
    if any(message.audience is Audience.GROUP for message in messages):
        can = isinstance(channel, SupportsPlaceRules)
        room = channel.place_rules(turn.place.conversation) if can else PlaceRules()  # type: ignore[union-attr]
    return TurnRules(room, [access.rules(message) for message in messages])


@contextmanager
def use_turn_language(turn: Turn, access: Access, channels: Mapping[str, Channel]) -> Iterator[None]:
    """Make the texts in the language of a turn's people. Whoever woke the turn may speak another one."""
    language = rules_of_turn(turn, access, channels).language
    with use_language(access.household.language), speaking(language):
        yield
