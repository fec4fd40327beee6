"""
Composition root: runs sessions and channels, and reports their state. `gateway.app` calls it, and only
`gateway.app`.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from agent_core.messages import SessionKey
from agent_core.tools.person_port import MAX_WAIT_S
from gateway.app.agent import AgentParts
from gateway.app.environment import Environment
from gateway.app.voice import SpeechParts
from gateway.routing.access import Access, Role
from gateway.store.lease import LeaseKeeper
from gateway.store.shared import SHARED
from gateway.store.stores import Queue
from gateway.supervision.gateway import Proactive, SupervisionParts
from gateway.supervision.status_report import StatusReport
from gateway.supervision.supervisor import Supervisor
from gateway.supervision.turn_watchdog import CHECK_EVERY_S, TurnWatchdog, allowed_seconds
from gateway.turns.dispatcher import LoadReadySessions, SessionDispatcher
from gateway.turns.history_writer import HistoryWriter
from gateway.turns.post_turn import PostTurn


def build_supervision(
    env: Environment,
    queue: Queue,
    agent: AgentParts,
    proactive: Proactive,
    *,
    speech: SpeechParts,
    lease: LeaseKeeper | None,
) -> SupervisionParts:
    """Build what runs sessions and channels, and reports their state."""
    clock, wakeups = env.clock, env.wakeups
    open_sessions = queue.turns.open_sessions
    dispatcher = SessionDispatcher(
        concurrency=env.settings.gateway.max_concurrent_turns,
        refill=open_sessions,
        comes_first=env.access.is_owner_work,
        is_owner=partial(_is_owner, env.access),
    )
    # In tables lines are there with the answer; the writer has what it finds in the journal at the start.
    history = HistoryWriter(queue, agent.memory, None if agent.in_tables else wakeups)
    post_turn = PostTurn(
        manager=agent.manager,
        history=history,
        search=agent.search,
        spending=agent.metering,
        clock=clock,
        wakeups=wakeups,
    )
    supervisor = Supervisor(clock, on_change=wakeups.channel.fire)
    watchdog = _watchdog(env, dispatcher, queue, open_sessions)
    status = StatusReport(
        store=queue,
        dispatcher=dispatcher,
        supervisor=supervisor,
        watchdog=watchdog,
        clock=clock,
        sections=partial(_states, agent, post_turn, proactive, speech),
        lease=lease,
    )
    return SupervisionParts(dispatcher, history, post_turn, supervisor, watchdog, status)


async def _states(
    agent: AgentParts, post_turn: PostTurn, proactive: Proactive, speech: SpeechParts
) -> dict[str, Any]:
    """Read the states of the parts. Raises StoreUnavailable."""
    return {
        "models": {
            name: [asdict(member) for member in pool.state()] for name, pool in agent.models.pools.items()
        },
        **post_turn.state(),
        **await proactive.state(),
        "budget": await proactive.budget.state(),
        "sessions": len(await agent.memory.sessions()),
        **agent.shell.state(),
        **(agent.mcp.state() if agent.mcp is not None else {}),
        **agent.attachments.state(),
        **speech.state(),
    }


def _watchdog(
    env: Environment, dispatcher: SessionDispatcher, queue: Queue, open_sessions: LoadReadySessions
) -> TurnWatchdog:
    """The watch over the turns; none may take longer than the longest limit of its kind in the settings."""
    settings, allowed_s = env.settings, env.overrides.turn_allowed_s
    store = queue
    jobs = settings.tools.jobs
    longest_s = max(settings.llm.limits.seconds, settings.agents.heartbeat.limits.seconds)
    background_s = max(longest_s, jobs.limits.seconds, jobs.command_minutes * 60)
    asking_s = MAX_WAIT_S if settings.mcp.servers else 0.0  # a server may ask during a call
    listens = settings.voice.transcribe
    beside_s = asking_s + (listens.longest_s() if listens is not None else 0.0)
    return TurnWatchdog(
        dispatcher,
        open_sessions,
        allowed_s=allowed_seconds(longest_s) + beside_s if allowed_s is None else allowed_s,
        background_s=allowed_seconds(background_s) + asking_s if allowed_s is None else allowed_s,
        look_every_s=CHECK_EVERY_S if allowed_s is None else allowed_s / 2,
        clock=env.clock,
        blocked=lambda: store.maintenance.refusing or store.maintenance.stalled_s > 30.0,
    )


def _is_owner(access: Access, session: SessionKey, person: str) -> bool:
    """Return True if a person is the owner in a session; the shared one is always the owner's."""
    if session.channel == SHARED.channel:
        return True
    return access.role(session.channel, person, verified=True) is Role.OWNER
