"""One run of the agent: limits, steps and tools. The package's docstring has the rules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from agent_core.agent.seen_words import SeenWords
from agent_core.agent.turn_limits import CallLimits
from agent_core.errors import ContextTooLong, ModelError, ModelRefused, TurnLimitReached
from agent_core.language import _, gettext_noop
from agent_core.memory.manager import MemoryManager
from agent_core.messages import Attachment
from agent_core.models import (
    Message,
    ModelAnswer,
    Purpose,
    ScopeKind,
    ToolCall,
    ToolDefinition,
    ToolResult,
    Usage,
)
from agent_core.ports import StepJournal, ToolPort
from agent_core.prompt import without_time
from agent_core.prompt_budget import clip
from agent_core.provenance import Origins, use_origins
from agent_core.tools.deferred import FIND_TOOLS, DeferredTools, name_of_tool
from agent_core.tools.effects import (
    Effect,
    approving,
    creates_only,
    effect_of,
    is_note,
    needs_approval,
    review_of,
    targets_of,
)
from agent_core.tools.execution import PRIVATE_NOTE, changed_note
from agent_core.tools.policy import ConsentPort, Proposal

_SAME_FAILURE_LIMIT = 3
_CALLS_AT_ONCE = 32
_SHORTENED_AT_MOST = 4
"""For one model call: a window is known by estimates, and a fallback may have a smaller one."""
_UNCLEAR_STATUS = (400, 413, 422)
_LARGE_SHARE = 0.5
"""Of the model's window: what is refused and longer than this may be too long, whatever the reason says."""
_CUT_OFF = gettext_noop(
    "\n\n[This answer was cut off at the output limit of the language model. Write “go on” for the rest.]"
)
_READ = "[The pictures that your tools have just read, in that order.]"
_PICTURES_OF_TOOLS = 8
"""The most shown in one run."""
_log = structlog.get_logger(__name__)

RunTools = Mapping[str, tuple[ToolDefinition, ToolPort, bool]]
"""The tools of one run by name, each with what the model is told of it, and True if it needs an approval."""


