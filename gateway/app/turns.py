"""Composition root: the kinds of turns, and what they share; `gateway.app` alone calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_core.agent import TurnLimits
from agent_core.language import gettext_noop, show_time
from agent_core.messages import InboundMessage, SessionKey
from agent_core.models import Session
from agent_core.ports import ToolPort
from agent_core.storage.layout import Layout
from agent_core.tools.effects import Effect
from agent_core.tools.policy import DEFAULT_POLICY, Policy, PolicyVerdict, is_available
from channels.base import Channel, SupportsRoomNames
from channels.heartbeat.config import TickLimits
from gateway.app.agent import AgentParts, turn_limits
from gateway.app.background_start import command_runner
from gateway.app.channel_building import RoutingParts
from gateway.app.environment import Configured, Environment, Overrides
from gateway.observability.redaction import Redactor
from gateway.operations.chat_operations import ChatOperations
from gateway.operations.job_operations import schedule_context
from gateway.operations.operation_context import OperationContext, UsageSources
from gateway.operations.operation_registry import IN_CHATS
from gateway.operations.operation_views import session_key_of
from gateway.operations.privacy.own_data import OwnErasure, OwnExport
from gateway.routing.links import PeopleLinks
from gateway.settings import Settings
from gateway.settings.tool_settings import JobLimits
from gateway.store.background_job_rows import KIND
from gateway.store.place import place_of_queue
from gateway.store.shared import SHARED
from gateway.store.stores import Queue
from gateway.supervision.gateway import Proactive, SupervisionParts
from gateway.turns.background_job_turn import BackgroundTurns
from gateway.turns.chat_turn import ChatTurns
from gateway.turns.commands.chat_commands import CommandHandlers
from gateway.turns.commands.command_service import CommandService, IngestOnly
from gateway.turns.commands.continue_command import ContinueCommand
from gateway.turns.commands.conversation_commands import ConversationCommands, Histories
from gateway.turns.commands.link_command import LinkCommand
from gateway.turns.commands.model_command import ModelCommand
from gateway.turns.commands.new_conversation import NewConversation
from gateway.turns.commands.persona_command import PersonaCommand
from gateway.turns.commands.reminder_command import ReminderCommand
from gateway.turns.commands.retry_and_undo import RetryAndUndo
from gateway.turns.commands.trust_command import TrustCommand
from gateway.turns.commands.worded_answers import WordedAnswers
from gateway.turns.commit import TurnCommit
from gateway.turns.dispatcher import SessionDispatcher
from gateway.turns.failure_and_deferral import Deferral, TurnFailure
from gateway.turns.handler import Batching, TurnHandler
from gateway.turns.heartbeat_turn import HeartbeatTurns
from gateway.turns.model_choice import ModelChoice
from gateway.turns.model_run import ModelRun
from gateway.turns.out_of_band import CONCURRENCY, OutOfBandTurns
from gateway.turns.questions.questions import Questions
from gateway.turns.questions.review_questions import Approval, ReviewQuestions
from gateway.turns.questions.server_questions import OpenQuestions, ServerQuestions
from gateway.turns.questions.tool_grants import ToolGrants
from gateway.turns.questions.tool_questions import ToolQuestions
from gateway.turns.scheduled_job_turn import JobTurns
from gateway.turns.spoken_answers import SpokenAnswers
from gateway.turns.transcription import Transcription, TranscriptionLimits
from gateway.turns.turn_kinds import TurnKind

if TYPE_CHECKING:
    from agent_core.media.transcript import TranscriptionPort


@dataclass(frozen=True, slots=True)
class TurnParts:
    """The result of `build_turns`; each field has its own description."""

    handler: TurnHandler
    commands: CommandService
    answers: WordedAnswers
    approvals: ReviewQuestions
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
    """Build what answers turns of every kind."""
    shared = _Shared(
        env, queue, agent, channels, proactive=proactive, routing=routing, supervision=supervision
    )
    modes = {name: mode for name, (_, mode) in channels.items()}
    commands = _commands(shared)
    transcription = _transcription(env, queue, agent)
    answers = WordedAnswers(
        questions=shared.approvals.questions,
        email_style=shared.email_style,
    )
    handler = TurnHandler(
        history=supervision.history,
        batching=Batching(queue.inbox, modes, shared.conversations, env.overrides.policy.merge),
        kinds=_kinds(shared, commands, left=lambda session, turn: handler.handle_room_left(session, turn)),  # noqa: PLW0108
        model=_model_run(shared, transcription, answers),
        deferral=shared.deferral,
        failure=TurnFailure(
            deferral=shared.deferral,
            suspects=routing.suspects,
            policy=env.overrides.policy,
            access=env.access,
        ),
        wakeups=env.wakeups,
    )
    out_of_band = OutOfBandTurns(
        SessionDispatcher(
            concurrency=CONCURRENCY, refill=queue.turns.open_sessions, comes_first=env.access.is_owner_work
        ),
        store=queue,
        history=supervision.history,
        commands=commands,
        channels=frozenset({SHARED.channel, *shared.by_name}),
        run_claimed_turn=handler.run_claimed_turn,
        dispatcher=supervision.dispatcher,
    )
    return TurnParts(handler, commands, answers, shared.approvals, out_of_band, shared.waiting, transcription)


class _Shared:
    """Parts that were built before and are shared by the functions below."""

    def __init__(
        self,
        env: Environment,
        queue: Queue,
        agent: AgentParts,
        channels: Configured,
        *,
        proactive: Proactive,
        routing: RoutingParts,
        supervision: SupervisionParts,
    ) -> None:
        self.env, self.queue, self.agent = env, queue, agent
        self.proactive, self.routing, self.supervision = proactive, routing, supervision
        self.by_name = {name: channel for name, (channel, _) in channels.items()}
        self.email_style = frozenset(
            name for name, channel in self.by_name.items() if channel.capabilities.email_style
        )
        self.zone = env.settings.agents.heartbeat.schedule().zone
        self.waiting = OpenQuestions(env.wakeups)
        self.commit = TurnCommit(
            store=queue, channels=self.by_name, acknowledgements=routing.acknowledgements
        )
        self.deferral = Deferral(commit=self.commit, limits=agent.metering.limits, clock=env.clock)
        self.grants = ToolGrants(queue.grants, env.clock)
        self.approvals = ReviewQuestions(
            questions=Questions(store=queue, access=env.access, now=self.grants.now, waiting=self.waiting),
            notifier=proactive.notifier,
            wakeups=env.wakeups,
            held=_reply_approval(env.settings, env.overrides),
        )
        self.choice = ModelChoice(queue.state, agent.models, agent.pools)
        self.histories = Histories(agent.memory, supervision.history.flush)
        self.conversations = NewConversation(queue, self.histories)


def _commands(shared: _Shared) -> CommandService:
    env, queue, agent, proactive = shared.env, shared.queue, shared.agent, shared.proactive
    access, histories, by_name = env.access, shared.histories, shared.by_name
    conversation = ConversationCommands(histories, agent.search, agent.attachments.save)
    take_back = RetryAndUndo(queue, histories, access, by_name)
    limits = env.settings.llm.budget.limits(env.settings.agents.heartbeat.timezone)
    operations = OperationContext(
        queue,
        agent.memory,
        access=access,
        planned=schedule_context(proactive, env.conversations),
        costs=UsageSources(queue.usage, limits, env.clock),
        files=agent.workspace_files,
        background=proactive.background_jobs,
        console=env.console,
        now=shared.grants.now,
    )
    own_export, own_erasure = _own_data(shared, conversation)
    linking = LinkCommand(
        links=PeopleLinks(queue.state, access, env.clock),
        access=access,
        outbox=queue.outbox,
        notifier=proactive.notifier,
        alerts=proactive.owner_alerts,
    )
    handlers = CommandHandlers(
        store=queue,
        memory=agent.memory,
        conversations=shared.conversations,
        access=access,
        questions=shared.approvals.questions,
        status=shared.supervision.status.read,
        others={
            "model": ModelCommand(shared.choice).answer,
            "remind": ReminderCommand(proactive.jobs, queue.turns, proactive.owner).answer,
            "trust": TrustCommand(queue, env.clock, agent.workspace_files).answer,
            "search": conversation.search,
            "export": own_export.answer,
            "forget": own_erasure.answer,
            "link": linking.link,
            "unlink": linking.unlink,
            "continue": ContinueCommand(queue, histories, env.conversations, env.clock).answer,
            "retry": take_back.retry,
            "undo": take_back.undo,
            "persona": PersonaCommand(agent.persona).answer,
            **dict.fromkeys(IN_CHATS, ChatOperations(operations, proactive.owner).answer),
        },
    )
    return CommandService(
        commit=shared.commit,
        handlers=handlers,
        approvals=shared.approvals,
        ingest_only=IngestOnly(agent.memory, access, shared.supervision.history.flush, shared.queue),
        access=access,
        email_style=shared.email_style,
    )


def _own_data(shared: _Shared, conversation: ConversationCommands) -> tuple[OwnExport, OwnErasure]:
    """Build what people ask for about themselves; see `gateway.operations.privacy`."""
    env, settings, home = shared.env, shared.env.settings, shared.env.home
    place = place_of_queue(home.database, settings.store_url)

    def export(addresses: frozenset[str], target: Path) -> None:
        from gateway.operations.privacy.export import export_person  # noqa: PLC0415 - hardly ever needed
        from gateway.operations.privacy.inventory import people  # noqa: PLC0415 - as above

        person = people(addresses, [alias.address for alias in settings.owner.aliases])
        layout, storage = (
            Layout(home.root, home.path(settings.agents.workspace)),
            settings.attachments.storage(home.root),
        )
        export_person(layout, place, person, target, now=env.clock.now(), storage=storage)

    def can_send(name: str) -> bool:
        channel = shared.by_name.get(name)
        return channel is not None and channel.capabilities.attachments

    own_export = OwnExport(
        home=home.root,
        access=env.access,
        keep=shared.agent.attachments.save,
        conversation=conversation.export,
        export=export,
        can_send=can_send,
        most_bytes=shared.agent.attachments.max_file_bytes,
    )
    own_erasure = OwnErasure(
        home=home.root if settings.store_url is None else None,
        state=shared.queue.state,
        access=env.access,
        report=env.wakeups.alert.fire,
        can_send=can_send,
        clock=env.clock,
        zone=shared.zone,
    )
    return own_export, own_erasure


def _kinds(
    shared: _Shared, commands: CommandService, *, left: Callable[[SessionKey, str], Awaitable[None]]
) -> dict[str, TurnKind[Any]]:
    """Build the handler of each kind of turn. ``left`` waits until nobody works on a turn."""
    env, settings = shared.env, shared.env.settings
    commit, notifier, by_name = shared.commit, shared.proactive.notifier, shared.by_name
    spoken, speak, redactor = None, settings.voice.speak, Redactor(settings.secrets())
    if speak is not None:
        spoken = SpokenAnswers(speak, access=env.access, channels=by_name, redactor=redactor)
    chat = ChatTurns(
        commands=commands,
        conversations=shared.conversations,
        turn_commit=commit,
        deferral=shared.deferral,
        target=shared.proactive.owner_contact,
        approvals=shared.approvals,
        spoken=spoken,
    )
    check_ins = HeartbeatTurns(
        turn_commit=commit,
        plans=shared.queue.jobs,
        notifier=notifier,
        config=settings.agents.heartbeat,
        limits=_limited(settings, settings.agents.heartbeat.limits),
        clock=env.clock,
    )
    jobs = JobTurns(
        turn_commit=commit,
        deferral=shared.deferral,
        conversations=shared.conversations,
        notifier=notifier,
        access=env.access,
        told_time=lambda at: show_time(at.astimezone(shared.zone), gettext_noop("%a %Y-%m-%d %H:%M %Z")),
        approvals=shared.approvals,
    )
    in_background = BackgroundTurns(
        turn_commit=commit,
        deferral=shared.deferral,
        approvals=shared.approvals,
        conversations=env.conversations,
        allowed=lambda session: is_available(settings.tools.jobs.allow, session),
        commands=command_runner(shared.agent.shell, settings.tools.jobs.command_minutes * 60),
        left=left,
        limits=_limited(settings, settings.tools.jobs.limits),
    )
    return {"message": chat, "reaction": chat, "tick": check_ins, "job": jobs, KIND: in_background}


def _limited(settings: Settings, own: TickLimits | JobLimits) -> TurnLimits:
    """The limits of a turn where a kind has its own."""
    return replace(turn_limits(settings), steps=own.steps, seconds=own.seconds, tokens=own.tokens)


def _model_run(shared: _Shared, transcription: Transcription | None, answers: WordedAnswers) -> ModelRun:
    """Build the run of a model with tools, and the questions about its calls."""
    env, agent, proactive = shared.env, shared.agent, shared.proactive
    consent = ToolQuestions(
        commit=shared.commit,
        reviews=shared.approvals,
        clock=env.clock,
        wait_s=env.settings.tools.approval_timeout_minutes * 60,
        grants=shared.grants,
        keep=lambda name, content: agent.attachments.save(name, "text/plain", content),
        policy=policy_of(env.settings),
        zone=shared.zone,
    )

    async def tools(session: Session, messages: Sequence[InboundMessage]) -> list[ToolPort]:
        await agent.shell.wait_for_test(session)
        room_name = partial(_room_name, shared.by_name)
        return [*agent.tools(session, room_name), *proactive.tools(session, messages)]

    return ModelRun(
        commit=shared.commit,
        agent=agent.agent,
        extra_tools=tools,
        models=shared.choice,
        metering=agent.metering,
        servers=ServerQuestions(questions=consent, waiting=shared.waiting),
        answers=answers,
        transcription=transcription,
    )


def _room_name(channels: Mapping[str, Channel], session: str) -> str:
    """Return the name of a session's room; empty if it has none or that is unknown."""
    key = session_key_of(session)
    channel = None if key is None else channels.get(key.channel)
    return channel.room_name(key.conversation) if key and isinstance(channel, SupportsRoomNames) else ""


