"""
Reads tool calls that a model has written into the text of its answer, while the answer streams. Pure. Servers
without the model's template, and small models, give calls as text. An answer that consists of calls to
offered tools after plain words counts; words after a tagged call are dropped as invented. Inside a line or
fence, without tags, with unknown names, or copied from the prompt (perhaps a stranger's) it is talk about
calls. Text is held back from a line start that may begin a call.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from agent_core.models import Message, ToolCall

_TAGS = (
    "<tool_call",
    "<function=",
    "<function_call",
    "<invoke name=",
    "<|tool_call",
    "<|python_tag|>",
    "<｜tool▁call",
    "[TOOL_CALLS]",
    "functools[",
)
"""Of Hermes and Qwen, Llama, MiniMax, Phi and Kimi, Llama, DeepSeek, Mistral, Phi."""
_JSON = ('{"', "{'", "{\n", "{ ", "[{", "[\n")
_FENCES = ("```", "~~~")
_BEGINNINGS = (*_TAGS, *_JSON, *_FENCES)
_LONGEST = max(map(len, _BEGINNINGS))
_BLANK = re.compile(r"\s*")
_WRAPPERS = re.compile(
    r"(?:</?(?:tool_calls?|function_calls?|function|invoke)>|<\|/?(?:tool_calls?|python_tag|eom_id|eot_id"
    r"|im_end|tool_calls?_(?:section_)?(?:begin|end))\|>|</?｜tool▁calls?▁(?:begin|end)｜>"
    r"|\[/?TOOL_CALLS\]|functools(?=\[)|```|[;,\s])*"
)
_NAMED = re.compile(
    r"(?:function<｜tool▁sep｜>)?(?:functions\.)?([\w.-]{1,64}+)(?::\d{1,9})?\s{0,9}"
    r"(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\]|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|\s)(?:```json)?\s{0,9}(?=\{)"
)
_FUNCTION = re.compile(r"<(?:function=|invoke name=\"?)([\w.-]{1,64})\"?>\s*")
_PARAMETER = re.compile(r"<parameter(?:=| name=\"?)([\w.-]{1,64})\"?>\n?(.*?)\n?</parameter>\s*", re.DOTALL)
_GLM_NAME = re.compile(r"([\w.-]{1,64})\s{0,9}(?=<arg_key>)")
_GLM_PAIR = re.compile(
    r"<arg_key>([^<>]{1,64})</arg_key>\s{0,9}<arg_value>(.*?)</arg_value>\s{0,9}", re.DOTALL
)
_BEGUN = re.compile(
    r"[\[{\s]{1,20}(?:[\"']type[\"']\s{0,9}:\s{0,9}[\"']function[\"']\s{0,9},\s{0,9}[\"']function[\"']\s{0,9}:\s{0,9}\{"
    r"\s{0,9})?[\"'](?:name|function|tool|tool_name)[\"']\s{0,9}:\s{0,9}[\"']([\w.-]{1,64})[\"']\s{0,9},\s{0,9}"
    r"[\"'](?:arguments|parameters|args|input|tool_input)[\"']\s{0,9}:"
)
"""A call without a tag, as far as that can be read of one that is broken."""
_NAMES = ("name", "function", "tool", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "tool_input")


class WrittenCalls:
    """Reads one answer's pieces and returns what may be shown; text copied from ``prompt`` is no call."""

    def __init__(self, names: Collection[str], prompt: Sequence[Message] = ()) -> None:
        self._names = frozenset(names)
        self._prompt = prompt
        self._held = ""
        self._holding = False
        self._at_line_start = True
        self._fenced = False

    @property
    def count_held_characters(self) -> int:
        """Return the number of characters held back."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Take a piece and return what can be shown now."""
        if not self._names:
            return text
        if self._holding:
            self._held += text
            return ""
        data, self._held = self._held + text, ""
        at = 0
        while at < len(data):
            if not self._at_line_start:
                end = data.find("\n", at)
                at = len(data) if end < 0 else end
                self._at_line_start = end >= 0
                if end < 0:
                    break
            begins = _end_of_blank(data, at)
            line = data[begins : begins + _LONGEST]
            if any(one.startswith(line) and one != line for one in _BEGINNINGS):
                break  # more is needed to tell
            if line.startswith(_FENCES):
                self._fenced = not self._fenced
            elif not self._fenced and line.startswith(_BEGINNINGS):
                self._holding = True
                break
            self._at_line_start = False
            at = begins + 1
        self._held = data[at:]
        return data[:at]

    def flush(self) -> tuple[str, list[ToolCall]]:
        """
        Return the held-back text that is talk, and the calls that the answer ends with.

        Of calls that cannot be read it is one that is `ToolCall.unreadable`.
        """
        held, self._held = self._held, ""
        text = held.strip()
        if not self._holding or not text:
            return held, []
        found, behind = _calls_in(text)
        is_talk = not found or any(name not in self._names for name, _ in found) or self._is_copied(text)
        tagged = text.startswith(_TAGS)
        begun = None if found or tagged else _BEGUN.match(text)
        if behind and (begun or (tagged and (not found or behind[0] in "{[<"))):
            named = [begun[1]] if begun else sorted(self._names)
            offered = next((name for name in named if name in self._names and name in text), None)
            if offered is None or self._is_copied(text):
                return held, []
            problem = "a tool call in the text cannot be read"
            return "", [ToolCall(id="call_0", name=offered, unreadable=problem)]
        if is_talk or (behind and (not tagged or self._is_asked_about(text))):
            return held, []
        calls = [
            ToolCall(id=f"call_{number}", name=name, arguments=arguments)
            for number, (name, arguments) in enumerate(found)
        ]
        return "", calls

    def _is_asked_about(self, text: str) -> bool:
        """Return True if the question shows the tag with which a text begins, so that it is talk."""
        asked = next((each.content for each in reversed(self._prompt) if each.role == "user"), "")
        return any(tag in asked for tag in _TAGS if text.startswith(tag))

    def _is_copied(self, text: str) -> bool:
        """Return True if a message of another role contains the same text, ignoring blanks."""
        bare = "".join(text.split())
        return any(
            bare in "".join(message.content.split())
            for message in self._prompt
            if message.role != "assistant"
        )


