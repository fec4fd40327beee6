"""Runs the model in a turn: what it is given, where its reply goes, and what is journaled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import anyio
import structlog

from agent_core.agent import AgentLoop, history_of
from agent_core.messages import Audience, InboundMessage, SessionKey
from agent_core.models import Purpose, Session, TurnResult
from agent_core.persona import manner_text
from agent_core.ports import ToolPort
from agent_core.prompt import room_text
from agent_core.provenance import join_origins, person
from agent_core.tools.person_port import person_of_turn
from channels.base import AckState, Channel, SupportsRoomNames
from gateway.budget.metering import Metering, UsageMeter
from gateway.routing.access import Role
from gateway.store.background_job_rows import is_background
from gateway.store.stores import Step, Turn
from gateway.turns.commands.worded_answers import WordedAnswers
from gateway.turns.commit import TurnCommit
from gateway.turns.model_choice import ModelChoice, choice_topic
from gateway.turns.questions.server_questions import ServerQuestions
from gateway.turns.questions.tool_questions import ApprovalPending
from gateway.turns.step_journal import StoreStepJournal
from gateway.turns.transcription import TranscribedTurn, Transcription
from gateway.turns.turn_kinds import Plan
from gateway.turns.turn_rules import TurnRules, rules_of_turn, use_turn_language
from gateway.turns.user_input import trust_topic, trusted_before, user_input

_NAMED = 30
"""The most members of a room named in a prompt."""
_log = structlog.get_logger(__name__)

ExtraTools = Callable[[Session, Sequence[InboundMessage]], Awaitable[Sequence[ToolPort]]]
"""Makes the tools that belong to one session and one run, such as ``memory_write``."""


@dataclass(eq=False, kw_only=True)
class ModelRun:
    """
    Runs the agent for planned turns, in all sessions.

    ``transcription`` None: sounds stay files.
    """

    commit: TurnCommit
    agent: AgentLoop
    extra_tools: ExtraTools
    models: ModelChoice
    metering: Metering
    servers: ServerQuestions
    answers: WordedAnswers
    transcription: Transcription | None = None

    def __post_init__(self) -> None:
        self._store, self._channels = self.commit.store, self.commit.channels
        self._consent, self._access = self.servers.questions, self.answers.questions.access
        self._clock = self._consent.clock

    def rules(self, turn: Turn) -> TurnRules:
        """The rules for the people of a turn and its room."""
        return rules_of_turn(turn, self._access, self._channels)

    def use_turn_language(self, turn: Turn) -> AbstractContextManager[None]:
        """Make the texts of the block in the language of a turn's people."""
        return use_turn_language(turn, self._access, self._channels)

    async def begin(self, turn: Turn, purpose: Purpose) -> UsageMeter:
        """Begin to meter a run. Raises BudgetSpent (not with recorded steps) or StoreUnavailable."""
        owner = any(self._access.decide(row.message).role is Role.OWNER for row in turn.rows)
        share = self.rules(turn).share
        meter = self.metering.meter(turn.session, purpose, owner=owner, share=share)
        refusal = await self.metering.refusal(purpose, owner=owner, share=share)
        if refusal is not None and not await self._store.turns.steps(turn):
            raise meter.refuse(refusal)
        self.commit.acknowledgements.report((row.message for row in turn.rows), AckState.RECEIVED)
        return meter

    async def run(self, turn: Turn, plan: Plan, meter: UsageMeter) -> TurnResult | None:
        """Run the model; None: the turn waits for an approval. Raises AgentError or LostTurn."""
        # Nobody reads along in a draft that waits for approval, or sees an answer half that is given anew.
        channel = self._channels[turn.channel]
        unseen = plan.hold or turn.rows[-1].message.notes.replaces is not None
        sink = ReplySink(channel, turn.place, previews=not unseen, quiet=plan.quiet)
        steps: Sequence[Step] = ()
        if not turn.is_new:
            steps = await self._store.turns.steps(turn)
            await self.servers.close(turn, steps)
        try:
            async with sink.show_typing():
                return await self._answer(turn, plan, meter, sink=sink, steps=steps)
        except ApprovalPending as waiting:
            await meter.record()
            await self._consent.wait(turn, waiting)
            return None

    async def _answer(
        self, turn: Turn, plan: Plan, meter: UsageMeter, *, sink: ReplySink, steps: Sequence[Step]
    ) -> TurnResult:
        """Listen to what was spoken, if anything was, and ask the model."""
        began_at = self._clock.now()
        hearing = TranscribedTurn(plan.turn)
        if self.transcription is not None:
            hearing = await self.transcription.transcribe_turn(turn, plan.turn, steps, meter)
        asked = hearing.turn
        if asked is not plan.turn and (told := await self.answers.spoken(asked, steps)) is not None:
            return TurnResult(told, ())
        asks = user_input(asked, self._access, plan.purpose, plan.question, zone=self._consent.zone)
        if hearing.is_all:
            lines = history_of(
                asks.session, asks.lines, hearing.note, began_at=began_at, ended_at=self._clock.now()
            )
            return TurnResult(hearing.note, lines)
        topics = trust_topic(turn.session), choice_topic(asks.session.key)
        noted, chosen = await self._store.state.read_all(*topics)
        trusted = trusted_before(noted, self._clock.now())
        if noted and trusted is None:
            await self._store.state.write(topics[0], "")  # else it would vouch for this turn, too, later on
        rules = self.rules(asked)
        session = replace(
            self._in_room(asks.session, turn.channel),
            trusted_before=trusted,
            manner=manner_text(rules.place.persona),
        )
        llm = self.models.llm(session, chosen or rules.place.pool)
        tools = list(await self.extra_tools(session, [row.message for row in asked.rows]))
        with person_of_turn(self.servers.person(asked, steps)):
            result = await self.agent.run(
                session,
                asks.text,
                sink,
                llm=meter.wrap(llm),
                extra_tools=tools,
                permits=rules.permits,
                journal=StoreStepJournal(self._store, turn, steps, tools),
                user_lines=asks.lines,
                limits=plan.limits,
                allowance=meter,
                consent=self._consent.consent(asked, steps),
            )
        return replace(result, reply=f"{hearing.note}\n\n{result.reply}") if hearing.note else result

    def _in_room(self, session: Session, channel_name: str) -> Session:
        """Add the names of room and allowed people; names of others could be instructions."""
        channel, place = self._channels[channel_name], session.key.conversation
        account = channel.account
        if session.audience is Audience.DIRECT or not isinstance(channel, SupportsRoomNames):
            return session
        name, giver = channel.room_name(place), channel.name_giver(place)
        members = {each: name for each, name in channel.member_names(place).items() if each != account}
        roles = {each: self._access.role(channel_name, each, verified=True) for each in (*members, giver)}
        name = name if roles[giver] is not Role.STRANGER else ""
        known = [each for each in members if roles[each] is not Role.STRANGER][:_NAMED]
        text = room_text(name, {each: members[each] for each in known}, more=len(members) - len(known))
        shown = (*known, giver) if name else known
        named = join_origins(person(each) for each in shown if roles[each] is Role.ALLOWED)
        return replace(session, room=text, named=named)

    async def hide(self, session: SessionKey) -> None:
        """Stop showing that work goes on in this conversation. A background job never shows it."""
        if session.channel in self._channels and not is_background(session):
            await ReplySink(self._channels[session.channel], session).hide()