def _transcription(env: Environment, queue: Queue, agent: AgentParts) -> Transcription | None:
    """Build the transcription of voice messages, if configured; its engine loads at first use."""
    wished = env.settings.voice.transcribe
    if wished is None:
        return None

    def make() -> TranscriptionPort:
        from agent_core.media.media_client import build_transcriber  # noqa: PLC0415 - with the first voice message

        return build_transcriber(wished, env.settings.llm, env.clock, litellm=agent.models.litellm)

    limits = TranscriptionLimits(
        wished.max_seconds,
        int(wished.max_mb * 1_000_000),
        env.overrides.policy.outage_budget_s,
        lambda: wished.price(env.settings.llm.providers),
        wished.longest_s(),
    )
    return Transcription(queue, agent.attachments, make=make, limits=limits)


def _reply_approval(settings: Settings, overrides: Overrides) -> dict[str, Approval]:
    asked: dict[str, Approval] = {
        name: config.reply_approval for name, config in settings.channels.enabled().items()
    }
    return asked | dict(overrides.approval)


def policy_of(settings: Settings) -> Policy:
    """The tool policy with what the settings change in the table of `agent_core.tools.policy`."""
    return {
        Effect(name): {
            trust: PolicyVerdict(verdict)
            for trust in DEFAULT_POLICY[Effect(name)]
            if (verdict := getattr(row, trust.name.lower())) is not None
        }
        for name, row in settings.tools.policy.items()
    }
