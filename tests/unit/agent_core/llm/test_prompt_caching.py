"""
What providers can keep of a prompt: a second turn begins with the very bytes of the first, the marks stand
where Anthropic looks for them, and what was kept is counted and priced.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent_core.llm.openai_format import TokenCounts, parse_piece, request_body
from agent_core.llm.prices import Price, listed_price
from agent_core.llm.providers import takes_cache_control
from agent_core.models import Message, ToolCall, ToolDefinition
from gateway.operations.render.usage_text import usage
from tests.bench.request import cacheable_share, common_beginning, conversation
from tests.contract.llm import TOOLS
from tests.doubles.openai_server import FakeOpenAI, Raw
from tests.integration.gateway_world import world

HISTORY = [
    Message(role="system", content="sys"),
    Message(role="user", content="first question", id="1.0"),
    Message(role="assistant", content="first answer", id="1.1"),
]
QUESTION = Message(role="user", content="[Sun] second question")


async def test_a_second_turn_begins_with_the_bytes_of_the_first() -> None:
    """Tools, system text and all of the history but the question, whose moment is told with it."""
    requests = await conversation(4)
    for before, after in pairwise(requests):
        known = json.dumps([before["tools"], before["messages"][:-1]])[:-2]
        assert json.dumps([after["tools"], after["messages"]]).startswith(known)
        assert before["tools"]


async def test_nine_tenths_of_a_long_conversation_are_the_same() -> None:
    """The figure of the benchmark, on a shorter conversation: what is new is little beside what is not."""
    requests = await conversation(20)
    assert cacheable_share(requests) >= 0.9


def test_the_share_notices_a_clock_in_the_system_text() -> None:
    """Negative control: the same conversation with something that changes at its beginning."""
    requests = [
        {"tools": [], "messages": [{"role": "system", "content": f"It is {n} o'clock. {'x' * 1000}"}]}
        for n in range(5)
    ]
    assert cacheable_share(requests) < 0.1
    assert common_beginning("abc", "abd") == 2


def marks_of(body: dict[str, Any]) -> list[str]:
    """Where a request is marked, in order."""
    found = [f"tool {number}" for number, tool in enumerate(body.get("tools", ())) if "cache_control" in tool]
    for number, message in enumerate(body["messages"]):
        parts = message["content"] if isinstance(message["content"], list) else []
        if "cache_control" in message or any("cache_control" in part for part in parts):
            found.append(f"message {number}")
    return found


def test_the_marks_stand_after_what_comes_again() -> None:
    """Tools, system, history; within a turn also the newest result. Four is the most that Anthropic takes."""
    call = ToolCall(id="t", name="memory_write")
    steps = [
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="done", tool_call_id="t"),
    ]

    def marked(said: list[Message], tools: list[ToolDefinition] = TOOLS) -> list[str]:
        return marks_of(request_body("m", said, tools, stream=False, marked=True))

    assert marked([*HISTORY, QUESTION]) == ["tool 0", "message 0", "message 2"]
    assert marked([*HISTORY, QUESTION, *steps]) == ["tool 0", "message 0", "message 2", "message 5"]
    assert marked([HISTORY[0], QUESTION], []) == ["message 0"]
    assert marked([QUESTION], []) == []
    assert marks_of(request_body("m", [*HISTORY, QUESTION], TOOLS, stream=False)) == []


def test_a_marked_message_says_the_same() -> None:
    """Next time the mark is elsewhere, and the text must be what it was."""
    plain = request_body("m", HISTORY, TOOLS, stream=False)
    marked = request_body("m", HISTORY, TOOLS, stream=False, marked=True)
    assert [message["content"][0]["text"] for message in marked["messages"][::2]] == ["sys", "first answer"]
    assert plain["messages"][1] == marked["messages"][1]
    assert "cache_control" not in json.dumps(plain)


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        ("anthropic/claude-sonnet-4-5", True),
        ("openrouter/anthropic/claude-sonnet-4.5", True),
        ("bedrock/eu.anthropic.claude-sonnet-4-5", True),
        ("openrouter/openai/gpt-5", False),
        ("openai/gpt-5", False),
        ("ollama/claude-like", False),
    ],
)
def test_who_wants_marks(model: str, wanted: bool) -> None:
    """Others find repetitions by themselves and may refuse a field that they do not know."""
    assert takes_cache_control(model) is wanted


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (
            {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64}},
            TokenCounts(100, 20, cached=64),
        ),
        (
            {"prompt_tokens": 100, "completion_tokens": 20, "prompt_cache_hit_tokens": 60},
            TokenCounts(100, 20, cached=60),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 20,
                "completion_tokens_details": {"reasoning_tokens": 15},
            },
            TokenCounts(100, 20, thinking=15),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 400}, TokenCounts(100, 300)),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 10**9}},
            TokenCounts(5, 0, cached=5),
        ),
        ({"prompt_tokens": 5, "prompt_tokens_details": ["no"]}, TokenCounts(5, 0)),
    ],
)
def test_what_was_kept_is_counted(usage: dict[str, Any], tokens: TokenCounts) -> None:
    """In the words of each provider; hidden thinking counts as written, also where only the sum has it."""
    assert parse_piece({"choices": [], "usage": usage}).tokens == tokens


def test_what_was_kept_costs_less() -> None:
    """By the price of the operator or of the list; without one of its own it costs what the rest costs."""
    assert Price(10.0, 20.0, 1.0).cost_of(TokenCounts(1_000_000, 0, cached=900_000)) == pytest.approx(1.9)
    assert Price(10.0, 20.0).cost_of(TokenCounts(1_000_000, 0, cached=900_000)) == pytest.approx(10.0)
    listed = listed_price("openai/gpt-5-mini")
    assert listed is not None
    assert listed.cached_usd_per_million == pytest.approx(0.025)


async def test_usage_shows_what_was_kept(tmp_path: Path) -> None:
    """From the server's answer through the database to the command."""
    answer = {
        "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 1000,
            "completion_tokens": 50,
            "prompt_tokens_details": {"cached_tokens": 800},
            "completion_tokens_details": {"reasoning_tokens": 30},
        },
    }
    async with FakeOpenAI() as fake:
        fake.plan(Raw(json.dumps(answer).encode()))
        settings = {
            "llm": {
                "providers": {"p": {"api_base": fake.api_base}},
                "models": {
                    "m": {
                        "provider": "p",
                        "model": "openai/m",
                        "price": {
                            "prompt_usd_per_million": 100,
                            "completion_usd_per_million": 0,
                            "cached_usd_per_million": 10,
                        },
                    }
                },
                "pools": {"main": ["m"]},
            }
        }
        async with world(tmp_path, settings=settings) as there:
            await there.asked("hello")
            [row] = await there.built.store.usage.rows(days=1)
            [spent] = await there.built.store.usage.usage_since(since="0000", by="purpose")
        assert row.usage == spent.usage.model_copy(update={"model": row.usage.model})
        assert (row.usage.cached_tokens, row.usage.thinking_tokens) == (800, 30)
        assert row.usage.cost_usd == pytest.approx((200 * 100 + 800 * 10) / 1e6)
    total = {**spent.usage.model_dump(exclude={"model"}), "priced": True}
    nothing = {"spent": 0, "limit": None}
    shown = usage(
        {
            "rows": [{"name": "chat", **total}],
            "by": "purpose",
            "days": 1,
            "purposes": [],
            "total": total,
            "budget": {"tokens": nothing, "usd": nothing, "refused": [], "opens": ""},
        },
        200,
    )
    assert "1,000 read (800 from the provider's cache), 50 written (30 thinking)" in shown
