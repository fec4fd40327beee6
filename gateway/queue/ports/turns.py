"""Turns: claims on the head of a session, what was done for them, and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agent_core.messages import SessionKey
from gateway.queue.model import Completion, NewOutbound, OutboxRow, Step, Turn


class TurnStore(Protocol):
    """Turns: claims on the head of a session, what was done for them, and how they end."""

    async def claim(self, session: SessionKey, *, merge: int = 1, out_of_band: bool = False) -> Turn | None:
        """
        Take the head of the session: up to ``merge`` waiting rows as one turn, ``ready → running``.

        ``attempts`` is raised durably enough to survive SIGKILL before this returns. A turn that was
        claimed before comes back with the same id and rows. None: nothing waits, the head waits for its
        retry time, or the session is running under a live claim.

        What needs no model (a message that is ``alone``, a reaction) overtakes a head that waits for its
        retry time, so that commands work while there is no model. With ``out_of_band`` only such a row is
        claimed, also beside a running turn, but never two at once. A turn that waits for a person's yes is
        gone past by what is behind it. Nothing else is ever overtaken.
        """
        ...

    async def steps(self, turn: Turn) -> list[Step]:
        """What earlier starts of this turn have done, by number."""
        ...

    async def step_started(self, turn: Turn, step: Step) -> None:
        """Record a step (``result`` None) durably before it has an effect."""
        ...

    async def step_finished(self, turn: Turn, step: Step) -> None:
        """Record the result durably; replaces a record with the same number."""
        ...

    async def complete(self, turn: Turn, completion: Completion) -> list[OutboxRow]:
        """
        The rows become ANSWERED; history lines, outbox rows and usage are committed with it, the steps are
        dropped. The outbox rows hang on the last row of the turn; without any, the rows are SETTLED.
        """
        ...

    async def retry(
        self, turn: Turn, error: str, *, delay_s: float, deferral: bool, waits_for: str | None = None
    ) -> None:
        """
        ``running → ready``, not before ``delay_s``, or `due_now`. ``deferral``: it was not the message's
        fault (the provider is away), so the start does not count in ``attempts`` but in ``deferrals``.
        """
        ...

    async def postpone(self, turn: Turn, why: str, *, delay_s: float, waits_for: str | None = None) -> None:
        """
        ``running → ready``, not before ``delay_s``, or `due_now`. Nothing has failed: neither the start nor
        the time counts as an attempt or a deferral. Its steps stay.
        """
        ...

    async def dead_letter(
        self, turn: Turn, error: str, outbound: Sequence[NewOutbound] = ()
    ) -> list[OutboxRow]:
        """The turn failed for good: its rows are DEAD and the apology is in the outbox, together."""
        ...

    async def release(self, turn: Turn) -> None:
        """Park a turn at shutdown: ``running → ready``, and this start does not count. Its steps stay."""
        ...

    async def due_in(self, session: SessionKey) -> float | None:
        """
        In how many seconds the head of the session, or what overtakes it, is due (0.0: now). None: nothing
        waits, or a turn of the session is running. To be asked when `claim` gave nothing, so that a retry is
        not forgotten.
        """
        ...

    async def open_sessions(self) -> list[tuple[SessionKey, float]]:
        """Sessions with something to do, and in how many seconds their head is due (0.0: now)."""
        ...

    async def due_sessions(self) -> list[tuple[SessionKey, bool]]:
        """
        Sessions whose head is due and of which nothing runs: less than `open_sessions`, and quicker. With
        True those of which something can be claimed ``out_of_band``.
        """
        ...

    async def waiting_people(self) -> dict[SessionKey, str]:
        """The address of whoever sent the head of each session that waits."""
        ...
