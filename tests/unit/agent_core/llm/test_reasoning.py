"""What a model thinks reaches nobody: not the person, not the preview, not the history, not the memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.agent.loop import ask
from agent_core.llm.factory import build_models
from agent_core.llm.model_config import LLMSpec
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.openai_format import Piece, parse_piece
from agent_core.llm.pools import ModelPool
from agent_core.llm.providers import adapt_request, endpoint_of
from agent_core.llm.reasoning import ReasoningFilter, ReasoningHabit
from agent_core.llm.streaming import AnswerLimits, answer
from agent_core.models import Message, Usage
from tests.clock import LoopClock, ManualClock
from tests.doubles.openai_server import FakeOpenAI, Raw, Say
from tests.integration.gateway_world import world
from tests.rows import rows

ASK = [Message(role="user", content="hi")]
THOUGHT = "CANARY-IN-THE-COAL-MINE"


def shown(pieces: Sequence[str], habit: ReasoningHabit | None = None) -> str:
    """What is shown of these pieces, if nothing leaked."""
    thoughts = ReasoningFilter(habit or ReasoningHabit())
    out = "".join(thoughts.feed(piece) for piece in pieces) + thoughts.flush()
    assert not thoughts.leaked
    return out


TAGGED = [
    (f"<think>{THOUGHT}</think>\n\nHello", "Hello"),
    (f"\n <think>\n{THOUGHT}\n\nmore\n</think>\nHello\nthere", "\nHello\nthere"),
    (f"<thinking>{THOUGHT}</thinking>Hello", "Hello"),
    (f"<THOUGHT>{THOUGHT}</Thought>Hello", "Hello"),
    (f"[THINK]{THOUGHT}[/THINK]Hello", "Hello"),
    (f"◁think▷{THOUGHT}◁/think▷Hello", "Hello"),
    ("<think></think>Hello", "Hello"),
    (f"Well.\n<think>{THOUGHT}</think>\nHello", "Well.\nHello"),
    (f"<think>one</think><think>{THOUGHT}</think>Hello", "Hello"),
    (f"<think>{THOUGHT}", ""),
    (f"{THOUGHT} and so\n</think>\n\nHello", "Hello"),
]
TALK = [
    "A <think> tag begins a thought, and </think> ends it.",
    "```xml\n<think>\nlike this\n</think>\n```\nThat is all.",
    "<b>bold</b>\n<thimble> is no tag of ours\n<",
    "  indented\n\n\ttext `</think>` in a line",
    "",
    "<thin",
    " " * 500 + "<think>far to the right is no tag</think>",
]


@rows(("text", "expected"), TAGGED)
def test_a_thought_is_taken_out(text: str, expected: str) -> None:
    """As a whole."""
    assert shown([text]).strip(" ") == expected.strip(" ")
    assert THOUGHT not in shown([text])


@rows(("text", "expected"), TAGGED[:-1])
def test_a_thought_in_small_bites_is_the_same(text: str, expected: str) -> None:
    """A character at a time, and never a piece of a tag in between."""
    assert shown(text) == shown([text])


@rows("text", TALK)
def test_talk_about_tags_stays(text: str) -> None:
    """In a line, in a code block, or something else that begins like one; in bites as well."""
    assert shown([text]) == text
    assert shown(text) == text


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "```", "\n", " ", "a", "<", "THINK", "[think]"])),
    st.data(),
)
def test_cuts_make_no_difference(parts: list[str], data: st.DataObject) -> None:
    """However a stream is cut: the same is shown but for blanks in front, or it is noticed that too much was."""
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole, cut = ReasoningFilter(ReasoningHabit()), ReasoningFilter(ReasoningHabit())
    at_once = whole.feed(text) + whole.flush()
    bit_by_bit = "".join(cut.feed(piece) for piece in pieces) + cut.flush()
    assert cut.leaked or bit_by_bit.lstrip() == at_once.lstrip()


@rows("unit", [" ", "\n", "<", "<think>", "</think>", "`", "\n<", "a\n", "[", "\t\n", "<think"])
@rows("begins_inside", [False, True])
def test_it_takes_as_long_as_the_text(unit: str, begins_inside: bool) -> None:
    """As much of anything as is read, whole and in bites; what waits for a decision never grows."""
    for size, chars in ((100_000, 100_000), (7, 20_000)):
        thoughts = ReasoningFilter(ReasoningHabit(begins_inside))
        text = unit * (chars // len(unit))
        for start in range(0, len(text), size):
            thoughts.feed(text[start : start + size])
            assert len(thoughts._waiting) <= 64 + 16
        thoughts.flush()


async def test_an_unopened_thought_is_taken_back() -> None:
    """What was shown of it is replaced by the next answer, and from then on such answers are held back."""
    async with FakeOpenAI() as fake:
        fake.plan(*[Say(f"{THOUGHT} ", "so\n", "</think>\n", "\nHello")] * 3)
        client = OpenAIClient("openai/m", api_base=fake.api_base, clock=LoopClock())
        pool = ModelPool("main", [("m", client)], LoopClock())
        partial: list[str] = []

        async def show(text: str) -> None:
            partial.append(text)

        for expected in (2, 3):
            said = await ask(pool, ASK, [], stream=True, max_chars=1000, partial=show)
            assert said.text == "Hello"
            assert len(fake.requests) == expected
            assert partial[-1] == "Hello"
            partial.clear()
        await client.aclose()


async def test_one_that_is_known_for_it_and_does_not_think_is_heard() -> None:
    """What is held back comes at the end."""

    async def pieces() -> Any:
        for text in ("no thought ", "at all"):
            yield Piece(text)

    habit = ReasoningHabit(begins_inside=True)
    chunks = [c async for c in answer(pieces(), limits=AnswerLimits(), model="m", stream=True, habit=habit)]
    assert chunks == ["no thought at all"]


@rows(
    "body",
    [
        {"content": "Hello", "reasoning_content": THOUGHT},
        {"content": "Hello", "reasoning": THOUGHT},
        {
            "content": "Hello",
            "reasoning_details": [{"type": "reasoning.text", "text": THOUGHT}],
            "reasoning": THOUGHT,
        },
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
                {"type": "text", "text": "Hello"},
            ]
        },
        {"content": [{"type": "reasoning", "text": THOUGHT}, {"text": "Hello"}]},
    ],
)
@rows("key", ["delta", "message"])
def test_fields_of_their_own_are_not_read(body: dict[str, Any], key: str) -> None:
    """Whatever a server calls it; that there was some is counted."""
    piece = parse_piece({"choices": [{key: body}]})
    assert piece.text == "Hello"
    assert piece.thought >= len(THOUGHT)


async def test_thinking_is_counted() -> None:
    """By the server's number, else by its length, and never more than was written in all."""
    async with FakeOpenAI() as fake:
        client = OpenAIClient("openai/m", api_base=fake.api_base, clock=LoopClock())
        counted = []
        for reply in (
            Say("Hello", thinking=["x" * 40], usage=(10, 30)),
            Say("<think>" + "x" * 25 + "</think>Hello", usage=(10, 30)),
            Say("Hello", thinking=["x" * 4000], usage=(10, 30)),
            Say("Hello", usage=(10, 30)),
        ):
            fake.plan(reply)
            chunks = [chunk async for chunk in await client.chat(ASK, [])]
            assert isinstance(chunks[-1], Usage)
            counted.append(chunks[-1].thinking_tokens)
            assert chunks[-1].completion_tokens == 30
        await client.aclose()
        assert counted == [10, 10, 30, 0]


