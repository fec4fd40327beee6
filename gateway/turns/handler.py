"""
A turn from claim to commit: waiting messages become one turn, planned by its kind (``turn_kinds.py``). A
model answers it (``model_run.py``); answer, history and row states are committed together (``commit.py``), or
``failure_and_deferral.py`` ends it. Every claim ends, else it would block its session until the next start.
`TurnHandler.stop` only cancels work whose claim the queue has already ended.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import structlog

from agent_core.errors import StorageUnavailable
from agent_core.messages import SessionKey
from gateway.budget.metering import UsageMeter
from gateway.observability.redaction import quiet
from gateway.observability.traces import trace_turn
from gateway.store.background_job_rows import is_background
from gateway.store.shared import SHARED
from gateway.store.sql.amendments import AS_EDITED
from gateway.store.states import InboxState
from gateway.store.stores import InboxStore, LostTurn, StoppedTurn, StoreUnavailable, Turn
from gateway.store.wakeups import Wakeups
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commit import STORE_RETRY, count_turn
from gateway.turns.failure_and_deferral import Deferral, TurnFailure
from gateway.turns.history_writer import HistoryWriter
from gateway.turns.model_run import ModelRun
from gateway.turns.questions.questions import OWNER_QUESTIONS
from gateway.turns.turn_kinds import TurnKind

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Run:
    """A session that is being worked on; ``stopped`` are turns of it that shall be left, and why."""

    scope: anyio.CancelScope | None = None
    turn: str = ""
    over: anyio.Event = field(default_factory=anyio.Event)
    stopped: dict[str, str] = field(default_factory=dict)
    meter: UsageMeter | None = None
    waits: bool = False
    """The turn waits for a person; others of the session may have become due together with it."""


class Batching:
    """Decides how many waiting messages become one turn: at most ``merge``, by channel ``modes``."""

    def __init__(
        self, store: InboxStore, modes: Mapping[str, str], conversations: NewConversation, merge: int
    ) -> None:
        self._modes = {OWNER_QUESTIONS.channel: "merge", **modes}
        self._store = store
        self._conversations = conversations
        self._merge = merge

    async def limit(self, session: SessionKey) -> int:
        """Return the most messages of a session's next turn; 0: channel disabled. Raises StoreUnavailable."""
        mode = self._modes.get(await self._next_channel(session))
        if mode is None:
            return 0
        return 1 if mode == "each" or await self._conversations.is_pending(session) else self._merge

    async def _next_channel(self, session: SessionKey) -> str:
        """Return the channel of the next message; the owner's shared conversation has several."""
        if session != SHARED:
            return session.channel
        waiting = await self._store.rows(states=[InboxState.READY], session=session, limit=1000)
        return waiting[-1].message.channel if waiting else OWNER_QUESTIONS.channel


