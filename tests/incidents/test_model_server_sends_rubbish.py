"""
A model server that sent rubbish counted as one that is away: the same rubbish was fetched 4 to 12 times in 75
seconds, the question waited for an hour, and nobody said a word. What cannot be read twice is final.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_core.agent.loop import ask
from agent_core.errors import ModelError, ModelUnavailable, ModelUnreadable
from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.openai_format import Piece
from agent_core.llm.pools import ModelPool
from agent_core.llm.streaming import AnswerLimits, answer
from agent_core.messages import OutboundKind
from agent_core.models import Message
from tests.clock import LoopClock
from tests.doubles.loopback import LoopbackChannel, LoopbackServer
from tests.doubles.openai_server import Cut, FakeOpenAI, Raw, Say, Status, bound
from tests.integration.gateway_world import world

pytestmark = pytest.mark.slow

ASK = [Message(role="user", content="hello")]
Writes = Callable[[asyncio.StreamWriter], Awaitable[None]]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
GOOD = json.dumps({"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}).encode()


async def huge(writer: asyncio.StreamWriter) -> None:
    """200 MB of one string."""
    writer.write(WHOLE + b'{"choices": [{"message": {"content": "')
    for _ in range(3200):
        writer.write(b"x" * 65_536)
        await writer.drain()


async def huge_stream(writer: asyncio.StreamWriter) -> None:
    """200 MB of events that say nothing."""
    event = b'data: {"choices": [], "padding": "' + b"x" * 65_536 + b'"}\n\n'
    writer.write(STREAM)
    for _ in range(3200):
        writer.write(event)
        await writer.drain()


async def comments(writer: asyncio.StreamWriter) -> None:
    """Comments as fast as they are taken."""
    writer.write(STREAM)
    while True:
        writer.write(b": still here\n\n" * 1000)
        await writer.drain()


async def slow_comments(writer: asyncio.StreamWriter) -> None:
    """A comment now and then, and never anything else."""
    writer.write(STREAM)
    while True:
        writer.write(b": still here\n\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def slow_event(writer: asyncio.StreamWriter) -> None:
    """One event, a byte at a time, without end."""
    writer.write(STREAM + b"data: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def slow_whole(writer: asyncio.StreamWriter) -> None:
    """One object, a byte at a time, without end."""
    writer.write(WHOLE + b'{"choices": "')
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def slow_blanks(writer: asyncio.StreamWriter) -> None:
    """Blanks, and never anything else."""
    writer.write(WHOLE)
    while True:
        writer.write(b"\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def slow_refusal(writer: asyncio.StreamWriter) -> None:
    """A refusal whose text never ends."""
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


def sends(head: bytes, body: bytes = b"") -> Writes:
    """A server that sends this and closes."""

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(head + body)
        await writer.drain()

    return send


PACKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
AWAY_TO = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/v1\r\nContent-Length: 0\r\n\r\n"
RUBBISH: dict[str, tuple[Writes, str]] = {
    "200 MB": (huge, "too long for me"),
    "200 MB streamed": (huge_stream, "too long for me"),
    "packed": (sends(PACKED, gzip.compress(GOOD)), "compressed"),
    "packed bomb": (sends(PACKED, gzip.compress(bytes(50_000_000))), "compressed"),
    "endless comments": (comments, "too long for me"),
    "slow comments": (slow_comments, "too slowly"),
    "slow event": (slow_event, "too slowly"),
    "deep": (sends(WHOLE, b"[" * 200_000), "not a valid answer"),
    "deep streamed": (sends(STREAM, b"data: " + b"[" * 200_000 + b"\n\n"), "not a valid answer"),
    "deep object": (
        sends(WHOLE, b'{"choices":[{"message":{"content":' + b"[" * 900 + b"]" * 900 + b"}}]}"),
        "empty",
    ),
    "redirect": (sends(AWAY_TO), "redirects me"),
    "broken JSON": (sends(WHOLE, b'{"choices": [{"mess'), "not a valid answer"),
    "broken JSON streamed": (sends(STREAM, b'data: {"choices": [{"del\n\n'), "not a valid answer"),
    "a page": (sends(WHOLE.replace(b"json", b"html"), b"<html>Welcome"), "not a valid answer"),
    "no text": (sends(WHOLE, b"\xff\xfe\xfd"), "not a valid answer"),
    "no HTTP": (sends(b"\x16\x03\x01 hello\r\n\r\n"), "not a valid answer"),
    "endless headers": (sends(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000), "not a valid answer"),
    "number of 6,000 digits": (
        sends(WHOLE, GOOD[:-1] + b', "usage": {"prompt_tokens": ' + b"9" * 6000 + b"}}"),
        "",
    ),
}


class Hostile:
    """A server on loopback that answers every request with the same rubbish; counts the questions."""

    def __init__(self, writes: Writes) -> None:
        self.asked = 0
        self.at_work: set[asyncio.Task[None] | None] = set()
        self._writes = writes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_work.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            await reader.readexactly(length)
            self.asked += head.startswith(b"POST")
            await self._writes(writer)
        self.at_work.discard(asyncio.current_task())


@asynccontextmanager
async def hostile(writes: Writes) -> AsyncIterator[tuple[Hostile, str]]:
    """The server and its ``api_base``."""
    one = Hostile(writes)
    server = await asyncio.start_server(one.serve, sock=bound(0))
    try:
        yield one, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        left = [task for task in one.at_work if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def llm(*bases: str, **model: Any) -> dict[str, Any]:
    """One pool with a model at each address."""
    names = [f"m{number}" for number in range(len(bases))]
    limits = {"first_token_timeout_s": 0.8, "idle_timeout_s": 0.8, "total_timeout_s": 20.0}
    return {
        "providers": {name: {"api_base": base} for name, base in zip(names, bases, strict=True)},
        "models": {name: {"provider": name, "model": "openai/m"} | limits | model for name in names},
        "pools": {"main": names},
    }


@pytest.mark.parametrize("kind", RUBBISH)
async def test_rubbish_ends_in_one_apology_that_names_it(kind: str, tmp_path: Path) -> None:
    """After two requests at the most there is a word, and nothing is asked behind it."""
    writes, words = RUBBISH[kind]
    async with (
        hostile(writes) as (server, api_base),
        world(tmp_path, settings={"llm": llm(api_base)}) as there,
    ):
        told = await there.asked("hello", within_s=60)

        if words:
            assert told.kind is OutboundKind.APOLOGY
            assert words in told.text
        else:
            assert (told.kind, told.text) == (OutboundKind.REPLY, "fine")
        assert server.asked <= 2
        assert "127.0.0.1" not in told.text


async def test_the_next_model_answers(tmp_path: Path) -> None:
    """Rubbish of one model is nobody's end while another one can answer."""
    async with (
        hostile(RUBBISH["broken JSON"][0]) as (server, bad),
        hostile(sends(WHOLE, GOOD)) as (_, good),
        world(tmp_path, settings={"llm": llm(bad, good)}) as there,
    ):
        told = await there.asked("hello")

        assert (told.kind, told.text) == (OutboundKind.REPLY, "fine")
        assert server.asked == 1


