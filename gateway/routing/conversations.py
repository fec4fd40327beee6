"""
Decides which conversation a message belongs to, and finds people and rooms by name. With
``owner.conversation: shared`` the owner's private conversations are one, for messages by the owner, from a
proven address, that nobody else reads. It is decided when a message is accepted, and at the start for what
still waits; a change of the setting moves no history.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from agent_core.language import _
from agent_core.memory.scopes import OWNER, scope_for
from agent_core.messages import Audience, InboundMessage, SessionKey
from gateway.routing.access import Access, Role, is_admitted, normalise
from gateway.store.background_job_rows import is_background
from gateway.store.shared import SHARED
from gateway.store.states import InboxState
from gateway.store.stores import InboxStore

_HEARTBEAT = "heartbeat"


class Conversations:
    """Finds a message's session, for all channels; ``shared`` joins the owner's private ones."""

    def __init__(self, access: Access, *, shared: bool = False) -> None:
        self.access = access
        self._shared = shared

    def conversation_for(self, message: InboundMessage) -> SessionKey:
        """The session in which a message is worked on."""
        belongs = (
            self._shared
            and message.kind in ("message", "job", "reaction")
            and message.audience is Audience.DIRECT
            and not is_background(message.session)
            and not message.context.read_only
            and not is_admitted(message)
            and self.access.decide(message).role is Role.OWNER
        )
        return SHARED if belongs else message.session

    async def reassign_waiting(self, inbox: InboxStore, channels: Collection[str]) -> int:
        """
        Move waiting messages to their present session; return the number moved.

        The setting may have changed, and messages of a disabled channel must not delay others. Turns stay
        together. Nobody may be working. Raises `StoreUnavailable`.
        """
        rows = await inbox.rows(states=[InboxState.READY], limit=10_000)
        wanted: dict[str, dict[int, SessionKey]] = {}
        for row in rows:
            session = self.conversation_for(row.message)
            if session == SHARED and row.message.channel not in channels:
                session = row.message.session
            if row.message.kind in ("message", "job"):
                wanted.setdefault(row.turn or str(row.id), {})[row.id] = session
        together = [each for each in wanted.values() if len(set(each.values())) == 1]
        moves = {row_id: session for each in together for row_id, session in each.items()}
        return await inbox.ready_work(moves) if moves else 0

    def reading_scope(self, place: SessionKey, scope: object = str(OWNER)) -> SessionKey:
        """The session in whose history something stands that was said in a place, for the eyes of a scope."""
        said_there = place.channel != _HEARTBEAT and not is_background(place)
        return SHARED if self._shared and said_there and scope == str(OWNER) else place


def place_name(session: SessionKey) -> str:
    """The place of a conversation in words."""
    return _("all your channels") if session == SHARED else session.channel


def scope_at(access: Access, session: SessionKey, place: str) -> str:
    """
    The scope of a line in the history that answers nothing; ``place`` is the address or room it goes to.

    What is said to one person alone is not shown to others who come later.
    """
    mine = normalise(place) in access.owner_addresses_on(session.channel)
    audience = Audience.GROUP if place.startswith(("!", "#")) and not mine else Audience.DIRECT
    apart = session.channel if access.is_apart(session.channel) else ""
    linked = access.household.rules(normalise(place)).addresses
    person = place if apart or not linked else linked[0]
    return str(scope_for(session, audience, mine, person, account=apart))


def addresses_for(wanted: str, known: Mapping[str, str]) -> list[str]:
    """
    Return the addresses in ``known`` that are meant by ``wanted``: the address itself, else all with this
    name, else all with these words in their names. More than one: it is not certain who is meant.
    """
    said = wanted.strip().casefold()
    words = set(said.split())
    exact = [each for each in known if each.casefold() == said]
    same = [each for each, name in known.items() if said and name.strip().casefold() == said]
    part = [each for each, name in known.items() if words and words <= set(name.casefold().split())]
    return exact or same or part
