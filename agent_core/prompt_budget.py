"""
The size limit of a prompt: an estimate of tokens, and the rules by which text and history are cut to fit. No
tokenizer runs, as it would cost more memory than the rest of the program: letters and spaces count four to a
token, digits and punctuation 0.65 tokens each, other scripts by UTF-8 length. That is 0.9 to 1.9 times cl100k
(0.7 for random hex and rare Chinese); reported usage corrects it by a slow, bounded factor. A cut history
keeps the newest messages and starts with a question.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agent_core.messages import Attachment
from agent_core.models import Message, ToolDefinition

PICTURE_TOKENS = 1_300
"""What a picture takes: between 85 and 1,600 by provider and size, most of them near this."""

_MESSAGE_OVERHEAD_TOKENS = 4
_MESSAGE_OVERHEAD_CHARS = 16
_LETTERS_AND_SPACE = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n\t"
_DENSE = 0.65
_TWO_BYTES = 1.0
_THREE_BYTES = 1.4
_FOUR_BYTES = 2.8
_EMPTY_USER_TEXT = "(no text)"
_PICTURE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def _other_scripts(text: str, chars: int, plain: int) -> float:
    """Tokens of the characters beyond ASCII: two, three and four bytes of UTF-8 weigh differently."""
    four = len(text.encode("utf-16-le", "surrogatepass")) // 2 - len(text)
    three = len(text.encode("utf-8", "surrogatepass")) - plain - 2 * chars - 2 * four
    two = chars - three - four
    return two * _TWO_BYTES + three * _THREE_BYTES + four * _FOUR_BYTES


def _count(text: str) -> tuple[int, float]:
    """Return the number of letters and spaces of a text, and the estimated tokens of its other characters."""
    plain = text.encode("ascii", "ignore")
    dense = len(plain.translate(None, _LETTERS_AND_SPACE))
    others = dense * _DENSE
    if len(plain) < len(text):
        others += _other_scripts(text, len(text) - len(plain), len(plain))
    return len(plain) - dense, others


def message_chars(message: Message) -> int:
    """Return the characters a message adds to a prompt, including its tool calls."""
    return _MESSAGE_OVERHEAD_CHARS + len(message.content) + sum(len(text) for text in _call_texts(message))


def _call_texts(message: Message) -> list[str]:
    texts = [call.name + json.dumps(call.arguments, default=str) for call in message.tool_calls]
    return texts if message.reasoning is None else [*texts, json.dumps(message.reasoning.fields, default=str)]


_MARGIN = 1.1
"""Guesses are multiplied by this, because too long is worse than too short."""


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """Estimates the tokens of texts; ``factor`` is learned, see `corrected`."""

    chars_per_token: float = 4.0
    factor: float = 1.0

    def text(self, text: str) -> int:
        """Tokens of a text; 0 only for an empty one."""
        if not text:
            return 0
        letters, others = _count(text)
        tokens = letters / self.chars_per_token + others
        return max(1, int(tokens * _MARGIN * self.factor + 0.999))

    def max_tokens(self, chars: int) -> int:
        """The largest number of tokens of a text of so many characters, without looking at it."""
        return int(chars * _FOUR_BYTES * _MARGIN * self.factor) + 1

    def safe_chars(self, tokens: int) -> int:
        """Return a number of characters of which no text has more than ``tokens``, without reading it."""
        return max(0, int(tokens / (_FOUR_BYTES * _MARGIN * self.factor)) - 1)

    def message(self, message: Message) -> int:
        """Tokens of a message with its frame, its tool calls and its pictures."""
        return next(self.per_message((message,)))

    def per_message(self, messages: Iterable[Message]) -> Iterator[int]:
        """`message` for one after the other."""
        for message in messages:
            tokens = _MESSAGE_OVERHEAD_TOKENS + self.text(message.content)
            tokens += PICTURE_TOKENS * len(message.attachments)
            if message.tool_calls:
                tokens += sum(self.text(text) for text in _call_texts(message))
            yield tokens

    def definitions(self, tools: Iterable[ToolDefinition]) -> int:
        """Tokens of the tool definitions."""
        return sum(self.text(tool.as_text) for tool in tools)

    def request(self, messages: Iterable[Message], tools: Iterable[ToolDefinition] = ()) -> int:
        """Tokens of a whole request."""
        return sum(self.per_message(messages)) + self.definitions(tools)

    def chars(self, tokens: int) -> int:
        """About how many characters of the cheapest text fit into ``tokens``: an upper limit for reading."""
        return max(0, int(tokens * self.chars_per_token / (_MARGIN * self.factor)))

    def correct(self, estimated: int, actual: int) -> TokenEstimate:
        """
        The estimate after a request of ``estimated`` tokens turned out to have ``actual``.

        Moves a fifth of the way, and never far from the start: one odd report changes little.
        """
        if estimated <= 0 or actual <= 0:
            return self
        # The margin is wanted: experience is compared with the guess without it.
        seen = self.factor * actual * _MARGIN / estimated
        moved = self.factor + (seen - self.factor) / 5
        return replace(self, factor=min(3.0, max(0.5, moved)))


def clip(text: str, max_tokens: int, estimate: TokenEstimate) -> str:
    """
    The text, or its beginning and its end with a note between them, within ``max_tokens``.

    The note itself is not counted. Lines are not respected: this is the emergency exit for what is far
    too long, not a way to shorten prose.
    """
    if estimate.max_tokens(len(text)) <= max_tokens or (tokens := estimate.text(text)) <= max_tokens:
        return text
    keep = int(len(text) * max(0, max_tokens) / tokens)
    while keep > 0 and estimate.text(text[: keep - keep // 3] + text[len(text) - keep // 3 :]) > max_tokens:
        keep = keep * 9 // 10
    head, tail = keep - keep // 3, keep // 3
    note = f"[… {len(text) - keep} characters left out …]"
    return "\n".join(part for part in (text[:head], note, text[len(text) - tail :]) if part)


@dataclass(frozen=True, slots=True)
class PromptWindow:
    """The part of a history that fits. ``left_out`` counts the messages before it that do not."""

    messages: tuple[Message, ...]
    left_out: int = 0


def fit_window(messages: Sequence[Message], max_tokens: int, estimate: TokenEstimate) -> PromptWindow:
    """The newest messages within ``max_tokens``; if any had to go, the first one left is a user's."""
    used = 0
    start = len(messages)
    for tokens in estimate.per_message(reversed(messages)):
        used += tokens
        if used > max_tokens:
            break
        start -= 1
    if start > 0:
        start = _next_question(messages, start)
    return PromptWindow(tuple(messages[start:]), left_out=start)


