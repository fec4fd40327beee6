"""
Crash isolation: what may have killed the process runs alone, until it ends or is shown to kill. A death stops
everything in flight and says little about any single part. So a turn or an outbox row that was in flight at
two deaths is a crash suspect, and from then on it runs alone. A gate enforces that: suspects pass it alone,
all others together, in the order of arrival. Without suspects the gate is open and nobody waits. The queue
records what was in flight at each death (`MaintenanceStore.suspects`); nothing here is persistent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import structlog

from agent_core.language import gettext_noop
from agent_core.messages import SessionKey
from gateway.store.states import CrashRecord
from gateway.store.stores import MaintenanceStore, StoreUnavailable, Suspect
from gateway.store.wakeups import RunSession

ALONE_AFTER = 2
"""What was in flight at this many deaths runs alone."""
MAX_DEATHS = 3
"""What was alone in flight at this many deaths, and got no further, is what the process dies of."""
CRASH_APOLOGY = gettext_noop("I crashed each time I tried, so I stopped trying.")
"""The apology for a message at which the process dies."""
_log = structlog.get_logger(__name__)


class CrashIsolation:
    """The gate before everything that is in flight. One instance for the whole gateway."""

    def __init__(self, maintenance: MaintenanceStore) -> None:
        self._maintenance = maintenance
        self._turns: dict[str, Suspect] = {}
        self._sends: dict[int, Suspect] = {}
        self._sessions: dict[SessionKey, int] = {}
        self._gate = anyio.Lock(fast_acquire=True)
        """Taken in the order of arrival; what runs alone keeps it."""
        self._inside = 0
        self._left = anyio.Event()
        self._stopped = False

    async def load_suspects(self) -> None:
        """Read from the store what is a suspect. Raises `StoreUnavailable`."""
        found = await self._maintenance.suspects()
        self._turns = {one.turn: one for one in found if one.turn is not None}
        self._sends = {one.outbox_id: one for one in found if one.outbox_id is not None}
        self._sessions = {
            one.session: one.record.alone for one in self._turns.values() if one.record.deaths >= ALONE_AFTER
        }

    def turn_refusal(self, turn: str, limit: int) -> str | None:
        """Return why a turn is not tried again; see `fatal`."""
        return fatal(self._turns.get(turn), limit)

    def suspect_send(self, outbox_id: int) -> Suspect | None:
        """Return an outbox row's record if it was in flight at a death."""
        return self._sends.get(outbox_id)

    def suspects_last(self, sessions: Sequence[tuple[SessionKey, float]]) -> list[tuple[SessionKey, float]]:
        """
        Return sessions in the order in which they run: one that kills must not keep others from running.

        Those without a suspect keep their order; those with one follow, the least suspected first.
        """
        return sorted(sessions, key=lambda one: self._sessions.get(one[0], -1))

    def guard(self, run_session: RunSession) -> RunSession:
        """Return ``run_session`` with the gate before it."""

        async def run(session: SessionKey) -> float | None:
            alone = session in self._sessions
            async with self.count_in_flight(alone=alone):
                if self._stopped:
                    return None
                if alone:
                    _log.warning(
                        "turn.isolated", session=str(session), deaths_alone=self._sessions.get(session, 0)
                    )
                return await run_session(session)

        return run

    @asynccontextmanager
    async def count_in_flight(self, *, alone: bool) -> AsyncGenerator[None]:
        """Count the work inside as in flight, with others or ``alone``."""
        async with AsyncExitStack() as passing:
            await passing.enter_async_context(self._gate)
            while alone and self._inside:
                self._left = anyio.Event()
                await self._left.wait()
            self._inside += 1
            try:
                if not alone:
                    await passing.aclose()
                yield
                if alone:
                    await self._reload_suspects()
            finally:
                self._inside -= 1
                self._left.set()

    def stop(self) -> None:
        """Start no more sessions."""
        self._stopped = True

    async def _reload_suspects(self) -> None:
        try:
            await self.load_suspects()
        except StoreUnavailable as error:
            _log.warning("suspects.unreadable", error=str(error))


def fatal(suspect: Suspect | None, limit: int = MAX_DEATHS) -> str | None:
    """Return why something is not tried again: the process dies of it (`kills`); None: it is tried."""
    if suspect is None or not kills(suspect.record, limit):
        return None
    return f"the process ended {suspect.record.deaths} times on it"


def kills(record: CrashRecord, limit: int = MAX_DEATHS) -> bool:
    """
    Return True if the process dies of it: it was alone in flight at ``limit`` deaths and got no further; one
    death more where it was in flight at others, with company or at an earlier step.
    """
    return record.alone >= limit + (record.deaths > record.alone)
