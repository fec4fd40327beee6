"""
The part of the composition root that answers: the kinds of turns, and what they share.

`gateway.app` calls it, and only `gateway.app`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_core.provenance import Trust
from agent_core.tools.availability import is_available
from agent_core.tools.effects import Effect
from agent_core.tools.policy import ConsentPort, Policy, Verdict
from gateway.app.agent import AgentParts, turn_limits
from gateway.app.background import command_runner
from gateway.app.channels import RoutingParts
from gateway.app.environment import Configured, Environment, Overrides
from gateway.app.supervision import SupervisionParts
from gateway.observability.redaction import Redactor
from gateway.queue.background import KIND
from gateway.queue.ports import Queue
from gateway.queue.shared import SHARED
from gateway.settings import Settings
from gateway.supervision.gateway import Proactive
from gateway.turns.approvals.drafts_and_quarantine import Approval, Approvals
from gateway.turns.approvals.grants import ToolGrants
from gateway.turns.approvals.open_questions import OpenQuestions
from gateway.turns.approvals.server_questions import ServerQuestions
from gateway.turns.approvals.tool_decisions import ToolDecisions
from gateway.turns.approvals.tool_questions import ToolQuestions
from gateway.turns.background_job import BackgroundTurns
from gateway.turns.budget_deferral import BudgetDeferral
from gateway.turns.chat import ChatTurns
from gateway.turns.commands.carry_on import CarryOn
from gateway.turns.commands.conversation import ConversationCommands
from gateway.turns.commands.handlers import CommandHandlers
from gateway.turns.commands.histories import Histories
from gateway.turns.commands.ingest_only import IngestOnly
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commands.service import CommandService
from gateway.turns.commands.take_back import TakeBack
from gateway.turns.commands.worded_answers import WordedAnswers
from gateway.turns.commit import TurnCommit
from gateway.turns.dispatcher import SessionDispatcher
from gateway.turns.failure import TurnFailure
from gateway.turns.handler import Batching, TurnHandler
from gateway.turns.heartbeat import HeartbeatTurns
from gateway.turns.kinds import TurnKind
from gateway.turns.model_choice import ModelChoice
from gateway.turns.model_run import ModelRun
from gateway.turns.out_of_band import CONCURRENCY, OutOfBandTurns
from gateway.turns.pacing import Pacing
from gateway.turns.scheduled_job import JobTurns
from gateway.turns.spoken_answers import SpokenAnswers
from gateway.turns.transcription import Transcription, TranscriptionLimits

if TYPE_CHECKING:
    from agent_core.voice.transcript import Transcribes

__all__ = ["TurnParts", "build_turns", "policy_of"]


@dataclass(frozen=True, slots=True)
class TurnParts:
    """The parts; see each one's own description."""

    handler: TurnHandler
    commands: CommandService
    answers: WordedAnswers
    approvals: Approvals
    out_of_band: OutOfBandTurns
    waiting: OpenQuestions
    transcription: Transcription | None


