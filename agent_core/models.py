"""
The values of a conversation with a model: messages, tool calls, chunks, usage, turns. Frozen, no I/O.
`Message` is at once an element of a prompt and a line of the history: the two must be able to become each
other without loss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from agent_core.messages import Attachment, Audience, SessionKey
from agent_core.provenance import Origin, Origins, person

Role = Literal["system", "user", "assistant", "tool"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ToolCall(_Frozen):
    """
    A model's request to run a tool. ``signature`` is the proof of it that its provider wants back.

    ``unreadable`` says why its answer's calls cannot be made; the model is told that instead of a result.
    """

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    signature: str = ""
    unreadable: str = ""


class Reasoning(_Frozen):
    """
    A model's own reasoning behind an answer, in the fields of its provider.

    Only this model gets it back, within the turn: several providers refuse tool calls without it.
    """

    model: str
    fields: dict[str, Any]


class Message(_Frozen):
    """
    One message of a conversation.

    ``id``, ``turn``, ``timestamp``, ``sender`` and ``scope`` are set on messages of the history. Ids are
    deterministic (turn and number), so that a line written twice after a crash is recognised; readers drop
    repetitions. ``scope`` is the `MemoryScope` of the turn as text: who could read along when it was said.
    ``attachments`` are the files that came with it, or went out with it; in a prompt, the pictures that a
    model is shown. ``origins`` are whose words it is made of besides the owner's; None: that was not noted.
    ``found`` names the deferred tools that may be used from then on (`agent_core.tools.deferred`).
    ``undoes`` is the turn, or the id of the one line, that this one takes back
    (`withdrawn_ids`).
    ``reasoning`` goes back to its model within a turn. ``ends_tools``: no tool may be called after this.
    """

    role: Role
    content: str
    id: str | None = None
    turn: str | None = None
    timestamp: AwareDatetime | None = None
    sender: str | None = None
    scope: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    attachments: tuple[Attachment, ...] = ()
    origins: Origins | None = None
    found: tuple[str, ...] = ()
    undoes: str = ""
    reasoning: Reasoning | None = None
    ends_tools: bool = False

    @property
    def sources(self) -> Origins:
        """Return the `origins`; for a line without them, the owner or an allowed person."""
        if self.origins is not None:
            return self.origins
        if self.role in {"system", "tool"} or self.scope == ScopeKind.OWNER.value:
            return ()
        return (person(self.sender or "somebody", self.timestamp),)


def tool_parameters(*required: str, **properties: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON Schema of a tool's arguments: each a schema, or the name of a type ("string")."""
    schemas = {name: {"type": it} if isinstance(it, str) else it for name, it in properties.items()}
    found: dict[str, Any] = {"type": "object", "properties": schemas}
    return {**found, "required": list(required)} if required else found


class ToolDefinition(_Frozen):
    """
    The definition of a tool for a model. ``parameters`` is a JSON Schema of type object. ``origins`` are
    whose words the definition is made of besides the program's.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    origins: Origins = ()

    @cached_property
    def as_text(self) -> str:
        """The definition as one text, to estimate its length."""
        return self.name + self.description + json.dumps(self.parameters)

    @property
    def text(self) -> str:
        """The definition as one text, to look for words in."""
        return f"{self.name} {self.description} {json.dumps(self.parameters, ensure_ascii=False)}"


class ToolResult(_Frozen):
    """
    The result of a tool. The model gets ``is_error`` results too, so that it can correct itself.

    ``attachments`` are files that go out with the answer of the turn. ``origins`` are whose words the content
    is made of besides the owner's. ``undo`` says how a person takes the effect back, in a few words or as a
    command. ``is_unknown``: the tool was cut off, so nobody knows whether it had its effect.
    ``found`` names the deferred tools that may be called from now on. ``pictures`` are shown to models that
    look at pictures. ``addresses`` are those that a search has found; None: all that stand in the content.
    """

    content: str
    is_error: bool = False
    tool_call_id: str = ""
    attachments: tuple[Attachment, ...] = ()
    origins: Origins = ()
    undo: str = ""
    is_unknown: bool = False
    found: tuple[str, ...] = ()
    pictures: tuple[Attachment, ...] = ()
    addresses: tuple[str, ...] | None = None


class Usage(_Frozen):
    """
    Tokens and money of model calls; ``+`` adds. ``cost_usd`` is None where unknown.

    ``cached_tokens`` are part of the prompt, ``thinking_tokens`` (shown to nobody) of the completion.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    thinking_tokens: int = 0
    calls: int = 0
    cost_usd: float | None = None
    model: str = ""

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            thinking_tokens=self.thinking_tokens + other.thinking_tokens,
            calls=self.calls + other.calls,
            cost_usd=sum(costs) if costs else None,
            model=other.model or self.model,
        )