class ReplySink:
    """
    Implements `agent_core.ports.ChannelPort` for one turn.

    The answer is kept for the outbox. Typing and ``previews`` are best effort with time limits; ``quiet``
    hides the work.
    """

    def __init__(
        self, channel: Channel, session: SessionKey, *, previews: bool = True, quiet: bool = False
    ) -> None:
        self._channel = channel
        self._previews = previews and not quiet and channel.capabilities.previews
        self._typing = not quiet and channel.capabilities.typing
        self._session = session
        self._preview: str | None = None
        self._news = anyio.Event()
        self.answer: str | None = None

    async def send(self, text: str) -> None:
        """Keep the reply for the commit."""
        self.answer = text

    async def partial(self, text: str) -> None:
        """Show the text so far, at most a few times a second."""
        if self._previews:
            self._preview = text
            self._news.set()

    @asynccontextmanager
    async def show_typing(self) -> AsyncIterator[None]:
        """While inside, the conversation shows that work goes on."""
        if not (self._typing or self._previews):
            yield
            return
        failed: BaseException | None = None
        async with anyio.create_task_group() as hints:
            if self._typing:
                hints.start_soon(self._keep_typing)
            if self._previews:
                hints.start_soon(self._keep_showing)
            try:
                yield
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
                # Kept outside of the group: what the turn raises must not arrive wrapped in a group.
                failed = error
            hints.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def hide(self) -> None:
        """Stop showing that work goes on. Called after the commit, so that no answer waits for it."""
        if self._typing:
            await self._attempt(lambda: self._channel.typing(self._session, on=False))

    async def _attempt(self, give: Callable[[], Awaitable[None]]) -> None:
        try:
            with anyio.move_on_after(10.0):
                await give()
        except Exception as error:  # noqa: BLE001 - a hint never costs an answer
            _log.info("typing.failed", channel=self._channel.name, error=type(error).__name__)

    async def _keep_typing(self) -> None:
        while True:
            await self._attempt(lambda: self._channel.typing(self._session, on=True))
            await anyio.sleep(20.0)

    async def _keep_showing(self) -> None:
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            await self._attempt(partial(self._channel.preview, self._session, self._preview or ""))
            await anyio.sleep(0.05)
