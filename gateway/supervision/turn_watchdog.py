"""
The turn watchdog: notices turns that are stalled although the event loop runs. It wraps runs of sessions and
of commands beside them, and checks every `CHECK_EVERY_S`: a run older than the configured limits allow, or a
command's older than `COMMAND_LIMIT_S`, is a defect; if something is due, a place free and no run began,
sessions are woken, and after `IDLE_S` the dispatcher counts as stalled. Time with a refusing disk or a
stopped process does not count. Then `/livez` answers 503, and the service manager's watchdog restarts the
process.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import anyio
import structlog

from agent_core.messages import SessionKey
from agent_core.ports import Clock
from gateway.store.background_job_rows import is_background
from gateway.store.stores import StoreUnavailable
from gateway.store.wakeups import RunSession
from gateway.turns.dispatcher import SessionDispatcher

CHECK_EVERY_S = 30.0
IDLE_S = 300.0
COMMAND_LIMIT_S = 300.0
"""How long what needs no model may take: it waits for the disk at most."""
_log = structlog.get_logger(__name__)


def allowed_seconds(longest_turn_s: float) -> float:
    """Return the most seconds of a session's run if the longest legal turn takes ``longest_turn_s``."""
    return 2 * longest_turn_s + 300


@dataclass(slots=True, eq=False)
class _Run:
    began_at: float
    allowed_s: float
    what: str
    counted_s: float = 0.0


@dataclass(eq=False)
class TurnWatchdog:
    """
    Watches the turns of one dispatcher.

    ``open_sessions``: `TurnStore.open_sessions`; ``allowed_s`` limits a session's run, ``background_s`` a
    background job's; ``blocked``: the disk refuses writes.
    """

    dispatcher: SessionDispatcher
    open_sessions: Callable[[], Awaitable[Sequence[tuple[SessionKey, float]]]]
    _: KW_ONLY
    allowed_s: float
    background_s: float | None = None
    clock: Clock
    blocked: Callable[[], bool] = lambda: False
    look_every_s: float = CHECK_EVERY_S

    def __post_init__(self) -> None:
        self._background_s = self.allowed_s if self.background_s is None else self.background_s
        self._runs: set[_Run] = set()
        self._begun = 0
        self._begun_before = 0
        self._idle_since: float | None = None
        self._looked_at: float | None = None
        self._reason: str | None = None
        self._stopping = False

    def guard(self, run_session: RunSession) -> RunSession:
        """``run_session``, watched."""

        async def run(session: SessionKey) -> float | None:
            self._begun += 1
            return await watched(session)

        watched = self._watched(run_session, self.allowed_s, "turn")
        return run

    def watch(self, run_session: RunSession) -> RunSession:
        """``run_session`` for out-of-band turns, watched."""
        return self._watched(run_session, min(COMMAND_LIMIT_S, self.allowed_s), "command")

    def _watched(self, run_session: RunSession, allowed_s: float, what: str) -> RunSession:
        async def run(session: SessionKey) -> float | None:
            longest_s = self._background_s if what == "turn" and is_background(session) else allowed_s
            mine = _Run(self.clock.monotonic(), longest_s, what)
            self._runs.add(mine)
            try:
                return await run_session(session)
            finally:
                self._runs.discard(mine)

        return run

    def stop(self) -> None:
        """Expect no more turns to start; those that run must still end."""
        self._stopping = True

    @property
    def is_blocked(self) -> bool:
        """Return True if the disk accepts no writes."""
        return self.blocked()

    @property
    def oldest_s(self) -> float:
        """Return the seconds of the oldest run without those of a blocked disk; 0 without a run."""
        return max((run.counted_s for run in self._runs), default=0.0)

    def reason(self) -> str | None:
        """Return why turns are stalled; None while they are not."""
        if self._looked_at is not None and self.clock.monotonic() - self._looked_at > 5 * self.look_every_s:
            return "the turn watchdog has stopped"
        return self._reason

    async def run(self) -> None:
        """Look again and again, until cancelled. Raises nothing but cancellation."""
        while True:
            try:
                await self.check_once()
            except Exception as error:  # noqa: BLE001 - the watch must outlive what it watches
                _log.warning("watchdog.check_failed", error=type(error).__name__)
            await anyio.sleep(self.look_every_s)

    async def check_once(self) -> None:
        """One look."""
        now = self.clock.monotonic()
        since_s = 0.0 if self._looked_at is None else min(now - self._looked_at, 2 * self.look_every_s)
        self._looked_at = now
        blocked = self.blocked()
        if not blocked:
            for run in self._runs:
                run.counted_s += min(since_s, now - run.began_at)
        await self._look_for_idleness(now, blocked=blocked)
        reason = self._verdict(now)
        if reason != self._reason:
            _log.error("watchdog.turns_stalled", reason=reason) if reason else _log.info(
                "watchdog.turns_resumed"
            )
        self._reason = reason

    async def _look_for_idleness(self, now: float, *, blocked: bool) -> None:
        moved, self._begun_before = self._begun != self._begun_before, self._begun
        if moved or blocked or self._stopping or self.dispatcher.full():
            self._idle_since = None
            return
        try:
            open_now = await self.open_sessions()
        except StoreUnavailable:
            return
        running = set(self.dispatcher.running())
        due = [session for session, due_s in open_now if due_s <= 0 and session not in running]
        if not due:
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        for session in due[:100]:
            self.dispatcher.wake(session)

    def _verdict(self, now: float) -> str | None:
        late = [run for run in self._runs if run.counted_s > run.allowed_s]
        if late:
            run = max(late, key=lambda one: one.counted_s - one.allowed_s)
            took, allowed = f"{run.counted_s:.0f} s", f"{run.allowed_s:.0f} s"
            return f"a {run.what} has been running for {took}; {allowed} are allowed"
        if self._idle_since is not None and now - self._idle_since >= IDLE_S:
            return f"messages have been due for {now - self._idle_since:.0f} s, and no turn begins"
        return None


class ProcessWatchdog:
    """
    Ends a process whose event loop hangs without a service manager, as in a container.

    After ``limit_s`` without a sign (None: never) its thread writes all stacks to stderr and exits with code
    1.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s

    def note_progress(self) -> None:
        """Note that the loop runs."""
        if self._limit_s is not None:
            faulthandler.dump_traceback_later(self._limit_s, exit=True)

    def aclose(self) -> None:
        """Stop watching."""
        if self._limit_s is not None:
            faulthandler.cancel_dump_traceback_later()