class AgentRun:
    """The state of one run; ``ask`` asks the model, ``words`` begins with the question."""

    def __init__(
        self,
        words: SeenWords,
        ask: Callable[[Sequence[Message], Sequence[ToolDefinition]], Awaitable[ModelAnswer]],
        *,
        memory: MemoryManager,
        system_prompt: str,
        tools: RunTools,
        journal: StepJournal | None,
        calls: CallLimits,
        consent: ConsentPort,
    ) -> None:
        self.words = words
        self._session = words.session
        self._ask_model = ask
        self._memory = memory
        self._system_prompt = system_prompt
        self._tools = {name: tool for name, (_, tool, _) in tools.items()}
        self._guarded = {name for name, (*_, guarded) in tools.items() if guarded}
        deferred = {name for name, tool in self._tools.items() if getattr(tool, "deferred", False)}
        elsewhere = "" if self._session.scope.kind is ScopeKind.OWNER else PRIVATE_NOTE
        hidden = {name: tools[name][0] for name in tools if name in deferred}
        self._deferred = DeferredTools(hidden, elsewhere=elsewhere)
        self._always = [each[0] for name, each in tools.items() if name not in deferred]
        if (finder := self._deferred.finder()) is not None:
            self._always.append(finder)
        self._calls = calls
        self._runner = calls.runner(self._tools, elsewhere=elsewhere)
        self._journal = journal
        self._consent = consent
        self._prompt: list[Message] = []
        self._tail: list[Message] = []
        self._chain = _digest(words.session.id, words.session.turn, without_time(words.question))
        self._number = 0
        self._ahead: Sequence[ToolCall] = ()
        """The calls of the model's answer that come after the one in hand."""
        self._not_loaded: Sequence[ToolCall] = ()
        """Those of the answer whose tools were not loaded before it: they are made, and asked, together."""
        self._same_failures: dict[str, int] = {}
        self._stop_reason = ""
        self._pictures: list[Attachment] = []
        """What tools have read, and was not shown yet."""
        self._pictures_left = _PICTURES_OF_TOOLS
        self._shortened = False
        self.attachments: list[Attachment] = []
        """What tools have given to go out with the answer."""
        self.usage = Usage()
        self.tool_runs = 0
        self.steps = 0

    async def think(self) -> str:
        """Run the steps and return the answer."""
        self._prompt = await self._build(None)
        self._load_again(self._prompt[:-1])
        while True:
            answer, last = await self._answer(
                self._stop_reason or self._calls.final_call_reason(self.steps, self.usage)
            )
            text, calls = answer.text, answer.calls
            if not calls or (last and text.strip()):
                return text.strip() + (_(_CUT_OFF) if answer.is_cut else "")
            if last:
                raise TurnLimitReached(f"no answer even without tools: {last}", steps=self.steps)
            self._tail.append(
                Message(role="assistant", content=text, tool_calls=calls, reasoning=answer.reasoning)
            )
            self.words.note_decision(self._definitions)
            meant = [self._runner.fit_call(self._meant(call)) for call in calls]
            searches = any(call.name == FIND_TOOLS for call in meant)
            self._not_loaded = [call for call in meant if not searches and self._deferred.answers(call)]
            for number, call in enumerate(meant):
                self._ahead = meant[number + 1 : _CALLS_AT_ONCE]
                await self._use_tool(call, too_many=number >= _CALLS_AT_ONCE)
            self._show_pictures()

    def _meant(self, call: ToolCall) -> ToolCall:
        """The call with the name of the tool that the model means, if that is clear."""
        name = name_of_tool(call.name, [*self._tools, FIND_TOOLS])
        return call if name == call.name else call.model_copy(update={"name": name})

    def _load_again(self, before: Sequence[Message]) -> None:
        """Load tools found in earlier turns, except foreign ones where a turn is approved as a whole."""
        trusted = self.words.trust_time()
        for message in before:
            fine = trusted is not None and message.timestamp is not None and message.timestamp <= trusted
            self._deferred.load(
                name for name in message.found if not fine or not self._deferred.origins_of([name])
            )

    @property
    def _definitions(self) -> list[ToolDefinition]:
        """The tools that the model is told of now: new ones come at the end."""
        return [*self._always, *self._deferred.loaded_definitions()]

    @property
    def loaded_tools(self) -> tuple[str, ...]:
        """The deferred tools that are loaded from now on."""
        return self._deferred.found

    async def _build(self, context_tokens: int | None) -> list[Message]:
        prompt = await self._memory.build_messages(
            self._session.id,
            "\n\n".join(filter(None, (self._system_prompt, self._session.manner, self._session.room))),
            self.words.question,
            scope=self._session.scope,
            tool_names=[definition.name for definition in self._always],
            context_tokens=context_tokens,
            attachments=self._session.attachments,
            since=self._session.since,
            origins=self._session.origins,
            lookup=self._session.purpose is not Purpose.HEARTBEAT,
        )
        self.words.note_prompt(prompt[:-1])
        return prompt

    # ── the model ──

    async def _answer(self, last: str) -> tuple[ModelAnswer, str]:
        """One answer, recorded or new, and why it is the last one, if it is."""
        self.words.note_origins(*(each.origins for each in self._definitions))
        number, digest = self._next("model", last)
        digest, found = await self._recorded_answer(number, digest, last)
        if found is None:
            # Only a call that is made needs an allowance: what is recorded was paid before.
            guess = self._memory.estimate.request([*self._prompt, *self._tail], self._definitions)
            last = last or await self._calls.refusal_after(guess, begun=self.steps > 0)
            answer, origins = await self._ask(last, None if last else guess), self.words.origins
            answer = replace(answer, loaded=self._deferred.found)
            if self._journal is not None:
                await self._journal.record_model_answer(number, digest, answer, origins=origins)
        else:
            answer, origins = found
            # The line that had loaded a tool may have left the prompt: by a summary, or by ``!new``.
            self._deferred.load(answer.loaded)
        # A restarted turn may have a prompt with less in it than the one that was answered.
        self.words.note_origins(origins)
        self.steps += 1
        usage = answer.usage or Usage()
        self.usage += usage
        self._chain = _digest(
            digest, answer.text, *(call.model_dump_json(exclude={"unreadable"}) for call in answer.calls)
        )
        return answer, last

    async def _recorded_answer(
        self, number: int, digest: str, last: str
    ) -> tuple[str, tuple[ModelAnswer, Origins] | None]:
        """The answer that was recorded for a step, if one was, and the digest of that."""
        if self._journal is None:
            return digest, None
        found = await self._journal.model_answer(number, digest)
        if found is None and number == 0:
            # The digests of turns that began before December 2026 hold the time of the question.
            begin = _digest(self.words.session.id, self.words.session.turn, self.words.question)
            old = _digest(begin, str(number), "model", last)
            found = await self._journal.model_answer(number, old)
            digest = digest if found is None else old
        return digest, found

    async def _ask(self, last: str, guess: int | None) -> ModelAnswer:
        """Ask the model, shortening a prompt that is too long; ``guess`` is its estimated size."""
        shortened = 0
        while True:
            request = [*self._prompt, *self._tail]
            if last:
                # In the last message: some servers accept no message of a user behind the result of a tool.
                note = f"[No tool can be used any more: {last}. Answer now, with what you have.]"
                said = f"{request[-1].content}\n\n{note}" if self.steps else request[-1].content
                request[-1] = request[-1].model_copy(update={"content": said, "ends_tools": True})
            if guess is None:
                guess = self._memory.estimate.request(request, self._definitions)
            try:
                answer = await self._ask_model(request, self._definitions)
            except ModelError as error:
                error.fields["step"] = self.steps
                again = shortened < _SHORTENED_AT_MOST if "room" in error.fields else not self._shortened
                if not again or not self._is_too_long(error, guess):
                    raise
                shortened += 1
                await self._shorten(error, shortened)
                guess = None
                continue
            if answer.usage is None:
                written = self._memory.estimate.text(answer.text)
                usage = Usage(prompt_tokens=guess, completion_tokens=written, calls=1)
                return replace(answer, usage=usage)
            return answer

    def _is_too_long(self, error: ModelError, tokens: int) -> bool:
        """Return True if a shorter request may succeed: it is too long, or large and refused unclearly."""
        if isinstance(error, ContextTooLong):
            return True
        unclear = isinstance(error, ModelRefused) and error.fields.get("status") in _UNCLEAR_STATUS
        return unclear and tokens > self._memory.context_tokens * _LARGE_SHARE

    async def _shorten(self, error: ModelError, times: int) -> None:
        """Shorten prompt and tool results to the room the error names, else to half, once in a run."""
        estimate = self._memory.estimate
        tokens = estimate.request(self._prompt)
        results = sum(message.role == "tool" for message in self._tail)
        room = error.fields.get("room")
        if room is None:
            self._shortened = True
            room, wanted = 0, tokens // 2
        else:
            whole = tokens + estimate.request(self._tail)
            room = int(room) * whole // max(1, int(error.fields["tokens"])) * (9 - times) // 9
            wanted = min(tokens, room // 2 if results else room)
        self._prompt = await self._build(max(wanted, 500))
        room -= estimate.request(self._prompt)
        room -= estimate.request(message for message in self._tail if message.role != "tool")
        share = max(room // max(1, results), 500 if times == 1 else 100)
        self._tail = [
            message.model_copy(update={"content": clip(message.content, share, estimate)})
            if message.role == "tool"
            else message
            for message in self._tail
        ]
        _log.warning("prompt.shortened", estimated_tokens=tokens, error=str(error))

    # ── tools ──

    async def _use_tool(self, call: ToolCall, *, too_many: bool) -> None:
        key = _digest(call.name, json.dumps(call.arguments, sort_keys=True, default=str))
        number, digest = self._next("tool", call.id, key)
        if too_many:
            result = _refused(call, f"Only {_CALLS_AT_ONCE} calls at once; this one was not made.")
        elif self._same_failures.get(key, 0) >= _SAME_FAILURE_LIMIT:
            result = _refused(call, "This same call has failed too often and was not made again.")
            self._stop_reason = f"the same call of {call.name!r} failed {_SAME_FAILURE_LIMIT} times"
        elif call.unreadable:
            told = (
                f"No call of this answer was made: {call.unreadable}. Write each anew, with one JSON object."
            )
            result = _refused(call, told)
        elif call in self._not_loaded or self._deferred.answers(call):
            result = await self._look_up(number, digest, call)
        else:
            result = await self._refused_or_run(number, digest, call)
        self._deferred.load(result.found)
        if not result.is_error:
            self._same_failures.pop(key, None)
        else:
            self._same_failures[key] = self._same_failures.get(key, 0) + 1
        self._pictures += result.pictures
        self.attachments += [file for file in result.attachments if file not in self.attachments]
        self._chain = _digest(digest, str(result.is_error), result.content)
        tool = self._tools.get(call.name)
        fetched = tool is not None and effect_of(tool, call.arguments) is Effect.NETWORK_GET
        self.words.note_result(result, fetched=fetched)
        content = f"Error: {result.content}" if result.is_error else result.content
        self._tail.append(Message(role="tool", content=content, tool_call_id=call.id))

    def _show_pictures(self) -> None:
        """Show what tools have read behind all of their results: a result itself is text."""
        pictures, self._pictures = self._pictures[: self._pictures_left], []
        self._pictures_left -= len(pictures)
        if pictures:
            self._tail.append(Message(role="user", content=_READ, attachments=tuple(pictures)))

    async def _look_up(self, number: int, digest: str, call: ToolCall) -> ToolResult:
        """The answer to a call that finds tools, or that has to; recorded, because the list may change."""
        recorded = None if self._journal is None else await self._journal.tool_result(number, digest)
        if recorded is not None:
            return recorded
        result = self._deferred.answer(call)
        if self._journal is not None:
            await self._journal.record_tool_result(number, digest, result)
        return result

    async def _refused_or_run(self, number: int, digest: str, call: ToolCall) -> ToolResult:
        """The result of a call that can be made; one that was begun counts, also if its tool is gone now."""
        refusal = self._runner.refusal(call)
        if refusal is None:
            return await self._run_tool(number, digest, call)
        begun = None if self._journal is None else await self._journal.tool_result(number, digest)
        return begun or refusal

    async def _run_tool(self, number: int, digest: str, call: ToolCall) -> ToolResult:
        """The result of a call, recorded or new."""
        self.tool_runs += 1
        recorded = None if self._journal is None else await self._journal.tool_result(number, digest)
        if recorded is not None:
            return recorded
        ahead = self._ahead
        proposal = await self.words.credit_author(self._proposal(call), self._tools[call.name])
        proposal = replace(
            proposal,
            following=lambda: self._following(ahead),
            changed=lambda arguments: self._changed(call, arguments),
        )
        permission = await self._consent.permission(number, digest, proposal)
        if permission.refusal is not None:
            return permission.refusal
        approval, proposal = permission.approval, permission.instead or proposal
        call = proposal.call
        if self._journal is not None:
            await self._journal.record_tool_start(
                number,
                digest,
                call,
                effect=proposal.effect.value,
                origins=proposal.origins,
                approval=approval,
            )
        # What somebody has seen and said yes to is theirs: what is kept by it carries no other origin.
        kept, state = (proposal.origins, "") if approval is None else (approval.origins, approval.state)
        if proposal.effect is Effect.NETWORK_GET and all(
            map(self.words.is_written, proposal.targets or [""])
        ):
            kept = ()  # what somebody has written is theirs as well
        with use_origins(kept), approving(state):
            result = await self._runner.run(call, step=number)
        result = result.model_copy(update={"origins": self.words.arriving(result.origins)})
        if approval is not None and approval.changed:
            result = result.model_copy(update={"content": f"{changed_note(call)}\n{result.content}"})
        if self._journal is not None:
            await self._journal.record_tool_result(number, digest, result)
        return result

    def _changed(self, call: ToolCall, arguments: Mapping[str, Any]) -> Proposal | ToolResult:
        """Propose a call with the arguments that a person wants; a result says why they do not fit."""
        changed = self._runner.fit_call(call.model_copy(update={"arguments": dict(arguments)}))
        return self._runner.refusal(changed) or self._proposal(changed)

    def _following(self, ahead: Sequence[ToolCall]) -> list[tuple[int, Proposal]]:
        """Return the remaining calls of the same answer, numbered; each takes one step."""
        return [
            (later, self._proposal(each))
            for later, each in enumerate(ahead, start=1)
            if self._runner.refusal(each) is None
            and not (each in self._not_loaded or self._deferred.answers(each))
        ]

    def _proposal(self, call: ToolCall) -> Proposal:
        """Describe a call for the policy: its effect, its targets and whether a person named them."""
        tool = self._tools[call.name]
        effect, targets = effect_of(tool, call.arguments), targets_of(tool, call.arguments)
        return Proposal(
            call,
            effect,
            self.words.decided_on,
            targets or (),
            named=self.words.has_named(effect, targets)
            and (effect is not Effect.WRITE_WORKSPACE or creates_only(tool, call.arguments)),
            guarded=call.name in self._guarded or needs_approval(tool, call.arguments),
            is_note=is_note(tool, call.arguments),
            review=lambda: review_of(tool, call.arguments),
        )

    def _next(self, *what: str) -> tuple[int, str]:
        number = self._number
        self._number += 1
        return number, _digest(self._chain, str(number), *what)


def _refused(call: ToolCall, text: str) -> ToolResult:
    return ToolResult(content=text, is_error=True, tool_call_id=call.id)


def _digest(*parts: str) -> str:
    whole = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        whole.update(len(raw).to_bytes(8, "big") + raw)
    return whole.hexdigest()[:32]
