"""
Streams one answer from its first byte to its end, under time limits of our own, because the libraries' are
not reliable. Reads server-sent events (WHATWG HTML, 9.2.6) and lines; any piece is activity, keep-alives are
not. Tool calls are handed out only with a complete answer, and the connection is always closed. After text
was handed out a temporary error becomes `StreamBroken`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import dataclass

import anyio

from agent_core.errors import ModelError, ModelRateLimited, ModelUnavailable, ModelUnreadable, StreamBroken
from agent_core.language import gettext_noop
from agent_core.llm.model_errors import empty_answer, endless_answer, repeating_answer
from agent_core.llm.openai_format import Assembler, Piece
from agent_core.llm.reasoning import ReasoningHabit
from agent_core.llm.written_calls import WrittenCalls
from agent_core.models import AnswerEnd, Message, ModelChunk, Reasoning, ToolCall, Usage
from agent_core.text import is_visible

_PIECE_LIMIT_S = 20.0
"""From the first byte of a piece to its last: a network has pauses, a model has none there."""
_FRAGMENT_CHARS = 16
"""What a fragment of a tool call counts besides its arguments: calls without any end somewhere, too."""


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """
    The limits of one answer.

    ``first_token_s`` runs until the first piece of a streamed answer (a whole one has ``total_s``, unless the
    server sends keep-alives), ``idle_s`` between pieces, ``total_s`` for all; ``max_chars`` counts text and
    tool calls.
    """

    first_token_s: float = 55.0
    idle_s: float = 55.0
    total_s: float = 600.0
    max_chars: int = 400_000


async def answer(
    pieces: AsyncGenerator[Piece, None],
    *,
    limits: AnswerLimits,
    model: str,
    stream: bool,
    habit: ReasoningHabit | None = None,
    tools: Collection[str] = (),
    prompt: Sequence[Message] = (),
) -> AsyncGenerator[ModelChunk, None]:
    """
    Stream the text without reasoning, then complete tool calls, then the usage if reported.

    ``habit`` is the known way of the model's reasoning, updated here.

    Raises:
        ModelUnavailable: Nothing arrived in time.
        ModelUnreadable: The answer was too slow.
        StreamBroken: It broke off after text was handed out; temporary.
        ModelRefused: It exceeded the limits, or was empty.
        ModelError: Raised by ``pieces``.
    """
    assembler = Assembler(habit)
    written = WrittenCalls(tools, prompt)
    loops = _Loops(model)
    text: list[str] = []
    length = wanted = 0
    patience = _Patience(limits, model, stream=stream)
    try:
        while (piece := await patience.next_piece(pieces)) is not None:
            wanted += sum(_FRAGMENT_CHARS + len(fragment.arguments) for fragment in piece.fragments)
            if len(piece.text) > limits.max_chars:
                raise endless_answer(model, f"{limits.max_chars} characters")
            said = assembler.feed(piece)
            loops.feed(said)
            if shown := written.feed(said):
                text.append(shown)
                length += len(shown)
                yield shown
            if assembler.leaked_tool_calls:
                raise StreamBroken(f"{model}: what came first was thinking", partial="", model=model)
            if length + wanted + written.count_held_characters > limits.max_chars:
                raise endless_answer(model, f"{limits.max_chars} characters")
        shown = written.feed(assembler.flush())
        rest, calls = written.flush()
        if shown := shown + rest:
            text.append(shown)
            length += len(shown)
            yield shown
        for chunk in _ending(assembler, model, "".join(text), calls):
            yield chunk
    except (ModelUnavailable, ModelRateLimited) as error:
        raise _broken(error, text, model, begun=patience.begun) from error
    except ValueError as error:
        raise ModelUnreadable(f"{model}: {error}", kind="malformed", model=model) from error
    finally:
        with anyio.move_on_after(2.0, shield=True):
            await pieces.aclose()


class _Patience:
    """Waits for the pieces of one answer, and says what it is if the next one does not come."""

    def __init__(self, limits: AnswerLimits, model: str, *, stream: bool) -> None:
        self._limits = limits
        self._model = model
        self._began = anyio.current_time()
        self._deadline = self._began + limits.total_s
        self._first_by = min(self._deadline, self._began + limits.first_token_s)
        self._next_by = self._first_by if stream else self._deadline
        self.begun = False

    async def next_piece(self, pieces: AsyncGenerator[Piece, None]) -> Piece | None:
        """The next piece that is more than noise; None at the end."""
        noise: set[str] = set()
        while True:
            with anyio.move_on_after(max(self._next_by - anyio.current_time(), 0.0)) as scope:
                piece = await anext(pieces, None)
            if scope.cancelled_caught:
                raise self._too_late(heard=bool(noise))
            if piece is None or not piece.noise:
                break
            if piece.noise == "part" and "part" not in noise:
                limit_s = min(self._limits.idle_s, _PIECE_LIMIT_S)
                self._next_by = min(self._next_by, anyio.current_time() + limit_s)
            elif piece.noise == "keep-alive" and not self.begun:
                self._next_by = min(self._next_by, self._first_by)
            noise.add(piece.noise)
        self.begun = True
        self._next_by = min(self._deadline, anyio.current_time() + self._limits.idle_s)
        return piece

    def _too_late(self, *, heard: bool) -> ModelError:
        if self.begun and anyio.current_time() >= self._deadline:
            return endless_answer(self._model, f"{self._limits.total_s:g} s")
        took_s = anyio.current_time() - self._began
        text = f"{self._model}: no piece of an answer was complete in time, after {took_s:.3g} s"
        if heard:
            return ModelUnreadable(text, kind="slow", model=self._model)
        return ModelUnavailable(text, model=self._model, timed_out=True)


def _broken(error: ModelError, text: list[str], model: str, *, begun: bool) -> ModelError:
    """The error, marked ``in_answer`` if the answer had begun: it may come from the answer itself."""
    more = {"model": model, "status": error.fields.get("status"), "in_answer": True}
    if text:
        return StreamBroken(str(error), partial="".join(text), **more)
    error.fields |= more if begun else {}
    return error


_LOOP_CHARS = 6_000
_LOOP_PERIOD = 400


class _Loops:
    """Ends an answer that says the same thing over and over: small models do, until somebody stops them."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tail = ""
        self._unread = 0

    def feed(self, text: str) -> None:
        """Take a piece. Raises `ModelRefused`: the last thousands of characters repeat a few."""
        self._tail = (self._tail + text)[-_LOOP_CHARS:]
        self._unread += len(text)
        if self._unread < _LOOP_PERIOD or len(self._tail) < _LOOP_CHARS:
            return
        self._unread = 0
        end = self._tail[-_LOOP_PERIOD:]
        before = self._tail.rfind(end, 0, -1)
        period = len(self._tail) - _LOOP_PERIOD - before
        if before >= 0 and period <= _LOOP_PERIOD and self._tail[period:] == self._tail[:-period]:
            raise repeating_answer(self._model)