def build_turns(
    env: Environment,
    queue: Queue,
    agent: AgentParts,
    channels: Configured,
    *,
    proactive: Proactive,
    routing: RoutingParts,
    supervision: SupervisionParts,
) -> TurnParts:
    """What answers turns of every kind; for arguments see the parts."""
    settings, clock, access, wakeups, overrides = (
        env.settings,
        env.clock,
        env.access,
        env.wakeups,
        env.overrides,
    )
    store, questions, notifier = queue, queue.approvals, proactive.notifier
    history, acknowledgements = supervision.history, routing.acknowledgements
    waiting = OpenQuestions(wakeups)
    by_name = {name: channel for name, (channel, _) in channels.items()}
    modes = {name: mode for name, (_, mode) in channels.items()}
    commit = TurnCommit(store=store, channels=by_name, acknowledgements=acknowledgements)
    heartbeat = settings.agents.heartbeat
    zone = heartbeat.schedule().zone
    budget = BudgetDeferral(
        store=store,
        commit=commit,
        spending=agent.metering,
        access=access,
        clock=clock,
    )
    approvals = Approvals(
        store=store,
        notifier=notifier,
        access=access,
        wakeups=wakeups,
        calls=ToolDecisions(questions, access, waiting),
        held=_reply_approval(settings, overrides),
    )
    grants = ToolGrants(queue.grants, clock, zone=zone)
    choice = ModelChoice(queue.state, agent.models, agent.pools)
    histories = Histories(agent.memory, history.flush)
    conversations = NewConversation(store, histories, env.wakeups, shares_sessions=env.is_worker)
    commands = CommandService(
        commit=commit,
        handlers=CommandHandlers(
            store=store,
            memory=agent.memory,
            conversations=conversations,
            access=access,
            approvals=approvals,
            status=supervision.status.read,
            clock=clock,
            files=agent.workspace_files,
            jobs=proactive.background_jobs,
            schedule=proactive.jobs,
            owner_addresses=proactive.owner,
            grants=grants,
            models=choice,
            carry_on=CarryOn(store, histories, env.conversations, clock),
            take_back=TakeBack(store, histories, access, by_name),
            conversation=ConversationCommands(histories, agent.search, agent.attachments.save),
        ),
        approvals=approvals,
        ingest_only=IngestOnly(agent.memory, access, history.flush),
        access=access,
        channels=by_name,
    )
    chat = ChatTurns(
        commands=commands,
        conversations=conversations,
        commit=commit,
        budget=budget,
        access=access,
        target=proactive.owner_contact,
        channels=by_name,
        approvals=approvals,
        spoken=SpokenAnswers(
            settings.voice.speak, access=access, channels=by_name, redactor=Redactor(settings.secrets())
        ),
    )
    check_ins = HeartbeatTurns(
        commit=commit,
        plans=queue.jobs,
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
        plans=queue.jobs,
        commit=commit,
        budget=budget,
        conversations=conversations,
        notifier=notifier,
        access=access,
        channels=by_name,
        told_time=lambda at: f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}",
        approvals=approvals,
        clock=clock,
    )
    in_background = BackgroundTurns(
        commit=commit,
        budget=budget,
        notifier=notifier,
        access=access,
        channels=by_name,
        approvals=approvals,
        conversations=env.conversations,
        allowed=lambda session: is_available(settings.tools.jobs.allow, session),
        steps=store.turns,
        commands=command_runner(agent.shell, settings.tools.jobs.command_minutes * 60),
        left=lambda session, turn: handler.left(session, turn),  # noqa: PLW0108 - it is made below
        limits=replace(
            turn_limits(settings),
            steps=settings.tools.jobs.limits.steps,
            seconds=settings.tools.jobs.limits.seconds,
            tokens=settings.tools.jobs.limits.tokens,
        ),
        clock=clock,
    )
    kinds: dict[str, TurnKind[Any]] = {
        "message": chat,
        "reaction": chat,
        "tick": check_ins,
        "job": jobs,
        KIND: in_background,
    }
    narrow: Callable[[ConsentPort], ConsentPort] = lambda consent: consent  # noqa: E731 - replaced below
    if env.is_worker:
        from gateway.turns.on_worker import ConsentOnWorker, WorkerTurns  # noqa: PLC0415 - only in a worker

        narrow = ConsentOnWorker
        kinds = {
            "message": WorkerTurns(
                chat,
                commands=commands,
                drafts=approvals,
                conversations=conversations,
                target=proactive.owner_contact,
            )
        }
    consent = ToolQuestions(
        store=questions,
        commit=commit,
        channels=by_name,
        notifier=notifier,
        held=approvals.holds,
        clock=clock,
        wait_s=settings.tools.approval_timeout_minutes * 60,
        access=access,
        grants=grants,
        keep=lambda name, content: agent.attachments.save(name, "text/plain", content),
        policy=policy_of(settings),
        zone=zone,
    )
    transcription = _transcription(env, queue, agent)
    model = ModelRun(
        store=store,
        agent=agent.agent,
        channels=by_name,
        extra_tools=lambda session, messages: [
            *agent.tools(session),
            *proactive.tools(session, messages),
        ],
        tools_settled=agent.shell.settled,
        models=choice,
        budget=budget,
        consent=consent,
        narrow=narrow,
        servers=ServerQuestions(
            store=questions,
            commit=commit,
            channels=by_name,
            questions=consent,
            held=approvals.holds,
            waiting=waiting,
            clock=clock,
            zone=zone,
        ),
        access=access,
        acknowledgements=acknowledgements,
        clock=clock,
        transcription=transcription,
        zone=zone,
    )
    handler = TurnHandler(
        store=store,
        history=history,
        batching=Batching(store.inbox, modes, conversations, overrides.policy.merge),
        kinds=kinds,
        model=model,
        commit=commit,
        failure=TurnFailure(
            commit=commit,
            pacing=Pacing(store=store, commit=commit, clock=clock),
            suspects=routing.suspects,
            policy=overrides.policy,
        ),
        clock=clock,
        wakeups=wakeups,
    )
    out_of_band = OutOfBandTurns(
        SessionDispatcher(
            concurrency=CONCURRENCY, refill=store.turns.open_sessions, comes_first=access.comes_first
        ),
        store=store,
        history=history,
        commands=commands,
        channels=frozenset({SHARED.channel, *by_name}),
        run_claimed=handler.run_claimed,
        dispatcher=supervision.dispatcher,
    )
    answers = WordedAnswers(
        questions,
        store.outbox,
        calls=approvals.calls,
        access=access,
        email_style=frozenset(name for name, channel in by_name.items() if channel.capabilities.email_style),
    )
    return TurnParts(handler, commands, answers, approvals, out_of_band, waiting, transcription)


def _transcription(env: Environment, queue: Queue, agent: AgentParts) -> Transcription | None:
    """What makes text of voice messages, if that is wished for; nothing of it is loaded yet."""
    wished = env.settings.voice.transcribe
    if wished is None:
        return None

    def make() -> Transcribes:
        from agent_core.voice.transcribers import transcriber  # noqa: PLC0415 - with the first voice message

        return transcriber(wished, env.settings.llm, env.clock, litellm=agent.models.litellm)

    limits = TranscriptionLimits(
        wished.max_seconds,
        int(wished.max_mb * 1_000_000),
        env.overrides.policy.outage_budget_s,
        lambda: wished.price(env.settings.llm.providers),
        wished.longest_s(),
    )
    return Transcription(queue, agent.attachments, make=make, limits=limits)


def _reply_approval(settings: Settings, overrides: Overrides) -> dict[str, Approval]:
    """Whose answers are held, by channel."""
    asked: dict[str, Approval] = {
        name: getattr(config, "reply_approval", "none")
        for name, config in settings.channels.enabled().items()
    }
    return asked | dict(overrides.approval)


def policy_of(settings: Settings) -> Policy:
    """What the settings change in the table of `agent_core.tools.policy`."""
    return {
        Effect(name): {
            trust: Verdict(verdict)
            for trust, verdict in zip(Trust, (row.owner, row.known, row.untrusted), strict=True)
            if verdict is not None
        }
        for name, row in settings.tools.policy.items()
    }
