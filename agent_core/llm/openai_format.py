"""
The OpenAI chat format, which both clients speak: writes our messages, reads pieces of answers. Pure. An
answer arrives as a row of `Piece`s (some text, some fragments of tool calls, at the end the usage), and an
`Assembler` turns the row into text and complete `ToolCall`s. Servers differ in how they cut tool calls up:
most number them by ``index``, some leave the number out or give every call the number 0, some send a call in
one piece and the arguments as an object; all of that is accepted. Arguments that are no JSON object spoil the
calls of the answer: none of them is made, and the model is told why.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agent_core.llm.reasoning import ReasoningFilter, ReasoningHabit
from agent_core.llm.tool_schemas import complete_schema
from agent_core.llm.wire import Pictures, WireMessage, encodable, wire_messages
from agent_core.models import Message, ToolCall, ToolDefinition

_UNSIGNED = "skip_thought_signature_validator"
_CHARS_PER_TOKEN = 4
_REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks")
"""Fields in which providers give a model's own reasoning, and want it back."""
_MAX_TOKENS = 1_000_000_000
"""A larger count is none: no answer has it, and no database column holds it."""


@dataclass(frozen=True, slots=True)
class ToolFragment:
    """A part of a tool call: ``arguments`` is appended to what came before under the same index."""

    index: int | None
    id: str
    name: str
    arguments: str
    signature: str = ""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """
    The tokens of an answer, as the server reports them. ``cached`` is the cached part of ``prompt``,
    ``thinking`` the hidden part of ``completion``.
    """

    prompt: int
    completion: int
    cached: int = 0
    thinking: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """
    One chunk of an answer, or a whole one. ``finish`` is set on the last with content.

    ``noise`` marks bytes that are no chunk: ``keep-alive`` (comments, blanks) or ``part`` (incomplete).
    """

    text: str = ""
    fragments: tuple[ToolFragment, ...] = ()
    tokens: TokenCounts | None = None
    finish: str | None = None
    cost_usd: float | None = None
    noise: Literal["", "keep-alive", "part"] = ""
    thought: int = 0
    """Characters of hidden thinking."""
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    """The part of the model's own reasoning, in the provider's fields."""
    refused: bool = False
    """The text is a refusal."""


# ── out ──


def bare_model_name(model: str) -> str:
    """The model's name for an OpenAI-compatible server: without the ``openai/`` of the configuration."""
    return model.removeprefix("openai/")


def request_body(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[ToolDefinition],
    *,
    stream: bool,
    max_tokens: int | None = None,
    extra: Mapping[str, Any] | None = None,
    pictures: Pictures | None = None,
    own_name: str = "",
    signed: bool = False,
    marked: bool = False,
) -> dict[str, Any]:
    """
    Build a request; ``extra`` wins. Reasoning written by ``own_name`` is sent back.

    ``signed`` returns signatures of tool calls, ``marked`` adds cache marks. ``pictures`` are media type and
    content by `Attachment.sha256`; other attachments become a note.
    """
    shaped = wire_messages(messages, pictures or {}, own_name or model)
    # Moonshot and DeepSeek refuse what is of this turn without the field, whoever made it.
    thinks = any("reasoning_content" in each.reasoning for each in shaped)
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(each, signed=signed, thinks=thinks) for each in shaped],
    }
    if tools:
        body["tools"] = function_tools(tools)
        if messages and messages[-1].ends_tools:
            body["tool_choice"] = "none"
    if marked:
        _add_cache_control(body, shaped)
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    body["stream"] = stream
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body | dict(extra or {})


