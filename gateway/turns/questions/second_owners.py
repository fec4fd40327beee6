"""
Second owners: people of the household who may decide what the owner may decide about people who are no
owners. A question is put to each of them in private, beside the owner, and the first answer counts. They
decide only what was put to them, as nobody approves what they have not seen, and nothing in which an owner
has spoken.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent_core.messages import Audience, InboundMessage, SessionKey
from channels.base import Channel
from gateway.proactive.jobs.job_permissions import PlaceUnknown, direct_conversation
from gateway.proactive.owner_contact import Target
from gateway.routing.access import Access, Role, contact_rank, kinds_of, normalise
from gateway.routing.household import HouseholdRole
from gateway.store.model import Question, Turn


def is_second_owner(access: Access, message: InboundMessage) -> bool:
    """Return True if a message is certainly a second owner's."""
    rules = access.rules(message)
    return rules is not None and rules.role is HouseholdRole.OWNER and access.decide(message).allowed


def is_any_owners(access: Access, turn: Turn) -> bool:
    """Return True if owners alone have spoken in a turn."""
    messages = [row.message for row in turn.rows]
    return all(access.decide(one).role is Role.OWNER or is_second_owner(access, one) for one in messages)


def may_decide_for(access: Access, question: Question, message: InboundMessage) -> bool:
    """Return True if a message is a second owner's, in private, and the question was put to them there."""
    if message.audience is not Audience.DIRECT or not is_second_owner(access, message):
        return False
    house = access.household
    spoke = [house.rules(normalise(person)).role is HouseholdRole.OWNER for person in question.people]
    return not any(spoke) and any(_is_there(message, place) for place in question.places)


def _is_there(message: InboundMessage, place: SessionKey) -> bool:
    """Return True if a message is from where a question was put: the room, or by mail the mailbox."""
    by_mail = place.thread is not None and normalise(place.thread) == normalise(message.sender.address)
    here = message.session
    return place.channel == here.channel and (place.conversation == here.conversation or by_mail)


async def second_owner_places(
    access: Access, channels: Mapping[str, Channel], turn: Turn
) -> list[tuple[Target, str]]:
    """
    Return where each second owner is asked about a turn of other people, with their language.

    One who cannot be reached now is left out: the owner is asked in any case.
    """
    found: list[tuple[Target, str]] = []
    if any(
        access.decide(row.message).role is Role.OWNER or is_second_owner(access, row.message)
        for row in turn.rows
    ):
        return found
    for rules in access.household.people.values():
        if rules.role is not HouseholdRole.OWNER:
            continue
        for name in sorted(channels, key=lambda name: contact_rank(access.kind(name))):
            mine = [one for one in rules.addresses if access.kind(name) in kinds_of(one)]
            address = next(iter(mine), "")
            allowed = access.role(name, address, verified=True) is Role.ALLOWED
            if not allowed or access.is_apart(name):
                continue
            try:
                session = await direct_conversation(channels[name], address)
            except PlaceUnknown:
                continue
            if session is not None:
                found.append((Target(name, channels[name].account, session, address), rules.language))
                break
    return found