async def test_rubbish_and_silence_by_turns(tmp_path: Path) -> None:
    """What is lost between two answers of one kind makes them no less rubbish."""
    rubbish = Raw(b"<html>")
    async with FakeOpenAI() as fake, world(tmp_path, settings={"llm": llm(fake.api_base)}) as there:
        fake.plan(rubbish, Status(503), rubbish, Status(503), rubbish, Status(503))
        told = await there.asked("hello", within_s=60)

        assert told.kind is OutboundKind.APOLOGY
        assert "not a valid answer" in told.text
        assert len(fake.requests) == 3


async def test_one_bad_answer_is_a_hiccup(tmp_path: Path) -> None:
    """The second one counts if it can be read."""
    async with FakeOpenAI() as fake, world(tmp_path, settings={"llm": llm(fake.api_base)}) as there:
        fake.plan(Raw(b"<html>"), Say("fine"))

        assert (await there.asked("hello")).text == "fine"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [(Status(503), ModelUnavailable), (Cut(), ModelUnavailable), (Raw(b"{}"), ModelUnreadable)],
    ids=["503", "cut", "control"],
)
async def test_what_is_away_is_still_waited_for(reply: Any, kind: type[ModelError]) -> None:
    """A server that fails, or a connection that is cut, stays temporary."""
    async with FakeOpenAI() as fake:
        fake.plan(reply, reply)
        client = OpenAIClient("openai/m", api_base=fake.api_base, clock=LoopClock())
        with pytest.raises(kind) as caught:
            await ask(ModelPool("main", [("m", client)], LoopClock()), ASK, [], stream=True, max_chars=100)
        await client.aclose()

        assert caught.value.temporary is (kind is ModelUnavailable)