def _calls_in(text: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """The names and arguments of the calls that a text begins with, and what stands behind them."""
    found: list[tuple[str, dict[str, Any]]] = []
    at = _end_of_wrappers(text, 0)
    try:
        while at < len(text):
            end, one = _one_at(text, at)
            found += one
            at = _end_of_wrappers(text, end)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return found, text[at:]
    return found, ""


def _one_at(text: str, at: int) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
    """Parse the calls that begin at a position; return the end and the calls. Raises ValueError."""
    if text[at] in "[{":
        value, end = _value_at(text, at)
        return end, [_call_of(one) for one in (value if isinstance(value, list) else [value])]
    if function := _FUNCTION.match(text, at):
        return _body_of(text, function.end(), function[1])
    if named := _NAMED.match(text, at):
        value, end = _value_at(text, named.end())
        return end, [(named[1], _object(value))]
    if name := _GLM_NAME.match(text, at):
        return _pairs_at(text, name.end(), name[1], _GLM_PAIR)
    raise ValueError("no call")


def _body_of(text: str, at: int, name: str) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
    """The arguments of ``<function=NAME>``: an object, or parameters with tags of their own."""
    if text[at : at + 1] == "{":
        value, end = _value_at(text, at)
        return end, [(name, _object(value))]
    return _pairs_at(text, at, name, _PARAMETER)


def _pairs_at(
    text: str, at: int, name: str, form: re.Pattern[str]
) -> tuple[int, list[tuple[str, dict[str, Any]]]]:
    arguments: dict[str, Any] = {}
    while pair := form.match(text, at):
        arguments[pair[1].strip()] = _plain(pair[2])
        at = pair.end()
    return at, [(name, arguments)]


def _plain(text: str) -> Any:
    """The value of a parameter that is written without quotes: text, unless it is plainly something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, str) else value


def _value_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at a position, or Python's way to write one, and where it ends."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, at)
    except ValueError:
        end = max(text.rfind("}"), text.rfind("]")) + 1
        return ast.literal_eval(text[at:end]), end


def _call_of(value: object) -> tuple[str, dict[str, Any]]:
    """The call that an object is. Raises `ValueError`: it is none."""
    told = _object(value)
    if told.get("type") == "function" and isinstance(told.get("function"), dict):
        told = told["function"]
    name = next((told[key] for key in _NAMES if isinstance(told.get(key), str)), "")
    given = next((told[key] for key in _ARGUMENTS if key in told), None)
    if not name or given is None:
        raise ValueError("no call")
    return name, _object(json.loads(given) if isinstance(given, str) else given)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("no object")
    return json.loads(json.dumps(value, allow_nan=False))  # type: ignore[no-any-return]


def _end_of_blank(data: str, at: int) -> int:
    found = _BLANK.match(data, at)
    return at if found is None else found.end()


def _end_of_wrappers(text: str, at: int) -> int:
    found = _WRAPPERS.match(text, at)
    return at if found is None else found.end()
