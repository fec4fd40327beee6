"""Failures on request, and a record of what was tried.

A mail server that loses the connection after it has delivered, but before it said so, is the one case in
which a careless client sends everything twice. No real server does it when asked; this one does. Faults
are used up in the order in which they were asked for, and each may be limited to one sender, so that
tests sharing a server do not hit one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """What goes wrong, named by the moment."""

    REFUSE_AUTH = "refuse-auth"
    REFUSE_MAIL = "refuse-mail"
    REFUSE_RCPT = "refuse-rcpt"
    REFUSE_DATA = "refuse-data"
    OWN_MESSAGE_ID = "own-message-id"
    """The server sets its own Message-ID in the place of the client's, as Amazon SES does."""
    DROP_BEFORE_DELIVERY = "drop-before-delivery"
    DROP_AFTER_DELIVERY = "drop-after-delivery"


@dataclass(slots=True)
class PlannedFault:
    """A fault that waits for its moment, `times` times."""

    fault: Fault
    times: int
    reply: str
    sender: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One step of a submission that had a result: what was tried and what the client was told."""

    step: str
    sender: str
    recipients: list[str]
    reply: str


class FaultPlan:
    """All planned faults and all attempts seen."""

    def __init__(self) -> None:
        """Begin with nothing planned."""
        self._planned: list[PlannedFault] = []
        self.attempts: list[Attempt] = []

    def add(self, planned: PlannedFault) -> None:
        """Plan one more."""
        self._planned.append(planned)

    def clear(self) -> None:
        """Forget all plans; the record stays."""
        self._planned.clear()

    def pending(self) -> list[dict[str, Any]]:
        """Describe what has not happened yet."""
        return [
            {"fault": str(one.fault), "times": one.times, "reply": one.reply, "sender": one.sender}
            for one in self._planned
        ]

    def take_or_none(self, fault: Fault, sender: str) -> PlannedFault | None:
        """Use up one planned fault of this kind for this sender, if there is one."""
        for planned in self._planned:
            if planned.fault is fault and planned.sender in (None, sender):
                planned.times -= 1
                if planned.times <= 0:
                    self._planned.remove(planned)
                return planned
        return None