async def test_nothing_of_it_is_left_anywhere(tmp_path: Path) -> None:
    """Neither said, nor shown while it grows, nor in any file of the home folder."""
    async with FakeOpenAI() as fake:
        settings = {
            "llm": {
                "providers": {"p": {"api_base": fake.api_base}},
                "models": {"m": {"provider": "p", "model": "openai/m"}},
                "pools": {"main": ["m"]},
            }
        }
        fake.plan(
            Say("<think>", THOUGHT, "</think>", "one", thinking=[THOUGHT]),
            Say("<thi", "nk>" + THOUGHT[:9], THOUGHT[9:] + "</th", "ink>\n", "two"),
            Raw(json.dumps({"choices": [{"message": {"content": f"{THOUGHT}\n</think>\nthree"}}]}).encode()),
        )
        async with world(tmp_path, settings=settings) as there:
            answers = [(await there.asked(question)).text for question in ("a", "b", "c")]
            seen = [text for _, text in there.server.previews]
        assert answers == ["one", "two", "three"]
        assert not [text for text in seen if "CANARY" in text or "think" in text]
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"CANARY" in path.read_bytes()]
        assert "CANARY" not in json.dumps(fake.requests)


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [("openai/gpt-5", "reasoning_effort", "low"), ("openrouter/x/y", "reasoning", {"effort": "low"})],
)
async def test_the_effort_is_sent(model: str, field: str, value: object) -> None:
    """In the words of the provider; nothing is sent where nothing is set."""
    body = adapt_request({"messages": [], "reasoning_effort": "low"}, endpoint_of(model, ""))  # type: ignore[arg-type]
    assert body[field] == value
    async with FakeOpenAI() as fake:
        for effort in ("low", ""):
            spec = LLMSpec.model_validate(
                {
                    "providers": {"p": {"api_base": fake.api_base}},
                    "models": {"m": {"provider": "p", "model": "openai/m", "reasoning_effort": effort}},
                    "pools": {"main": ["m"]},
                }
            )
            models = build_models(spec, ManualClock())
            async for _ in await models.pool().chat(ASK, []):
                pass
            await models.aclose()
        assert [request.get("reasoning_effort") for request in fake.requests] == ["low", None]