def _next_question(messages: Sequence[Message], start: int) -> int:
    while start < len(messages) and messages[start].role != "user":
        start += 1
    return start


def valid_history(messages: Sequence[Message]) -> list[Message]:
    """
    The messages in a form that every provider accepts, whatever a crash left in the file.

    Tool results without their call and calls without their results go (the texts stay), and so do answers
    without any text and lines of role system, which no history of ours has. A question without text says so.
    """
    answered = _answered_calls(messages)
    sound: list[Message] = []
    open_calls: set[str] = set()
    for message in messages:
        match message.role:
            case "user":
                open_calls.clear()
                blank = not message.content.strip()
                sound.append(message.model_copy(update={"content": _EMPTY_USER_TEXT}) if blank else message)
            case "assistant" if not message.tool_calls:
                open_calls.clear()
                if message.content.strip():
                    sound.append(message)
            case "assistant":
                calls = tuple(call for call in message.tool_calls if (id(message), call.id) in answered)
                open_calls = {call.id for call in calls}
                if calls or message.content.strip():
                    changed = len(calls) != len(message.tool_calls)
                    sound.append(message.model_copy(update={"tool_calls": calls}) if changed else message)
            case "tool" if message.tool_call_id in open_calls:
                open_calls.discard(message.tool_call_id)
                sound.append(message)
    return sound


def is_picture(attachment: Attachment) -> bool:
    """Return True for a picture of a type that models accept."""
    return attachment.media_type in _PICTURE_TYPES


def with_newest_pictures(messages: Sequence[Message], most: int, scope: str) -> list[Message]:
    """
    The messages with the ``most`` newest pictures of people, and no other attachments.

    A picture from a turn with another ``scope`` is not shown again: others could read along then, or can now.
    """
    kept: list[Message] = []
    for message in reversed(messages):
        if message.attachments:
            shown = message.role == "user" and message.scope == scope
            pictures = [file for file in message.attachments if shown and is_picture(file)]
            pictures = pictures[max(0, len(pictures) - most) :]
            most -= len(pictures)
            message = message.model_copy(update={"attachments": tuple(pictures)})  # noqa: PLW2901
        kept.append(message)
    return kept[::-1]


def _answered_calls(messages: Sequence[Message]) -> set[tuple[int, str]]:
    """Return the calls whose result follows before any message of another role."""
    answered: set[tuple[int, str]] = set()
    caller: Message | None = None
    for message in messages:
        if message.role == "tool":
            if caller is not None and message.tool_call_id is not None:
                answered.add((id(caller), message.tool_call_id))
        else:
            caller = message if message.tool_calls else None
    return answered