class AnswerEnd(_Frozen):
    """
    The end of an answer. ``is_cut``: the output limit ended it in the middle of its text; ``is_refusal``: the
    provider marks the text as the words of a model that does not do it.
    """

    is_cut: bool = False
    is_refusal: bool = False
    reasoning: Reasoning | None = None


ModelChunk = str | ToolCall | Usage | AnswerEnd
"""A piece of a model's answer: text as it comes, then complete tool calls, then usage and end, if known."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """
    A model's answer. ``usage`` is None if the server did not report it; ``is_cut``: the output limit ended
    the text; ``reasoning`` goes back to the model within the turn; ``loaded`` are the deferred tools that it
    could call.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    is_cut: bool = False
    reasoning: Reasoning | None = None
    loaded: tuple[str, ...] = ()


class Purpose(StrEnum):
    """The purpose that tokens are spent on; usage and budgets are recorded by it."""

    CHAT = "chat"
    HEARTBEAT = "heartbeat"
    JOB = "job"
    """What somebody has scheduled."""
    BACKGROUND = "background"
    """Background jobs."""
    CONSOLIDATION = "consolidation"
    SPEECH = "speech"
    """Answers that are spoken."""
    IMAGE = "image"
    """Pictures that are made."""


class ScopeKind(StrEnum):
    """The kind of owner of a session's memory document."""

    OWNER = "owner"
    PERSON = "person"
    ROOM = "room"


@dataclass(frozen=True, slots=True)
class MemoryScope:
    """
    The key of one memory document.

    ``name`` is empty for the owner; a person's address, with the account after a blank if that matters; or
    the text of a room's session key.
    """

    kind: ScopeKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value

    @classmethod
    def parse(cls, text: str) -> MemoryScope:
        """Read ``owner``, ``person:ADDRESS`` or ``room:SESSION``. Raises ValueError."""
        kind, _, name = text.partition(":")
        scope = cls(ScopeKind(kind), name)
        if str(scope) != text or bool(name) == (scope.kind is ScopeKind.OWNER):
            raise ValueError(f"not the name of a memory: {text!r}")
        return scope


@dataclass(frozen=True, slots=True)
class MemoryDocument:
    """
    A memory document's text and version, 0 if never written.

    ``origins`` exclude the owner and the people it belongs to.
    """

    text: str = ""
    version: int = 0
    origins: Origins = ()


@dataclass(frozen=True, slots=True)
class HistoryTail:
    """
    The newest messages of a session, oldest first.

    ``unconsolidated`` counts all messages after the cursor, ``total`` all of the session, also those that
    were not read. ``skipped_lines`` are lines that could not be read: counted, reported, never fatal.
    ``positions`` has one number for each message: a cursor of that value would stand just before it. A line
    that cannot be read keeps its position, so the numbers may have gaps, and ``total`` counts positions.
    ``complete`` says that no message was left out because of a limit. ``summary`` is the session summary at
    the very moment of ``cursor``, so that nothing is in both or in neither; None where a storage does not
    read the two at once. ``private`` are the scopes of single people whose words are in the summary, and
    ``origins`` all whose words are in it besides the owner's.
    """

    messages: tuple[Message, ...] = ()
    total: int = 0
    unconsolidated: int = 0
    skipped_lines: int = 0
    complete: bool = True
    cursor: int = 0
    positions: tuple[int, ...] = ()
    summary: str | None = None
    private: frozenset[str] = frozenset()
    origins: Origins = ()


