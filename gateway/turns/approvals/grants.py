"""
Grants: given, looked up and described. `agent_core.tools.grants` decides what one covers.

A grant is noted with the yes to its question, in one transaction, and named after it. It ends by time, by
``!grants revoke``, with its turn if it is for that alone, and with a restore. Time never runs backwards here:
of the wall clock, this process's own clock and the last time that a grant was looked at the latest counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo

from agent_core.memory.scopes import person_name
from agent_core.messages import SessionKey
from agent_core.ports import Clock
from agent_core.tools.grants import DEFAULT, LONGEST, Grant, covers, describe_scope
from agent_core.tools.policy import Proposal
from gateway.queue.shared import SHARED
from gateway.queue.stores import GrantStore, Turn
from gateway.routing.access import Access
from gateway.turns.approvals.text import safe_line
from gateway.turns.approvals.tool_decisions import Terms

_DURATION = re.compile(r"(\d{1,4})\s*(m|min|h|d)")
_UNITS = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_terms(words: Sequence[str]) -> Terms | None:
    """Parse ``1h``, ``30m``, ``job`` and ``everywhere``; None if a word is unknown, or for over a day."""
    terms, longest = Terms(DEFAULT.total_seconds()), LONGEST.total_seconds()
    for word in (each.lower() for each in words):
        if word == "everywhere":
            terms = replace(terms, everywhere=True)
        elif word == "job":
            terms = replace(terms, turn=True, seconds=longest)
        elif (found := _DURATION.fullmatch(word)) is not None:
            terms = replace(terms, seconds=int(found[1]) * _UNITS[found[2]])
        else:
            return None
    return terms if 0 < terms.seconds <= longest else None


class ToolGrants:
    """The grants of one gateway."""

    def __init__(self, store: GrantStore, clock: Clock, *, zone: tzinfo | None = None) -> None:
        self._store = store
        self._clock = clock
        self._zone = zone
        self._began = clock.now() - timedelta(seconds=clock.monotonic())

    def now(self) -> datetime:
        """The time, which does not run backwards while this process lives."""
        return max(self._clock.now(), self._began + timedelta(seconds=self._clock.monotonic()))

    async def covering(self, turn: Turn, proposal: Proposal) -> Grant | None:
        """A grant that lets a call of a turn pass. Raises `StoreUnavailable`."""
        now = self.now()
        people = [person_name(row.message.sender.address) for row in turn.rows]
        for grant in await self._store.expire(now):
            if covers(
                grant,
                proposal,
                conversation=str(turn.session),
                people=people,
                turn=turn.id,
                now=now,
            ):
                return grant
        return None

    async def overview(self, access: Access, *, person: str = "", room: str = "") -> list[str]:
        """List grants, those of others without the exact call. Raises `StoreUnavailable`."""
        now = self.now()
        return [
            describe(
                grant,
                self._zone,
                words=grant.conversation == room if room else bool(person) or is_owners(grant, access),
            )
            for grant in await self._store.expire(now)
            if (not person or person_name(person) in grant.people)
            and (not room or grant.conversation in ("", room))
        ]

    async def revoke(self, grant_id: str, *, person: str = "") -> bool:
        """End one; with ``person`` only if it was given by this person. Raises `StoreUnavailable`."""
        known = [grant for grant in await self._store.rows() if grant.id == grant_id]
        if not known or (person and person_name(known[0].by) != person_name(person)):
            return False
        return await self._store.revoke(grant_id)


def is_owners(grant: Grant, access: Access) -> bool:
    """Tell a grant for the owner alone from one for others."""
    session = SessionKey.parse(grant.conversation) if grant.conversation else SHARED
    return all(access.may_show(session, each) for each in grant.people)


def describe(grant: Grant, zone: tzinfo | None = None, *, words: bool = True) -> str:
    """A grant as people read it; without ``words`` not the exact call."""
    until = grant.until.astimezone(zone).strftime("%H:%M on %d %B")
    where = "everywhere" if not grant.conversation else f"in `{safe_line(grant.conversation)}`"
    job = ", for this job alone" if grant.turn else ""
    what = f": `{safe_line(grant.scope.what)}`" if words and grant.scope.kind.value == "call" else ""
    people = ", ".join(f"`{safe_line(each)}`" for each in grant.people)
    return (
        f"- `{grant.id}`: {describe_scope(grant.scope)}{what}, for {people} {where}, until {until}{job}; "
        f"given by `{safe_line(grant.by)}`"
    )
