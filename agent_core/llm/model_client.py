"""
The client of one model, whatever its protocol: asks, streams the answer, learns what the model refuses. A
model may refuse a part of a request: a tool whose definition it does not accept, all tools, pictures, the
length of an answer, its own reasoning, a parameter. That part is left out from then on and the request is
made once more, so that neither this turn fails nor each later one pays a refused request first. Nothing was
handed out then, so nothing is said twice.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from agent_core.errors import ContextTooLong, ModelError, ModelRefused
from agent_core.llm.openai_format import Piece
from agent_core.llm.pools import answer_room, least_tokens
from agent_core.llm.prices import Price
from agent_core.llm.prompt_pictures import pictures_of
from agent_core.llm.reasoning import ReasoningHabit
from agent_core.llm.streaming import AnswerLimits, answer
from agent_core.llm.tool_schemas import plain_schema, restore_names
from agent_core.llm.wire import Pictures
from agent_core.models import Message, ModelChunk, Reasoning, ToolCall, ToolDefinition, Usage
from agent_core.ports import Clock, PicturePort
from agent_core.prompt_budget import TokenEstimate

_NO_TOOLS = re.compile(
    r"(does not|doesn't|do not|not) support (tool|function)|tools? (use |calling )?(is|are) not supported"
    r"|tool choice requires|endpoints found that support tool",
    re.IGNORECASE,
)
_ABOUT_TOOLS = re.compile(r"tool|function|schema|propert", re.IGNORECASE)
_ABOUT_SCHEMAS = re.compile(r"schema|grammar|propert|Unknown name", re.IGNORECASE)
"""Gemini and llama.cpp: what they cannot read of a schema fails the request, and not every one says which."""
_ABOUT_LENGTH = re.compile(r"max_(completion_|output_)?tokens|maxOutputTokens|num_predict")
_REFUSES_REASONING = re.compile(
    r"\breasoning(_content|_details)?\b.{0,80}(unsupported|not (supported|permitted|allowed))", re.IGNORECASE
)
"""Groq and Mistral: they do not want back what they, or servers like them, give."""
_WANTS_REASONING = re.compile(
    r"reasoning_content.{0,60}(missing|must be passed back)|missing .?reasoning_content", re.IGNORECASE
)
"""DeepSeek, with all of its answers: also those of earlier turns."""
_ONLY_ADAPTIVE = "thinking.type.adaptive"
"""The field that newer models of Anthropic name when they refuse a budget for thinking."""
_REFUSES_PARAMETER = re.compile(
    r"\b(only|must|invalid|deprecated|unsupported|unrecognized|unknown)\b"
    r"|not .{0,40}(support|permitted|allowed)",
    re.IGNORECASE,
)
"""Said of a parameter that a model refuses by name; without it the answer is as good."""
_ONLY_NO_EFFORT = "set reasoning_effort to 'none'"
"""OpenAI, since GPT-5.6 thinks unless told not to, and refuses to think where tools are offered."""
_NUMBER = re.compile(r"\d{2,9}")
_LEAST_WINDOW = 2_048
"""No server of these days reads less."""
_DEFECT = 500
"""The status that servers of one's own give to a picture that they cannot decode."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Refusals:
    """The parameters and contents that one model has refused; later requests leave them out."""

    max_tokens: int | None = None
    all_tools: bool = False
    reasoning: Literal["", "refused", "missing"] = ""
    """``missing``: every answer has to come back with some."""
    plain_schemas: bool = False
    """The definitions of tools are sent without what limits values more closely."""
    budget: bool = False
    """A budget for thinking, in the place of a degree."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The value that is sent instead; None: nothing."""
    tools: set[str] = field(default_factory=set)
    pictures: dict[str, bool] = field(default_factory=dict)
    """True: it has answered with this one."""

    def learn(
        self, error: ModelError, tools: Sequence[ToolDefinition], shown: Pictures, sent: Collection[str] = ()
    ) -> str:
        """Note what a refusal is about and return it, or ""; ``sent`` are the request's parameters."""
        status, text = error.fields.get("status"), str(error)
        if status is None or isinstance(error, ContextTooLong) or error.fields.get("operator"):
            return ""
        if isinstance(error, ModelRefused) and (part := self._learn_words(text, tools, sent)):
            return part
        if shown and (isinstance(error, ModelRefused) or status == _DEFECT):
            # One that the model has looked at before is not the reason.
            self.pictures |= dict.fromkeys(shown.keys() - self.pictures.keys() or shown, False)
            return "pictures"
        return ""

    def _learn_words(self, text: str, tools: Sequence[ToolDefinition], sent: Collection[str]) -> str:
        """The part that the words of a refusal name."""
        if not self.reasoning and _REFUSES_REASONING.search(text):
            self.reasoning = "refused"
            return "reasoning"
        if not self.reasoning and _WANTS_REASONING.search(text):
            self.reasoning = "missing"
            return "missing reasoning"
        if tools and _NO_TOOLS.search(text):
            self.all_tools = True
            return "all tools"
        if part := self._learn_parameters(text, sent) or self._learn_tools(text, tools):
            return part
        if self.max_tokens and self.max_tokens > 1 and _ABOUT_LENGTH.search(text):
            lower = [int(each) for each in _NUMBER.findall(text) if int(each) < self.max_tokens]
            self.max_tokens = max(lower, default=self.max_tokens // 2)
            return "max_tokens"
        return ""

    def _learn_parameters(self, text: str, sent: Collection[str]) -> str:
        if not self.budget and _ONLY_ADAPTIVE in text:
            self.budget = True
            return "budget for thinking"
        refused: dict[str, Any] = {}
        if _ONLY_NO_EFFORT in text:
            refused = {"reasoning_effort": "none"}
        elif _REFUSES_PARAMETER.search(text):
            said = _folded(text)
            refused = {each: None for each in sent if re.search(rf"\b{re.escape(_folded(each))}\b", said)}
        if not refused.items() <= self.parameters.items():
            self.parameters |= refused
            return ", ".join(sorted(refused))
        return ""

    def _learn_tools(self, text: str, tools: Sequence[ToolDefinition]) -> str:
        """Leave out the part of a definition that a model cannot read, and the tool if that does not help."""
        if not self.plain_schemas and _ABOUT_SCHEMAS.search(text):
            self.plain_schemas = any(plain_schema(tool.parameters) != tool.parameters for tool in tools)
            if self.plain_schemas:
                return "closer limits in schemas"
        named = {tool.name for tool in tools if re.search(rf"\b{re.escape(tool.name)}\b", text)}
        places = re.findall(r"function_declarations\[(\d{1,4})", text) or re.findall(
            r"tools[.\[](\d{1,4})", text
        )
        named |= {tools[number].name for number in map(int, places) if number < len(tools)}
        if named and _ABOUT_TOOLS.search(text):
            self.tools |= named
            return ", ".join(sorted(named))
        return ""


def _folded(name: str) -> str:
    """A name as providers write it: xAI refuses ``reasoning_effort`` as ``reasoningEffort``."""
    return name.replace("_", "").lower()


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model."""

    messages: Sequence[Message]
    tools: Sequence[ToolDefinition]
    pictures: Pictures
    stream: bool


class ModelClient(ABC):
    """
    An `LLMPort` for one model.

    Args:
        model: Its configured name, for reports.
        max_tokens: The longest answer; None: the provider's limit.
        extra: Further request fields, such as ``temperature``; they win.
        price: The price of tokens, by operator or table.
        pictures: The source of pictures, for a model that accepts them.
        window: Its context window in tokens, if known; see `pools`.
    """

    at_home = False
    """A self-hosted server, which may truncate requests silently."""

    def __init__(
        self,
        model: str,
        *,
        clock: Clock,
        max_tokens: int | None = None,
        extra: Mapping[str, Any] | None = None,
        limits: AnswerLimits = AnswerLimits(),  # noqa: B008 - a frozen value
        price: Price | None = None,
        pictures: PicturePort | None = None,
        window: int | None = None,
    ) -> None:
        self.model = model
        self.window = window
        self.notes: list[str] = []
        """What its owner should know of it, for ``init`` and ``check``."""
        self.on_cut: Callable[[str, str], None] = lambda _, __: None
        """Called with the model's name and a note if its server reads less than it is sent or than is set."""
        self.estimate = TokenEstimate()
        """Return this model's token estimate; tokenizers differ by a half."""
        self._clock = clock
        self._extra = dict(extra or {})
        self._limits = limits
        self._price = price
        self._pictures = pictures
        self._habit = ReasoningHabit()
        self.refusals = Refusals(max_tokens)

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Ask for one answer; see `LLMPort`. Pictures are read before this returns."""
        await self._prepare()
        messages, pictures = await pictures_of(messages, self._pictures)
        return self._answer(Request(messages, tools, pictures, stream))

    async def _prepare(self) -> None:  # noqa: B027 - most models need nothing
        """Start what the model needs; it does not count for the limits. Raises `ModelError`."""

    @abstractmethod
    def _pieces(self, asked: Request) -> AsyncGenerator[Piece, None]:
        """The server's answer to one request; every exception is a `ModelError`."""

    def _common(self, asked: Request) -> dict[str, Any]:
        """The arguments that every protocol's ``request_body`` takes, without what the model has refused."""
        return {
            "messages": asked.messages,
            "tools": asked.tools,
            "stream": asked.stream,
            "max_tokens": self.refusals.max_tokens,
            "extra": {
                name: value
                for name, value in (self._extra | self.refusals.parameters).items()
                if value is not None or name not in self.refusals.parameters
            },
            "pictures": asked.pictures,
            "own_name": self.model,
        }

    def _note(self, text: str, *, is_cut: bool = False) -> None:
        """Say something once, in the log and in ``notes``, and to the owner if less is read than was sent."""
        if text not in self.notes:
            if is_cut:
                self.on_cut(self.model, text)
            self.notes.append(text)
            _log.warning("model.limited", model=self.model, note=text)

    def _learn_window(self, told: int | None, *, wished: bool) -> None:
        """Take the server's word on the window, if it is smaller than what ``self.window`` says."""
        if told is None or (self.window is not None and told >= self.window):
            return
        if wished:
            self._note(
                f"{self.model} reads {told} tokens and not {self.window}; give the server a longer context, "
                f"or set max_context_tokens: {told}",
                is_cut=True,
            )
        self.window = told

    def _check_fits(self, request: Request) -> int:
        """The estimated tokens of a request. Raises `ContextTooLong`: with its answer it does not fit."""
        tools = self.estimate.definitions(request.tools)
        tokens = self.estimate.request(request.messages)
        if self.window is not None and tokens > (room := self.window - answer_room(self.window) - tools):
            raise ContextTooLong(
                f"{self.model}: about {tokens + tools} tokens do not fit into its window of {self.window}",
                model=self.model,
                window=self.window,
                room=room,
                tokens=tokens,
            )
        return tokens + tools

    def _check_was_read(self, request: Request, estimated: int, read: int) -> None:
        """Raise `ContextTooLong` if the server has cut the request: its answer is worth nothing."""
        window = max(read, _LEAST_WINDOW)
        # What is left of a request that was cut is half a window at least; a smaller number is no count.
        if self.at_home and read >= _LEAST_WINDOW // 2 and window < least_tokens(request.messages):
            self._note(
                f"{self.model}: its server has cut a request of {estimated} tokens down to {read}; give it a "
                f"longer context (Ollama: OLLAMA_CONTEXT_LENGTH=16384), or set max_context_tokens: {window}",
                is_cut=True,
            )
            self.window = window
            self._check_fits(self._accepted(request))
            raise ContextTooLong(f"{self.model}: only {read} tokens were read", model=self.model)
        self.estimate = self.estimate.correct(estimated, read)

    async def _answer(self, wanted: Request) -> AsyncGenerator[ModelChunk, None]:
        for tries_left in reversed(range(8)):
            request = self._accepted(wanted)
            tokens = self._check_fits(request)
            handed_out = False
            try:
                chunks = answer(
                    self._pieces(request),
                    limits=self._limits,
                    model=self.model,
                    stream=request.stream,
                    habit=self._habit,
                    tools=[tool.name for tool in request.tools],
                    prompt=request.messages,
                )
                async with aclosing(chunks):
                    async for chunk in chunks:
                        handed_out = True
                        if isinstance(chunk, Usage):
                            self._check_was_read(request, tokens, chunk.prompt_tokens)
                        yield _restored(chunk, request.tools) if isinstance(chunk, ToolCall) else chunk
            except ModelError as error:
                if isinstance(error, ContextTooLong):
                    self._learn_window(error.fields.get("window"), wished=self.window is not None)
                about = "" if handed_out else self._learn(error, request)
                if not about or not tries_left:
                    raise
                _log.warning("model.refused_part", model=self.model, part=about, error=str(error))
                continue
            self.refusals.pictures |= dict.fromkeys(request.pictures, True)
            return

    def _learn(self, error: ModelError, request: Request) -> str:
        """The part of a request that was refused and is left out from now on; see `Refusals.learn`."""
        sent = {*self._extra, "stream_options"}
        part = self.refusals.learn(error, request.tools, request.pictures, sent)
        if self.refusals.all_tools:
            self._note(f"{self.model} refuses tools and only talks; mend that at its server and restart me")
        for name, value in self.refusals.parameters.items():
            if name == "stream_options":
                continue  # nobody has configured it
            if value is None:
                advice = "so it is asked without; take it out of the configuration"
            else:
                advice = f"so it is asked with {value!r}; set that in the configuration"
            self._note(f"{self.model} refuses {name}, {advice}")
        return part

    def _accepted(self, wanted: Request) -> Request:
        """The request without the parts that this model has refused."""
        known = self.refusals
        tools = [] if known.all_tools else [tool for tool in wanted.tools if tool.name not in known.tools]
        if self.window is not None and self.estimate.definitions(tools) > self.window // 2:
            self._note(f"{self.model} reads {self.window} tokens: too few for tools, so it only talks")
            tools = []
        if known.plain_schemas:
            tools = [tool.model_copy(update={"parameters": plain_schema(tool.parameters)}) for tool in tools]
        pictures = {name: each for name, each in wanted.pictures.items() if known.pictures.get(name, True)}
        messages = _with_note(wanted.messages, wanted.tools, tools)
        if known.reasoning == "refused":
            messages = [message.model_copy(update={"reasoning": None}) for message in messages]
        elif known.reasoning == "missing":
            some = Reasoning(model=self.model, fields={"reasoning_content": " "})
            messages = [
                message.model_copy(update={"reasoning": some})
                if message.role == "assistant" and getattr(message.reasoning, "model", "") != self.model
                else message
                for message in messages
            ]
        return Request(messages, tools, pictures, wanted.stream)


def _with_note(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], offered: Sequence[ToolDefinition]
) -> Sequence[Message]:
    """The messages, with a note about the tools that are not offered."""
    if len(offered) == len(tools) or not messages:
        return messages
    kept = {tool.name for tool in offered}
    names = ", ".join(tool.name for tool in tools if tool.name not in kept)
    note = f"[These tools cannot be used with you: {names}.]" if offered else "[You cannot use any tools.]"
    last = messages[-1]
    return [*messages[:-1], last.model_copy(update={"content": f"{last.content}\n\n{note}"})]


def _restored(call: ToolCall, tools: Sequence[ToolDefinition]) -> ToolCall:
    schema = next((tool.parameters for tool in tools if tool.name == call.name), None)
    if schema is None:
        return call
    return call.model_copy(update={"arguments": restore_names(call.arguments, schema)})
