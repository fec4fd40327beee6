"""
Grants: given and looked up. `agent_core.tools.grants` decides what one covers. A grant is noted with the yes
to its question, in one transaction, and named after it. It ends by time, by ``!grants revoke``, with its turn
if it is for that alone, and with a restore. Time never runs backwards here: of the wall clock, this process's
own clock and the last time that a grant was looked at the latest counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from agent_core.memory.scopes import person_name
from agent_core.messages import SessionKey
from agent_core.ports import Clock
from agent_core.provenance import from_json
from agent_core.tools.grants import DEFAULT, MAX_DURATION, Grant, covers
from agent_core.tools.policy import Approval, Proposal
from gateway.routing.access import Access
from gateway.store.model import APPROVED
from gateway.store.shared import SHARED
from gateway.store.stores import GrantStore, Turn
from gateway.turns.questions.decisions import Terms

_DURATION = re.compile(r"(\d{1,4})\s*(m|min|h|d)")
_UNITS = {"m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_terms(words: Sequence[str]) -> Terms | None:
    """Parse ``1h``, ``30m``, ``job`` and ``everywhere``; None if a word is unknown, or for over a day."""
    terms, longest = Terms(DEFAULT.total_seconds()), MAX_DURATION.total_seconds()
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

    def __init__(self, store: GrantStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._began = clock.now() - timedelta(seconds=clock.monotonic())

    def now(self) -> datetime:
        """The time, which does not run backwards while this process lives."""
        return max(self._clock.now(), self._began + timedelta(seconds=self._clock.monotonic()))

    async def find_grant(self, turn: Turn, proposal: Proposal) -> Grant | None:
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


def is_owners(grant: Grant, access: Access) -> bool:
    """Tell a grant for the owner alone from one for others."""
    session = SessionKey.parse(grant.conversation) if grant.conversation else SHARED
    return all(access.may_show(session, each) for each in grant.people)


def parse_approval(noted: object) -> Approval | None:
    """Parse the journal's record of an approval."""
    match noted:
        case {"by": str(by), "origins": origins, **more}:
            also: Any = more.get("also") or ()
            changed = more.get("changed") is True
            return Approval(by, from_json(origins), str(more.get("state") or ""), also, changed)
    return None


def decision_record(approval: Approval) -> dict[str, Any]:
    """A yes that a call was begun with, as it was decided."""
    return {"verdict": APPROVED, "by": approval.by, "owner": not approval.origins}