@pytest.mark.parametrize("streamed", [True, False])
async def test_rubbish_after_text_is_rubbish(streamed: bool) -> None:
    """What comes behind the first words is not excused by them."""
    event = b'data: {"choices":[{"delta":{"content":"so far"}}]}\n\ndata: {"cho\n\n'
    async with hostile(sends(STREAM, event)) as (server, api_base):
        client = OpenAIClient("openai/m", api_base=api_base, clock=LoopClock())
        with pytest.raises(ModelUnreadable):
            await ask(
                ModelPool("main", [("m", client)], LoopClock()), ASK, [], stream=streamed, max_chars=100
            )
        await client.aclose()

        assert server.asked == 2


@pytest.mark.parametrize("writes", [slow_whole, slow_refusal])
async def test_a_whole_answer_may_not_drip(writes: Writes) -> None:
    """Once a whole answer has begun it comes within the limit of a pause; a refusal is one without its text."""
    limits = AnswerLimits(first_token_s=50, idle_s=0.5, total_s=50)
    async with hostile(writes) as (server, api_base):
        client = OpenAIClient("openai/m", api_base=api_base, clock=LoopClock(), limits=limits)
        with anyio.fail_after(20), pytest.raises(ModelError) as caught:
            await ask(ModelPool("main", [("m", client)], LoopClock()), ASK, [], stream=False, max_chars=100)
        await client.aclose()

        assert not caught.value.temporary
        assert server.asked == 1