@dataclass(frozen=True, slots=True)
class SearchHit:
    """
    A found message with its neighbours; ``at`` is its place among them, ``position`` in the history.

    ``part`` returns of the one at a place the sentence that was found, or "".
    """

    session_id: str
    messages: Sequence[Message]
    at: int
    position: int = 0
    part: Callable[[int], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """
    The hits of a search, best first, and the least number of ``more``.

    ``complete`` is False while older messages cannot be searched yet.
    """

    hits: tuple[SearchHit, ...] = ()
    complete: bool = True
    more: int = 0


@dataclass(frozen=True, slots=True)
class Session:
    """
    A conversation as a turn sees it; ``id`` is ``str(key)``.

    ``scope`` (its memory document) follows from its readers, outside of the model's reach.
    """

    key: SessionKey
    scope: MemoryScope
    audience: Audience = Audience.DIRECT
    purpose: Purpose = Purpose.CHAT
    turn: str = ""
    """Id of the turn in hand; ids of history lines are made from it."""
    attachments: tuple[Attachment, ...] = ()
    """The files that came with the messages of this turn."""
    since: datetime | None = None
    """Who asks came then, and is shown nothing of what was said before; None: everything may be shown."""
    origins: Origins = ()
    """Whose words the question is made of, besides the owner's."""
    account: str = ""
    """The bot's own address there."""
    quotes: tuple[tuple[str, Origin], ...] = ()
    """What the question quotes of the bot or of nobody known, with its origin if the prompt has it not."""
    trusted_before: datetime | None = None
    """What came in before then is fine: a person who may has said so (`provenance.since`)."""
    room: str = ""
    """What a shared room is called and who is in it, for the system text (`prompt.room_text`)."""
    named: Origins = ()
    """Whose names that contains."""
    manner: str = ""
    """The manner that the owner has set for it, for the system text (`persona.manner_text`)."""

    @property
    def id(self) -> str:
        """The session key as text, the name of the session for every port."""
        return str(self.key)


@dataclass(frozen=True, slots=True)
class Skill:
    """A SKILL.md in the index. ``missing`` lists the requirements that this machine lacks."""

    name: str
    description: str
    always: bool = False
    location: str = ""
    missing: tuple[str, ...] = ()

    @property
    def available(self) -> bool:
        """Return True if this machine meets the skill's requirements."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class TurnResult:
    """The result of a turn: the answer, history lines, cost, tools, and files in order."""

    reply: str
    history: tuple[Message, ...]
    usage: Usage = field(default_factory=Usage)
    tool_runs: int = 0
    steps: int = 0
    attachments: tuple[Attachment, ...] = ()


def withdrawn_ids(messages: Iterable[Message]) -> frozenset[str]:
    """
    The turns, and the ids of single lines, that lines among these withdraw (`Message.undoes`).

    The history keeps withdrawn messages (``!undo``, ``!retry``, a deletion by their sender); no prompt,
    summary or search contains them. The withdrawing line is newer, so the newest lines contain both.
    """
    return frozenset(message.undoes for message in messages if message.undoes)


def in_force(messages: Sequence[Message], undone: Collection[str] | None = None) -> Sequence[Message]:
    """The messages without the withdrawn ones, and without the lines that withdraw them."""
    gone = withdrawn_ids(messages) if undone is None else undone
    if not gone:
        return messages
    return [each for each in messages if not each.undoes and not is_undone(each, gone)]


def is_undone(message: Message, undone: Collection[str]) -> bool:
    """True if a message is among those that were withdrawn."""
    return message.turn in undone or message.id in undone