@dataclass(eq=False, kw_only=True)
class TurnHandler:
    """Works on one session until nothing is due; ``kinds`` by `InboundMessage.kind`."""

    history: HistoryWriter
    batching: Batching
    kinds: Mapping[str, TurnKind[Any]]
    model: ModelRun
    deferral: Deferral
    failure: TurnFailure
    wakeups: Wakeups

    def __post_init__(self) -> None:
        self._commit, self._clock = self.deferral.commit, self.deferral.clock
        self._store = self._commit.store
        self._running: dict[SessionKey, _Run] = {}
        self._blocked = 0
        self.wakeups.stopped.connect(self.stop)

    def stop(self, stopped: StoppedTurn) -> None:
        """
        Cancel a turn whose messages were withdrawn; return at once.

        Called after the commit that withdrew them, so the order of events does not matter: unbegun turns
        never begin, running ones end at their next await, committed ones are not named.
        """
        run = self._running.get(stopped.session)
        if run is None:
            return
        run.stopped[stopped.turn] = stopped.why
        if run.turn == stopped.turn and run.scope is not None:
            run.scope.cancel()

    def leave_background(self) -> None:
        """Release the background jobs, because the process is about to end; the next start resumes them."""
        for session, run in self._running.items():
            if is_background(session) and run.scope is not None:
                run.scope.cancel()

    async def handle_room_left(self, session: SessionKey, turn: str) -> None:
        """Wait until nobody works on this turn of the session."""
        run = self._running.get(session)
        if run is not None and run.turn == turn:
            await run.over.wait()

    async def run_session(self, key: SessionKey) -> float | None:
        """Answer one due turn; return the seconds until the next run (a refusing disk), else None."""
        due_s: float | None = None
        run = self._running[key] = _Run()
        try:
            merge = await self.batching.limit(key)
            if not merge:
                _log.warning("session.channel_off", channel=key.channel)
                return None
            await self.history.flush(key)
            turn = await self._store.turns.claim(key, merge=merge)
            if turn is None:
                # Woken too soon: by a clock that was put back, or beside a turn that runs.
                due_s = await self._store.turns.due_in(key)
            else:
                await self._run_claimed(turn, run)
                if run.waits or AS_EDITED in run.stopped.values():
                    due_s = 0.0  # wake-ups of one session are one
        except (StoreUnavailable, StorageUnavailable) as error:
            self._blocked += 1
            due_s = STORE_RETRY.delay(self._blocked, random=random.random())
            told = {"channel": key.channel, "error": str(error), "retry_in_s": round(due_s, 1)}
            _log.error("session.blocked", **{**error.fields, **told})
        else:
            self._blocked = 0
        finally:
            del self._running[key]
            run.over.set()
        return due_s

    async def run_claimed_turn(self, turn: Turn) -> None:
        """Run a claimed turn beside the one that may run in its session; whatever happens, the claim ends."""
        await self._run_claimed(turn, _Run())

    async def _run_claimed(self, turn: Turn, run: _Run) -> None:
        """Run a claimed turn; whatever happens, the claim ends here."""
        with trace_turn(turn):
            await self._run_to_end(turn, run)

    async def _run_to_end(self, turn: Turn, run: _Run) -> None:
        with self.model.use_turn_language(turn), anyio.CancelScope() as run.scope:
            run.turn = turn.id
            if turn.id in run.stopped:
                run.scope.cancel()
            try:
                await self._run_or_release(turn, run)
            except LostTurn:
                if turn.id not in run.stopped:
                    count_turn(turn.channel, "lost")
                    _log.warning("turn.lost", channel=turn.channel, turn=turn.id)
                    return
            except anyio.get_cancelled_exc_class():
                with (
                    anyio.move_on_after(5.0, shield=True),
                    suppress(LostTurn, StoreUnavailable),  # it was ended already, or will be recovered
                ):
                    await self._store.turns.release(turn)
                raise
            finally:
                if run.meter is not None:
                    await run.meter.end()
        if turn.id in run.stopped:
            self._commit.end_withdrawn(turn, run.stopped[turn.id])
            await self.model.hide(turn.place)

    async def _run_or_release(self, turn: Turn, run: _Run) -> None:
        try:
            await self._run_turn(turn, run)
        except StoreUnavailable:
            await self._commit.retry_until_stored(lambda: self._store.turns.release(turn))
            raise

    async def _run_turn(self, turn: Turn, run: _Run) -> None:
        kind = self.kinds[turn.head.message.kind]
        if await self.deferral.defer_to_place(turn) or await self.failure.refuse_if_unsafe(turn, kind):
            return
        with (
            structlog.contextvars.bound_contextvars(turn=turn.id, session=str(turn.session)),
            quiet(row.message.text for row in turn.rows),
        ):
            try:
                needed_model = await self._answer(turn, kind, run)
            except (LostTurn, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001 - every end of a turn is an answer or an apology
                await self.failure.end(turn, kind, run.meter, error)
                needed_model = True
            if needed_model:
                await self.model.hide(turn.place)

    async def _answer(self, turn: Turn, kind: TurnKind[Any], run: _Run) -> bool:
        """Answer a turn and commit that; whether a model was needed."""
        started = self._clock.monotonic()
        plan = await kind.plan(turn)
        if plan is None:
            return False
        run.meter = await self.model.begin(turn, plan.purpose)
        result = await self.model.run(turn, plan, run.meter)
        run.waits = result is None
        if result is not None:
            await kind.commit(turn, plan, result, run.meter)
            self._commit.note_answer(turn, result, self._clock.monotonic() - started)
        return True