@pytest.mark.virtual_time
class TestLimits:
    """How long each slow kind takes, with the limits as they are by default and on virtual time."""

    @pytest.mark.parametrize(
        ("steps", "stream", "within_s"),
        [
            (["keep-alive"], True, 55),
            (["part"], True, 22),
            (["keep-alive", "part"], True, 55),
            (["text", "keep-alive"], True, 57),
            (["text", "part"], True, 22),
            (["part"], False, 22),
            (["keep-alive"], False, 55),
            (["keep-alive", "part"], False, 55),
        ],
    )
    async def test_it_ends_within_its_limit(self, steps: list[str], stream: bool, within_s: float) -> None:
        """The first steps once, the last one each second for ever; there is a word within a minute."""

        async def pieces() -> Any:
            for step in steps[:-1]:
                yield Piece("x") if step == "text" else Piece(noise=step)  # type: ignore[arg-type]
            while True:
                await anyio.sleep(1)
                yield Piece(noise=steps[-1])  # type: ignore[arg-type]

        began = anyio.current_time()
        with pytest.raises(ModelUnreadable) as caught:
            async for _ in answer(pieces(), limits=AnswerLimits(), model="m", stream=stream):
                pass

        assert anyio.current_time() - began <= within_s + 1 < 60
        assert caught.value.kind == "slow"

    async def test_waiting_at_the_door_is_no_rubbish(self) -> None:
        """A server that says nothing at all is away, and one that keeps alive and then answers is fine."""

        async def silent() -> Any:
            await anyio.sleep(1000)
            yield Piece("late")

        async def patient() -> Any:
            for _ in range(50):
                await anyio.sleep(1)
                yield Piece(noise="keep-alive")
            yield Piece("there", finish="stop")

        with pytest.raises(ModelUnavailable):
            async for _ in answer(silent(), limits=AnswerLimits(), model="m", stream=True):
                pass
        said = [c async for c in answer(patient(), limits=AnswerLimits(), model="m", stream=True)]
        assert said == ["there"]

    @pytest.mark.parametrize("stream", [True, False])
    async def test_who_may_think_for_minutes_does(self, stream: bool) -> None:
        """Keep-alives count up to the limit that is configured, and whatever it is, no longer."""

        async def thinks() -> Any:
            for _ in range(290):
                await anyio.sleep(1)
                yield Piece(noise="keep-alive")
            yield Piece("there", finish="stop")

        limits = AnswerLimits(first_token_s=300)
        assert [c async for c in answer(thinks(), limits=limits, model="m", stream=stream)] == ["there"]
        with pytest.raises(ModelUnreadable):
            async for _ in answer(thinks(), limits=AnswerLimits(), model="m", stream=stream):
                pass

    async def test_a_whole_answer_is_waited_for_in_silence(self) -> None:
        """Where nothing is to come before everything does, silence is no sign of anything."""

        async def writes() -> Any:
            await anyio.sleep(500)
            yield Piece("there", finish="stop")

        said = [c async for c in answer(writes(), limits=AnswerLimits(), model="m", stream=False)]
        assert said == ["there"]


@pytest.mark.parametrize(
    ("model", "api_base", "more", "first_token_s"),
    [
        ("openai/gpt-4o", "", {}, 55),
        ("openai/gpt-5", "", {}, 300),
        ("openai/gpt-5", "", {"reasoning_effort": "minimal"}, 55),
        ("openai/gpt-5", "", {"first_token_timeout_s": 20}, 20),
        ("anthropic/claude-sonnet-4-5", "", {}, 55),
        ("anthropic/claude-sonnet-4-5", "", {"reasoning_effort": "high"}, 300),
        ("ollama/qwen3", "", {}, 300),
        ("openai/qwen3", "http://192.168.1.5:8080/v1", {}, 300),
        ("openai/qwen3", "http://nas:8080/v1", {}, 300),
        ("openai/qwen3", "https://models.example.org/v1", {}, 55),
    ],
)
def test_how_long_the_first_token_may_take(
    model: str, api_base: str, more: dict[str, Any], first_token_s: float
) -> None:
    """By default it is short, except where a good server may take minutes."""
    spec = LLMSpec.model_validate(
        {
            "providers": {"p": {"api_base": api_base, "api_key": "k"}},
            "models": {"m": {"provider": "p", "model": model, **more}},
            "pools": {"main": ["m"]},
        }
    )
    [client] = build_models(spec, LoopClock())._clients

    assert client._limits.first_token_s == first_token_s  # type: ignore[attr-defined]


@pytest.mark.parametrize("writes", [slow_blanks, slow_comments, slow_whole])
async def test_who_reads_no_unfinished_answers_is_told_as_soon(writes: Writes, tmp_path: Path) -> None:
    """A channel without previews, such as email, asked for whole answers, which blanks prolonged to 600 s."""
    far = LoopbackServer()
    channel = LoopbackChannel(far, email_style=True)
    async with (
        hostile(writes) as (server, api_base),
        world(
            tmp_path,
            server=far,
            settings={"llm": llm(api_base)},
            channels={"loopback": (channel, "each")},
        ) as there,
    ):
        told = await there.asked("hello", within_s=60)

        assert told.kind is OutboundKind.APOLOGY
        assert "too slowly" in told.text
        assert server.asked == 1
