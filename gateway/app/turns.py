"""
The part of the composition root that answers: the kinds of turns, and what they share.

`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_core.ports import Clock
from channels.base import Channel
from gateway.app.agent import AgentParts, turn_limits
from gateway.budget.metering import Metering
from gateway.proactive.owner_contact import OwnerContact
from gateway.proactive.owner_notifier import OwnerNotifier
from gateway.queue.ports import ApprovalStore, JobStore, WorkStore
from gateway.queue.wakeups import Wakeups
from gateway.routing.access import Access
from gateway.routing.acknowledgements import Acknowledgements
from gateway.routing.crash_isolation import CrashIsolation
from gateway.settings import Settings
from gateway.turns.approvals.review import Approval, Approvals
from gateway.turns.approvals.tool_decisions import ToolDecisions
from gateway.turns.approvals.tool_questions import ToolQuestions
from gateway.turns.batching import Batching
from gateway.turns.budget_deferral import BudgetDeferral
from gateway.turns.chat import ChatTurns
from gateway.turns.commands.handlers import CommandHandlers
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commands.read_only import IngestOnly
from gateway.turns.commands.service import CommandService
from gateway.turns.commit import TurnCommit
from gateway.turns.failure import TurnFailure
from gateway.turns.failure_policy import TurnPolicy
from gateway.turns.handler import TurnHandler
from gateway.turns.heartbeat import HeartbeatTurns
from gateway.turns.history_writer import HistoryWriter
from gateway.turns.model_run import ExtraTools, ModelRun
from gateway.turns.pacing import Pacing
from gateway.turns.scheduled_job import JobTurns

__all__ = ["TurnParts", "build_turns"]


@dataclass(frozen=True, slots=True)
class TurnParts:
    """The parts; see each one's own description."""

    handler: TurnHandler
    commands: CommandService
    approvals: Approvals


def build_turns(
    settings: Settings,
    *,
    store: WorkStore,
    plans: JobStore,
    questions: ApprovalStore,
    mind: AgentParts,
    commit: TurnCommit,
    history: HistoryWriter,
    access: Access,
    channels: Mapping[str, Channel],
    modes: Mapping[str, str],
    target: OwnerContact,
    notifier: OwnerNotifier,
    approval: Mapping[str, Approval],
    spending: Metering,
    acknowledgements: Acknowledgements,
    suspects: CrashIsolation,
    proactive_tools: ExtraTools,
    status: Callable[[], Awaitable[Mapping[str, Any]]],
    policy: TurnPolicy,
    clock: Clock,
    wakeups: Wakeups,
) -> TurnParts:
    """Put together what answers turns of every kind; for arguments see the parts."""
    heartbeat = settings.agents.heartbeat
    zone = heartbeat.schedule().zone
    budget = BudgetDeferral(
        store=store,
        commit=commit,
        spending=spending,
        access=access,
        clock=clock,
    )
    approvals = Approvals(
        store=store,
        notifier=notifier,
        access=access,
        wakeups=wakeups,
        calls=ToolDecisions(questions, access),
        held=approval,
    )
    conversations = NewConversation(store, mind.memory, flush=history.flush)
    commands = CommandService(
        chat=ChatTurns(
            commit=commit,
            budget=budget,
            access=access,
            target=target,
            channels=channels,
            approvals=approvals,
        ),
        commit=commit,
        answers=CommandHandlers(
            store=store,
            memory=mind.memory,
            conversations=conversations,
            access=access,
            approvals=approvals,
            status=status,
        ),
        conversations=conversations,
        approvals=approvals,
        filing=IngestOnly(mind.memory, access, history.flush),
        access=access,
        channels=channels,
    )
    check_ins = HeartbeatTurns(
        commit=commit,
        plans=plans,
        notifier=notifier,
        config=heartbeat,
        limits=replace(
            turn_limits(settings),
            steps=heartbeat.limits.steps,
            seconds=heartbeat.limits.seconds,
            tokens=heartbeat.limits.tokens,
        ),
        clock=clock,
    )
    jobs = JobTurns(
        store=store,
        plans=plans,
        commit=commit,
        budget=budget,
        conversations=conversations,
        notifier=notifier,
        access=access,
        channels=channels,
        told_time=lambda at: f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}",
        approvals=approvals,
        clock=clock,
    )
    model = ModelRun(
        store=store,
        agent=mind.agent,
        channels=channels,
        extra_tools=lambda session, messages: [
            *mind.tools(session),
            *proactive_tools(session, messages),
        ],
        pools=mind.pools,
        budget=budget,
        consent=ToolQuestions(
            store=questions,
            commit=commit,
            channels=channels,
            notifier=notifier,
            held=approvals.holds,
            clock=clock,
            wait_s=settings.tools.approval_timeout_minutes * 60,
            zone=zone,
        ),
        access=access,
        acknowledgements=acknowledgements,
        zone=zone,
    )
    handler = TurnHandler(
        store=store,
        history=history,
        batching=Batching(modes, conversations, policy.merge),
        kinds={"message": commands, "reaction": commands, "tick": check_ins, "job": jobs},
        model=model,
        commit=commit,
        failure=TurnFailure(
            commit=commit,
            pacing=Pacing(store=store, commit=commit, clock=clock),
            suspects=suspects,
            policy=policy,
        ),
        clock=clock,
        wakeups=wakeups,
    )
    return TurnParts(handler, commands, approvals)