_FINISHED = frozenset(
    {"stop", "tool_calls", "function_call", "tool_use", "end_turn", "stop_sequence", "eos", "eos_token"}
)
_CUT = frozenset({"length", "max_tokens", "model_length", "max_output_tokens"})
_WITHHELD = frozenset(
    {"content_filter", "safety", "sensitive", "refusal", "prohibited_content", "recitation"}
)
_BROKEN = frozenset(
    {
        *("error", "network_error", "insufficient_system_resource", "abort", "aborted", "cancelled"),
        *("malformed_function_call", "malformed_response", "unexpected_tool_call"),
    }
)
"""Of OpenRouter, Z.AI, DeepSeek, vLLM and Gemini."""


def _ending(assembler: Assembler, model: str, text: str, written: Sequence[ToolCall]) -> list[ModelChunk]:
    """Return the chunks after the text, with ``written`` calls that can be read or stand alone."""
    finish = (assembler.finish or "").lower()
    try:
        calls = assembler.calls()
        calls += [call for call in written if not (calls and call.unreadable)]
    except ValueError:
        if finish not in _CUT:
            raise
        calls, finish = [], "length" if text else "cut call"
    if finish in _CUT and any(call.unreadable for call in calls):
        calls, finish = [], "length" if text else "cut call"
    if finish in _WITHHELD or (not calls and not is_visible(text)):
        raise empty_answer(model, "content_filter" if finish in _WITHHELD else finish)
    if (calls and finish in _CUT) or finish == "cut call":
        raise empty_answer(model, "cut call")
    if finish in _BROKEN or (calls and finish not in _FINISHED):
        public = gettext_noop("The language model could not finish its answer.")
        raise ModelUnavailable(f"{model}: the answer ended with {finish!r}", public=public, model=model)
    reasoning = assembler.reasoning() if calls else {}
    end = AnswerEnd(
        is_cut=finish in _CUT,
        is_refusal=assembler.refused,
        reasoning=Reasoning(model=model, fields=reasoning) if reasoning else None,
    )
    chunks: list[ModelChunk] = list(calls)
    tokens = assembler.usage()
    if tokens is not None:
        chunks.append(
            Usage(
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.completion,
                cached_tokens=tokens.cached,
                thinking_tokens=tokens.thinking,
                calls=1,
                cost_usd=assembler.cost_usd,
                model=model,
            )
        )
    return chunks if end == AnswerEnd() else [*chunks, end]


_MAX_EVENT_BYTES = 4 * 1024 * 1024


class EventTooLarge(ValueError):
    """An event is too large."""


class SseDecoder:
    """Splits bytes into the data of complete events. Comments are dropped."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """The line in hand, in pieces: joined once, however small the bites in which it comes."""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """Take bytes and yield the data of complete events. Raises TooLarge over 4 MiB, or ValueError."""
        first, *others = data.split(b"\n")
        self._begun.append(first)
        self._size += len(first)
        if others:
            lines = [b"".join(self._begun), *others]
            self._begun = [lines.pop()]
            for raw in lines:
                line = raw.removesuffix(b"\r")
                if line.startswith(b"data:"):
                    self._data.append(line[5:].removeprefix(b" "))
                elif not line and self._data:
                    event, self._data = b"\n".join(self._data), []
                    yield event.decode()
            self._size = len(self._begun[0]) + sum(map(len, self._data))
        if self._size > _MAX_EVENT_BYTES:
            raise EventTooLarge("an event that does not end")

    @property
    def in_part(self) -> bool:
        """Return True if a part of an event has been read; comments do not count."""
        begun = next((piece[:1] for piece in self._begun if piece), b"")
        return bool(self._data) or begun not in (b"", b":", b"\r")

    def flush(self) -> Iterator[str]:
        """The event that was not closed by an empty line before the stream ended, if any."""
        yield from self.feed(b"\n\n")


class LineDecoder:
    """Splits bytes into lines, each of which is one JSON value (NDJSON)."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """Take bytes and return each line that they complete. Raises as `SseDecoder.feed` does."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = (bytes(self._begun) + line).strip()
            self._begun.clear()
            if whole:
                yield whole.decode()
        self._begun += rest
        if len(self._begun) > _MAX_EVENT_BYTES:
            raise EventTooLarge("a line that does not end")

    @property
    def in_part(self) -> bool:
        """Return True if a part of a line has been read."""
        return bool(self._begun.strip())

    def flush(self) -> Iterator[str]:
        """The last line, if nothing ends it."""
        yield from self.feed(b"\n")
