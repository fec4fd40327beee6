"""
The demo model: it answers by rules, and provokes failures on request, so that everything else can be tried
and tested.

It is deterministic: the same conversation gets the same answer. What it can do:

- greet, say what it is, thank and say goodbye; anything else it gives back in a friendly way;
- ``remember that …`` and ``my name is …`` write the fact into the memory document with ``memory_write``,
  beside what is there;
- ``what do you know about me?`` tells the document; a question with a word of it finds the line, or what was
  said earlier;
- ``remind me in 2 minutes to …`` (``tomorrow at 09:00 to …``) makes a job with ``schedule``;
- ``forget …`` takes out the lines that contain the rest;
- ``read https://example.org/ into notes.txt and count its words`` fetches a page, writes a file of it, and
  runs a command; without the last four words it runs none;
- ``!sendfile PATH`` sends a file of the workspace (in backticks, if there are blanks in the path), without a
  path the attachment of the message; ``!readfile`` tells what is in the attachment, or in an earlier one with
  ``!readfile ID``; a message with files and no such word is answered with their names;
- asked to consolidate a conversation, it picks the sentences that tell most.

Magic words make it fail. A number after the word says how many times in a row (``always``: each time);
after that the same message is answered, which shows what retrying does.

=================  ====================================================================== ========
word               what happens                                                            times
=================  ====================================================================== ========
``!timeout``       the model does not answer (`ModelUnavailable`)                          2
``!ratelimit``     it has too many requests and says to wait two seconds                   1
``!cut``           the connection breaks in the middle of the answer                       1
``!toolong``       the conversation is too long for it                                     1
``!auth``          it does not accept the key                                              always
``!empty``         an answer with nothing in it                                            always
``!crash``         a defect: an exception that nobody has foreseen                         always
``!toolfail``      it calls a tool that does not exist, and tells what came of it
``!garbage``       it calls a tool with arguments that are no JSON, and is told so
``!endless``       an answer that never ends
``!slow``          it thinks for three seconds, or as many as the number says
``!long``          an answer of 20,000 characters, or as many as the number says
=================  ====================================================================== ========

`EchoModel` only echoes, at once: for tests and measurements.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import anyio

from agent_core.errors import (
    ContextTooLong,
    ModelAuthFailed,
    ModelRateLimited,
    ModelUnavailable,
    StreamBroken,
)
from agent_core.llm.demo.consolidation import demo_summary
from agent_core.llm.demo.rules import DemoReply, last_user_text, magic_word_in, question_in, reply_to
from agent_core.llm.model_errors import empty_answer
from agent_core.models import Message, ModelChunk, ToolCall, ToolDefinition, Usage

_ALWAYS = 1_000_000
_FAILS = {
    "timeout": 2,
    "ratelimit": 1,
    "cut": 1,
    "toolong": 1,
    "auth": _ALWAYS,
    "empty": _ALWAYS,
    "crash": _ALWAYS,
}
_CHARS_PER_TOKEN = 4
_CUT_TEXT = "I was just about to"


class DemoModel:
    """An `LLMPort` that answers by rules."""

    def __init__(self) -> None:
        self._tries: dict[str, int] = {}

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Answer; see `LLMPort`."""
        return self._answer(list(messages), [tool.name for tool in tools], stream=stream)

    async def _answer(
        self, messages: Sequence[Message], tools: Sequence[str], *, stream: bool
    ) -> AsyncGenerator[ModelChunk, None]:
        reply = self._reply(messages, tools)
        if reply.wait_s:
            await anyio.sleep(reply.wait_s)
        if reply.error is not None and not reply.text:
            raise reply.error
        size = 12 if stream else max(len(reply.text), 1)
        for start in range(0, len(reply.text), size):
            yield reply.text[start : start + size]
        if reply.error is not None:
            raise reply.error
        while reply.endless:
            await anyio.sleep(0.05)
            yield "and on "
        for call in reply.calls:
            yield call
        yield _usage(messages, reply)

    def _reply(self, messages: Sequence[Message], tools: Sequence[str]) -> DemoReply:
        if (summary := demo_summary(messages)) is not None:
            return DemoReply(summary)
        text = question_in(messages)
        magic = magic_word_in(text)
        if magic is not None and messages[-1].role != "tool":
            return self._magic(*magic, text, tools)
        return reply_to(messages, tools)

    def _magic(self, word: str, number: str | None, text: str, tools: Sequence[str]) -> DemoReply:
        if word in _FAILS:
            times = _ALWAYS if number == "always" else int(number) if number else _FAILS[word]
            return self._failing(word, times, text)
        amount = int(number) if number and number != "always" else None
        match word:
            case "toolfail":
                return DemoReply("Let me try something. ", (ToolCall(id="demo_1", name="demo_broken_tool"),))
            case "garbage":
                told = "the arguments of a tool call are no JSON"
                return DemoReply(calls=(ToolCall(id="demo_1", name="memory_write", unreadable=told),))
            case "endless":
                return DemoReply("It goes on ", endless=True)
            case "slow":
                return DemoReply(
                    "There you are; that took a while.", wait_s=3.0 if amount is None else amount
                )
        line = "This line is one of many, because a long answer was wanted.\n"
        size = amount or 20_000
        return DemoReply((line * (size // len(line) + 1))[:size])

    def _failing(self, word: str, times: int, text: str) -> DemoReply:
        """Fail ``times`` times for the same message, then answer and start again."""
        tried = self._tries.pop(text, 0)
        if tried >= times:
            return DemoReply(
                f"It works again: I failed {tried} {'time' if tried == 1 else 'times'}, as you wanted."
            )
        while len(self._tries) >= 256:
            del self._tries[next(iter(self._tries))]
        self._tries[text] = tried + 1
        return DemoReply(_CUT_TEXT if word == "cut" else "", error=_failure(word))


class EchoModel:
    """An `LLMPort` that answers ``echo: …`` with the last user message, at once."""

    async def chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, stream: bool = True
    ) -> AsyncIterator[ModelChunk]:
        """Answer; see `LLMPort`."""
        return self._answer(messages)

    async def _answer(self, messages: Sequence[Message]) -> AsyncGenerator[ModelChunk, None]:
        reply = DemoReply(f"echo: {last_user_text(messages)}")
        yield reply.text
        yield _usage(messages, reply)


def _failure(word: str) -> Exception:
    failures = {
        "timeout": ModelUnavailable("demo: no answer in time, as asked", model="demo"),
        "ratelimit": ModelRateLimited("demo: 429, as asked", retry_after_s=2.0, model="demo"),
        "cut": StreamBroken("demo: cut off, as asked", partial=_CUT_TEXT, model="demo"),
        "toolong": ContextTooLong("demo: too long, as asked", model="demo"),
        "auth": ModelAuthFailed("demo: 401, as asked", model="demo", operator=True),
        "empty": empty_answer("demo", "stop"),
        "crash": RuntimeError("the demo model crashed, as asked"),
    }
    return failures[word]


def _usage(messages: Sequence[Message], reply: DemoReply) -> Usage:
    read = sum(len(message.content) for message in messages)
    written = len(reply.text) + sum(len(str(call.arguments)) for call in reply.calls)
    return Usage(
        prompt_tokens=read // _CHARS_PER_TOKEN + 1,
        completion_tokens=written // _CHARS_PER_TOKEN + 1,
        calls=1,
        cost_usd=0.0,
        model="demo",
    )
