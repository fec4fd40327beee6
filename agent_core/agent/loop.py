"""`AgentLoop`: the interface of a turn for its callers; ``run`` does the work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from uuid import uuid4

from agent_core.agent.limits import TurnLimits
from agent_core.agent.run import AgentRun, RunTools
from agent_core.errors import TurnLimitReached
from agent_core.memory.manager import MemoryManager
from agent_core.messages import Attachment
from agent_core.models import Message, Session, ToolDefinition, ToolResult, TurnResult, Usage
from agent_core.ports import AllowancePort, ChannelPort, Clock, LLMPort, StepJournal, ToolPort
from agent_core.provenance import Origins, join_origins
from agent_core.tools.asking import limit_time
from agent_core.tools.policy import ConsentPort, Permission, PolicyVerdict, Proposal, verdict_on
from agent_core.tools.registry import ToolRegistry, definition_of


class AgentLoop:
    """
    Runs turns; one instance serves all sessions, any number at a time.

    Args:
        registry: Tools for every run. Never changed from here.
        llm: The model, unless a run brings its own.
        approve_tools: Names of tools that need a person's yes, besides those that say so themselves.
    """

    def __init__(
        self,
        memory: MemoryManager,
        registry: ToolRegistry,
        llm: LLMPort,
        *,
        system_prompt: str | Callable[[], str],
        clock: Clock,
        limits: TurnLimits = TurnLimits(),  # noqa: B008 - a frozen value
        approve_tools: Collection[str] = (),
    ) -> None:
        self._memory = memory
        self._registry = registry
        self._llm = llm
        self._system_prompt = system_prompt
        self._clock = clock
        self._limits = limits
        self._approve_tools = frozenset(approve_tools)

    async def run(
        self,
        session: Session,
        user_message: str,
        channel: ChannelPort,
        *,
        llm: LLMPort | None = None,
        extra_tools: Sequence[ToolPort] | None = None,
        journal: StepJournal | None = None,
        user_lines: Sequence[Message] = (),
        stream: bool = True,
        limits: TurnLimits | None = None,
        spent: Callable[[Usage], None] = lambda _: None,
        allowance: AllowancePort | None = None,
        consent: ConsentPort | None = None,
    ) -> TurnResult:
        """
        Answer ``user_message``: ``channel.send`` is called exactly once, then the result is returned.

        The history is **not** written here. The caller commits ``result.history`` together with the outbox
        and the state of its queue, in one transaction: written here, a crash between the two would leave an
        answer in the history that nobody ever got, or one that was sent and is unknown to the next turn.

        Args:
            session: The conversation; ids of history lines are ``<session.turn>.<n>``.
            user_message: What the model is asked, after the facts of the moment (`prompt.turn_facts`).
            extra_tools: Tools for this run only; they win over the registry's.
            journal: What an earlier start of this turn has done.
            user_lines: The history lines of the question, one per message that was merged into it; by
                default one line with ``user_message``. Missing ids and times are filled in.
            stream: Whether the channel shows unfinished answers. Without, asking costs less.
            limits: What this run may cost, if not as much as any other.
            spent: Told what each model call has cost, recorded ones too: for a run that does not end with a
                result. Of one that is cut off it is an estimate.
            allowance: Asked before each model call that is made whether it must be the last one.
            consent: Asks a person about tools that need one's yes. Without it none of them is run.

        Raises:
            ModelError: No model answered. ``temporary`` says whether later can help.
            AwaitsApproval: Somebody is to be asked first; run it again when that is decided.
            TurnLimitReached: The turn took too long, or would not come to an end.
        """
        began_at = self._clock.now()
        limits = limits or self._limits
        base = self._system_prompt
        turn = AgentRun(
            session,
            user_message,
            memory=self._memory,
            system_prompt=base if isinstance(base, str) else base(),
            llm=llm or self._llm,
            tools=self._tools(extra_tools or ()),
            channel=channel,
            journal=journal,
            limits=limits,
            stream=stream,
            spent=spent,
            allowance=allowance,
            approve_tools=self._approve_tools,
            consent=consent or _RefusingApprovals(),
            clock=self._clock,
        )
        reply: str | None = None
        with limit_time(limits.seconds):
            reply = await turn.think()
        if reply is None:
            raise TurnLimitReached(f"no answer within {limits.seconds:g} s", steps=turn.steps)
        await channel.send(reply)
        history = history_of(
            session,
            user_lines or [Message(role="user", content=user_message, attachments=session.attachments)],
            reply,
            began_at=began_at,
            ended_at=self._clock.now(),
            attachments=turn.attachments,
            origins=turn.origins,
            quoted=turn.quoted,
            found=turn.found,
        )
        return TurnResult(
            reply, history, turn.usage, turn.tool_runs, turn.steps, attachments=tuple(turn.attachments)
        )

    def _tools(self, extra: Iterable[ToolPort]) -> RunTools:
        """The tools of one run by name, the registry's first, each with what the model is told of it."""
        tools: dict[str, tuple[ToolDefinition, ToolPort]] = {}
        for definition in self._registry.get_definitions():
            tool = self._registry.get(definition.name)
            if tool is not None:
                tools[definition.name] = (definition, tool)
        for tool in extra:
            tools[tool.name] = (definition_of(tool), tool)
        return tools


class _RefusingApprovals:
    """Where no person can be asked, nothing that needs one's yes is run."""

    async def permission(self, number: int, digest: str, proposal: Proposal) -> Permission:
        """What the policy allows without a question."""
        if verdict_on(proposal) is PolicyVerdict.ALLOW:
            return Permission()
        text = "This needs a person's approval, and nobody can be asked here; it was not run."
        return Permission(ToolResult(content=text, is_error=True, tool_call_id=proposal.call.id))


def history_of(
    session: Session,
    user_lines: Sequence[Message],
    reply: str,
    *,
    began_at: datetime,
    ended_at: datetime,
    attachments: Sequence[Attachment] = (),
    origins: Origins = (),
    quoted: Origins = (),
    found: Sequence[str] = (),
) -> tuple[Message, ...]:
    """The lines of a turn for the history: those of the question, and the answer."""
    turn, scope = session.turn or uuid4().hex, str(session.scope)
    lines = [
        line.model_copy(
            update={
                "role": "user",
                "id": line.id or f"{turn}.{number}",
                "turn": line.turn or turn,
                "timestamp": line.timestamp or began_at,
                "scope": scope,
                "origins": join_origins(session.origins if line.origins is None else line.origins, quoted),
            }
        )
        for number, line in enumerate(user_lines)
    ]
    answer = Message(
        role="assistant",
        content=reply,
        id=f"{turn}.{len(lines)}",
        turn=turn,
        timestamp=ended_at,
        scope=scope,
        attachments=tuple(attachments),
        origins=origins,
        found=tuple(found),
    )
    return (*lines, answer)