def function_tools(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """The definitions of tools, as OpenAI's protocol and Ollama's have them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": complete_schema(tool.parameters),
            },
        }
        for tool in tools
    ]


CACHE_CONTROL = {"cache_control": {"type": "ephemeral"}}


def cached_places(shaped: Sequence[WireMessage]) -> set[int]:
    """
    Return the indices of the messages after which an explicit cache mark is set.

    These are the system text, the last message of the history (the question has volatile facts), and the
    results of tools, for the next step of this turn.
    """
    kept = [number for number, message in enumerate(shaped) if message.is_kept]
    places = {0} if shaped and shaped[0].role == "system" else set()
    places |= {kept[-1]} if kept else set()
    return places | ({len(shaped) - 1} if shaped and shaped[-1].role == "tool" else set())


def _add_cache_control(body: dict[str, Any], shaped: Sequence[WireMessage]) -> None:
    """Mark `cached_places`, and the end of the tools."""
    if body.get("tools"):
        body["tools"][-1] |= CACHE_CONTROL
    for number in cached_places(shaped):
        out = body["messages"][number]
        content = out["content"]
        if out["role"] == "tool":
            out |= CACHE_CONTROL  # the result as a whole; a part of one cannot be marked
        elif isinstance(content, str):
            out["content"] = [{"type": "text", "text": content} | CACHE_CONTROL]
        else:
            out["content"] = [*content[:-1], content[-1] | CACHE_CONTROL]


def _message(message: WireMessage, *, signed: bool, thinks: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if thinks and message.role == "assistant" and not message.is_kept:
        out["reasoning_content"] = " "
    if message.calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": encodable(json.dumps(call.arguments))},
                **(_signature(call) if signed else {}),
            }
            for call in message.calls
        ]
    if message.role == "tool":
        out["tool_call_id"] = message.call_id
    return {**out, **message.reasoning}


def _content(message: WireMessage) -> str | list[dict[str, Any]]:
    """Text and pictures as content parts; one text where there is nothing to look at."""
    if not message.pictures:
        return message.text
    parts: list[dict[str, Any]] = [{"type": "text", "text": message.text}] if message.text else []
    for media_type, content in message.pictures:
        address = f"data:{media_type};base64,{base64.b64encode(content).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": address}})
    return parts


def _signature(call: ToolCall) -> dict[str, Any]:
    """Build the field that carries Gemini's thought signature; another model's call gets the dummy value."""
    return {"extra_content": {"google": {"thought_signature": call.signature or _UNSIGNED}}}


# ── in ──


def parse_piece(data: Mapping[str, Any]) -> Piece:
    """Read one chunk of a stream, or one whole answer. Raises `ValueError`: it is neither."""
    choices = data.get("choices")
    if not isinstance(choices, list):
        if isinstance(data.get("usage"), dict):
            return Piece(tokens=_tokens(data["usage"]), cost_usd=_cost(data["usage"]))
        raise ValueError("an answer without choices")
    tokens = _tokens(data.get("usage"))
    if not choices:
        return Piece(tokens=tokens, cost_usd=_cost(data.get("usage")))
    choice = choices[0]
    if not isinstance(choice, dict):
        raise ValueError("a choice that is not an object")  # noqa: TRY004 - about content, not types
    body = choice.get("delta") or choice.get("message") or {}
    if not isinstance(body, dict):
        raise ValueError("a delta that is not an object")  # noqa: TRY004 - likewise
    refusal = body.get("refusal")
    refusal = refusal if isinstance(refusal, str) else ""
    return Piece(
        text=_text(body.get("content")) or refusal,
        refused=bool(refusal),
        fragments=tuple(_fragments(body.get("tool_calls"))),
        tokens=tokens,
        finish=choice.get("finish_reason") or None,
        cost_usd=_cost(data.get("usage")),
        thought=_thought(body),
        reasoning={name: body[name] for name in _REASONING if body.get(name)},
    )


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in _parts(content) if _is_said(part))


def _parts(content: object) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _is_said(part: Mapping[str, Any]) -> bool:
    """Return True if a part of an answer is text for a person rather than reasoning."""
    return part.get("type", "text") in ("text", "output_text")


def _thought(body: Mapping[str, Any]) -> int:
    """Count the characters of reasoning that came outside of the text."""
    fields = (body.get(name) for name in ("reasoning_content", "reasoning"))
    told = next((len(text) for text in fields if isinstance(text, str) and text), 0)
    return told + sum(len(str(part)) for part in _parts(body.get("content")) if not _is_said(part))


def _fragments(calls: object) -> Iterator[ToolFragment]:
    for call in calls if isinstance(calls, list) else []:
        if not isinstance(call, dict):
            continue
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments")
        index = call.get("index")
        yield ToolFragment(
            index=index if isinstance(index, int) else None,
            id=str(call.get("id") or ""),
            name=str(function.get("name") or ""),
            arguments=arguments
            if isinstance(arguments, str)
            else ""
            if arguments is None
            else json.dumps(arguments),
            signature=_signature_in(call),
        )


def _signature_in(call: Mapping[str, Any]) -> str:
    found: object = call
    for key in ("extra_content", "google", "thought_signature"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


def _cost(usage: object) -> float | None:
    """Return the cost in US dollars that the provider reports, if it is plausible."""
    cost = usage.get("cost") if isinstance(usage, dict) else None
    return float(cost) if isinstance(cost, int | float) and 0 <= cost < _MAX_TOKENS else None


def _tokens(usage: object) -> TokenCounts | None:
    if not isinstance(usage, dict):
        return None
    prompt = token_count(usage.get("prompt_tokens"))
    completion = token_count(usage.get("completion_tokens"))
    # Some count hidden thinking in the total alone.
    completion = max(completion, token_count(usage.get("total_tokens")) - prompt)
    cached = _detail(usage, "prompt_tokens_details", "cached_tokens")
    return TokenCounts(
        prompt=prompt,
        completion=completion,
        cached=min(cached or token_count(usage.get("prompt_cache_hit_tokens")), prompt),
        thinking=min(_detail(usage, "completion_tokens_details", "reasoning_tokens"), completion),
    )


def _detail(usage: Mapping[str, Any], group: str, name: str) -> int:
    details = usage.get(group)
    return token_count(details.get(name)) if isinstance(details, dict) else 0


def token_count(value: object) -> int:
    """A number of tokens from a server; 0 if it is invalid."""
    return value if isinstance(value, int) and 0 <= value <= _MAX_TOKENS else 0


class TextJoiner:
    """
    Repairs pieces of text: an emoji may arrive as two halves in two pieces, and half an emoji cannot be
    written to any file. Halves are joined; a lonely one becomes the replacement character.
    """

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        """Take a piece and return the complete text."""
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return encodable(text)

    def flush(self) -> str:
        """The text that is left at the end."""
        half, self._half = self._half, ""
        return encodable(half)


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str]
    signature: str = ""


class Assembler:
    """Collects the pieces of one answer."""

    def __init__(self, habit: ReasoningHabit | None = None) -> None:
        self._joiner = TextJoiner()
        self._thoughts = ReasoningFilter(habit or ReasoningHabit())
        self._thought = 0
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._reasoning: dict[str, list[Any]] = {}
        self.tokens: TokenCounts | None = None
        self.cost_usd: float | None = None
        self.finish: str | None = None
        self.refused = False

    def feed(self, piece: Piece) -> str:
        """Take a piece and return the text that can be shown now."""
        for fragment in piece.fragments:
            self._add(fragment)
        self.tokens = piece.tokens or self.tokens
        self.cost_usd = piece.cost_usd if piece.cost_usd is not None else self.cost_usd
        self.finish = piece.finish or self.finish
        self.refused = self.refused or piece.refused
        self._thought += piece.thought
        for name, part in piece.reasoning.items():
            self._reasoning.setdefault(name, []).append(part)
        return self._thoughts.feed(self._joiner.feed(piece.text))

    def flush(self) -> str:
        """The text that was held back, at the end."""
        return self._thoughts.feed(self._joiner.flush()) + self._thoughts.flush()

    @property
    def leaked_tool_calls(self) -> bool:
        """Return True if text that was already returned has turned out to be reasoning."""
        return self._thoughts.leaked

    def usage(self) -> TokenCounts | None:
        """The usage of the answer; reasoning that the server does not count is estimated by its length."""
        thought = self._thought + self._thoughts.hidden
        if self.tokens is None or self.tokens.thinking or not thought:
            return self.tokens
        estimate = min(-(-thought // _CHARS_PER_TOKEN), self.tokens.completion)
        return replace(self.tokens, thinking=estimate)

    def _add(self, fragment: ToolFragment) -> None:
        call = self._open_call(fragment)
        if call is None:
            call = _Call("", "", [])
            self._calls.append(call)
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        call.id = call.id or fragment.id
        call.name = call.name or fragment.name
        call.signature = call.signature or fragment.signature
        call.arguments.append(fragment.arguments)

    def _open_call(self, fragment: ToolFragment) -> _Call | None:
        """Return the call that a fragment continues, by its id, then index; None for a new one."""
        if fragment.id and not fragment.name:
            known = next((one for one in self._calls if one.id == fragment.id), None)
            if known is not None:
                return known
        if fragment.index is not None:
            call = self._by_index.get(fragment.index)
            if call is None and len(self._calls) == 1 and not (fragment.id or fragment.name):
                call = self._calls[0]  # Nebius counts the pieces of a call as if each were one
        else:
            call = self._calls[-1] if self._calls else None
        is_other = call is not None and bool(fragment.id and call.id) and fragment.id != call.id
        if not fragment.name and (is_other or (call is None and not fragment.id)):
            raise ValueError("a part of a tool call that belongs to none")
        unnumbered = not fragment.id and (fragment.index is None or _is_whole(call, fragment))
        begins = call is not None and bool(fragment.name and call.name) and (is_other or unnumbered)
        return None if begins else call

    def calls(self) -> list[ToolCall]:
        """Return the complete calls in order, with distinct ids. Raises ValueError if one has no name."""
        out: list[ToolCall] = []
        seen: set[str] = set()
        problem = ""
        for number, call in enumerate(self._calls):
            name = call.id or f"call_{number}"
            name = name if name not in seen else f"{name}_{number}"
            seen.add(name)
            if not call.name:
                raise ValueError("a tool call without a name")
            signature = call.signature if len(call.signature) <= 100_000 else ""
            arguments: dict[str, Any] = {}
            try:
                arguments = _arguments("".join(call.arguments))
            except ValueError as error:
                problem = str(error)
            out.append(ToolCall(id=name, name=call.name, arguments=arguments, signature=signature))
        return [call.model_copy(update={"unreadable": problem}) for call in out] if problem else out

    def reasoning(self) -> dict[str, Any]:
        """The model's own reasoning, in the provider's fields; empty if it gave none."""
        return {
            name: "".join(parts) if isinstance(parts[0], str) else _joined_details(parts)
            for name, parts in self._reasoning.items()
        }


def _is_whole(call: _Call | None, fragment: ToolFragment) -> bool:
    """Return True if a fragment begins a second object behind a whole one, whatever its number says."""
    try:
        return (
            fragment.arguments.startswith("{")
            and call is not None
            and bool(_arguments("".join(call.arguments)))
        )
    except ValueError:
        return False


def _arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments of a tool call are no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("the arguments of a tool call are no JSON object")  # noqa: TRY004 - about content
    return value


def _joined_details(parts: Sequence[Any]) -> list[Any]:
    """Blocks of reasoning, with the pieces of each joined: texts are appended, other fields replaced."""
    blocks: list[Any] = []
    for part in (each for group in parts if isinstance(group, list) for each in group):
        last = blocks[-1] if blocks else None
        if not isinstance(part, dict) or not isinstance(last, dict) or not _goes_on(last, part):
            blocks.append(dict(part) if isinstance(part, dict) else part)
            continue
        for key, value in part.items():
            grows = key in ("text", "summary", "thinking", "data") and isinstance(value, str)
            last[key] = str(last.get(key) or "") + value if grows else value
    return blocks


def _goes_on(block: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Return True if a piece continues a block of reasoning that is not signed yet."""
    return not block.get("signature") and all(block.get(key) == part.get(key) for key in ("type", "index"))
