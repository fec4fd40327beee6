"""
Out-of-band turns: commands and reactions that run beside the running turn of their session. A turn may take
minutes, and `!stop`, `!status` or an approval must not wait for its end. So turns that need no model are run
by a dispatcher of their own with a few places, and a session may have one such turn beside its regular one.
The queue never hands out two of a kind (`TurnStore.claim` with ``out_of_band``). When the last of both ends,
the queue says what waits behind them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import KW_ONLY, dataclass, replace

import structlog

from agent_core.errors import StorageUnavailable
from agent_core.messages import SessionKey
from gateway.store.stores import Queue, StoreUnavailable, Turn
from gateway.store.wakeups import RunSession, Work
from gateway.turns.commands.command_service import CommandService
from gateway.turns.commit import STORE_RETRY
from gateway.turns.dispatcher import SessionDispatcher
from gateway.turns.history_writer import HistoryWriter

CONCURRENCY = 4
"""How many out-of-band turns run at once."""
_ROUNDING_S = 0.01
"""More than what two clocks differ in, of which one says when a command is due and one wakes its session."""
_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class OutOfBandTurns:
    """
    Serves commands and reactions at once, in all sessions.

    Messages of disabled channels wait; ``run_claimed_turn`` runs a claimed turn to its end.
    """

    sessions: SessionDispatcher
    _: KW_ONLY
    store: Queue
    history: HistoryWriter
    commands: CommandService
    channels: Collection[str]
    run_claimed_turn: Callable[[Turn], Awaitable[None]]
    dispatcher: SessionDispatcher

    def __post_init__(self) -> None:
        self._blocked = 0

    def wake(self, session: SessionKey) -> None:
        """There may be a command or a reaction to serve. Returns at once."""
        self.sessions.wake(session)

    def handle_work(self, work: Work) -> None:
        """Handle the news that there is work (`Wakeups.session`)."""
        if work.is_quick:
            # Not too early by a rounding: nobody would look at it again.
            self.sessions.handle_work(replace(work, after_s=work.after_s and work.after_s + _ROUNDING_S))

    async def run(self, over: Callable[[RunSession], RunSession] = lambda run: run) -> None:
        """Serve until `stop`, and until running turns have ended; ``over`` wraps each run of a session."""
        await self.sessions.run(over(self._run_session))

    def stop(self) -> None:
        """Start nothing more."""
        self.sessions.stop()

    async def _run_session(self, key: SessionKey) -> float | None:
        """One turn, then the session is looked at again."""
        if key.channel not in self.channels:
            return None
        try:
            await self.history.flush(key)
            turn = await self.store.turns.claim(key, out_of_band=True)
            if turn is not None and self.commands.is_quick(turn):
                await self.run_claimed_turn(turn)
                self.sessions.wake(key)
            elif turn is not None:
                await self.store.turns.release(turn)  # edited into a question: that has its turn in order
                self.dispatcher.wake(key)
        except (StoreUnavailable, StorageUnavailable) as error:
            self._blocked += 1
            delay_s = STORE_RETRY.delay(self._blocked, random=random.random())
            told = {"channel": key.channel, "error": str(error), "retry_in_s": round(delay_s, 1)}
            _log.error("session.blocked", **{**error.fields, **told})
            return delay_s
        self._blocked = 0
        return None
