"""Parts of a request that a model refuses are left out, remembered and said; the shape of requests and answers."""

from __future__ import annotations

import json

import pytest

from agent_core.agent.loop import ask
from agent_core.errors import ModelRefused, ModelUnavailable, ModelUnreadable, StreamBroken
from agent_core.llm.openai_client import OpenAIClient
from agent_core.llm.openai_format import request_body
from agent_core.llm.tool_schemas import complete_schema, restore_names
from agent_core.messages import Attachment
from agent_core.models import Message, Reasoning, ToolCall, ToolDefinition
from tests.clock import LoopClock
from tests.doubles.openai_server import Call, FakeOpenAI, Raw, Say, Status
from tests.pictures import png

ASK = [Message(role="user", content="hello")]
LOOK = ToolDefinition(name="look", description="d", parameters={"type": "object", "properties": {}})
SHOP = ToolDefinition(name="shop__find", description="d", parameters={"type": "object", "properties": {}})


class Pictures:
    """An `AttachmentPort` of which only pictures are asked."""

    async def picture(self, attachment, *, max_bytes, max_pixels, max_side):
        return "image/png", png()


@pytest.fixture
async def fake():
    async with FakeOpenAI() as server:
        yield server


@pytest.fixture
async def client(fake):
    client = OpenAIClient(
        "openai/m", api_base=fake.api_base, clock=LoopClock(), max_tokens=9000, pictures=Pictures()
    )
    yield client
    await client.aclose()


async def answer_of(client, messages=ASK, tools=(), *, stream=True):
    return await ask(client, messages, tools, stream=stream, max_chars=10_000)


# ── what is refused ──


@pytest.mark.parametrize(
    "refusal",
    [
        "Invalid schema for function 'shop__find': array schema missing items",
        "tools.1.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
    ],
)
async def test_a_refused_tool_is_left_out_for_this_model(fake, client, refusal):
    """The request is repeated once without it, the model is told, and the next one pays for nothing."""
    fake.plan(Status(400, refusal), Say("ok"), Say("again"))
    assert (await answer_of(client, tools=[LOOK, SHOP])).text == "ok"
    assert (await answer_of(client, tools=[LOOK, SHOP])).text == "again"

    assert [[tool["function"]["name"] for tool in one["tools"]] for one in fake.requests] == [
        ["look", "shop__find"],
        ["look"],
        ["look"],
    ]
    assert "shop__find" in fake.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize(
    "refusal",
    [
        "registry.ollama.ai/library/gemma:2b does not support tools",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "No endpoints found that support tool use.",
    ],
)
async def test_a_model_without_tools_is_asked_without(fake, client, refusal):
    """Ollama, vLLM and OpenRouter say so to each request that offers any; it is asked once, and remembered."""
    fake.plan(Status(404 if "endpoints" in refusal else 400, refusal), Say("ok"), Say("ok"))
    await answer_of(client, tools=[LOOK])
    await answer_of(client, tools=[LOOK])

    assert ["tools" in one for one in fake.requests] == [True, False, False]


@pytest.mark.parametrize(
    "refusal",
    [
        "'messages.1' : for 'role:assistant': property 'reasoning_content' is unsupported",
        "['body', 'messages', 3, 'assistant', 'reasoning_content'], 'msg': 'Extra inputs are not permitted'",
        "property 'reasoning' is unsupported, did you mean 'role'?",
    ],
)
async def test_refused_reasoning_is_left_out(fake, client, refusal):
    """Groq gives it and does not want it back."""
    own = Reasoning(model="openai/m", fields={"reasoning_content": "CANARY"})
    call = ToolCall(id="a", name="look")
    said = [
        *ASK,
        Message(role="assistant", content="", tool_calls=(call,), reasoning=own),
        Message(role="tool", content="x", tool_call_id="a"),
    ]
    fake.plan(Status(400, refusal), Say("ok"), Say("ok"))
    await answer_of(client, said, [LOOK])
    await answer_of(client, said, [LOOK])

    assert ["CANARY" in json.dumps(one) for one in fake.requests] == [True, False, False]


@pytest.mark.parametrize(
    "refusal",
    [
        "Missing `reasoning_content` field in the assistant message at message index 1",
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
    ],
)
async def test_missing_reasoning_comes_with_every_answer(fake, client, refusal):
    """DeepSeek V4 wants some with each answer of the history, which keeps none; it is asked once, and remembered."""
    said = [*ASK, Message(role="assistant", content="hi"), *ASK]
    fake.plan(Status(400, refusal), Say("ok"), Say("ok"))
    await answer_of(client, said)
    await answer_of(client, said)

    assert ["reasoning_content" in one["messages"][1] for one in fake.requests] == [False, True, True]
    assert "reasoning_content" not in fake.requests[1]["messages"][0]


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("reasoning_effort", "Unrecognized request argument supplied: reasoning_effort"),
        (
            "reasoning_effort",
            "Function tools with reasoning_effort are not supported for m in /v1/chat/completions.",
        ),
        ("reasoning_effort", "Model m does not support parameter reasoningEffort."),
        ("presence_penalty", "Model m does not support parameter presencePenalty."),
        ("stop", "Argument not supported on this model: stop"),
        ("temperature", "Unsupported value: 'temperature' does not support 0.2 with this model."),
    ],
)
async def test_a_refused_parameter_is_left_out_and_its_owner_told(fake, name, refusal):
    """Whatever it is, also under the name that xAI gives it; the others stay."""
    extra = {name: "x", "seed": 7}
    client = OpenAIClient("openai/m", api_base=fake.api_base, clock=LoopClock(), extra=extra)
    fake.plan(Status(400, refusal), Say("ok"), Say("ok"))
    await answer_of(client, tools=[LOOK])
    await answer_of(client, tools=[LOOK])
    await client.aclose()

    assert [(name in one, one["seed"], len(one["tools"])) for one in fake.requests] == [
        (True, 7, 1),
        (False, 7, 1),
        (False, 7, 1),
    ]
    assert [note for note in client.notes if name in note]


async def test_a_parameter_that_is_only_named_stays(fake):
    """Negative control: what refuses nothing costs no parameter."""
    client = OpenAIClient("openai/m", api_base=fake.api_base, clock=LoopClock(), extra={"user": "x"})
    fake.plan(Status(400, "the conversation has two messages of a user in a row"))
    with pytest.raises(ModelRefused):
        await answer_of(client)
    await client.aclose()

    assert len(fake.requests) == 1


@pytest.mark.parametrize("extra", [{}, {"reasoning_effort": "high"}])
async def test_a_model_that_thinks_unless_told_not_to_is_told(fake, extra):
    """GPT-5.6 refuses tools even where no effort was asked for."""
    client = OpenAIClient("openai/m", api_base=fake.api_base, clock=LoopClock(), extra=extra)
    text = "To use function tools, use /v1/responses or set reasoning_effort to 'none'."
    fake.plan(Status(400, f"Function tools with reasoning_effort are not supported for m. {text}"), Say("ok"))
    await answer_of(client, tools=[LOOK])
    await client.aclose()

    assert [one.get("reasoning_effort") for one in fake.requests] == [extra.get("reasoning_effort"), "none"]
    assert "'none'" in client.notes[0]


LIMITED = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "text": {"type": ["string", "null"], "maxLength": 100_000, "pattern": "\\d", "description": "t"},
        "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]},
        "list": {"type": "array", "items": {"type": "string", "format": "uri"}, "minItems": 1},
        "any": True,
    },
    "required": ["text"],
}


@pytest.mark.parametrize(
    "refusal",
    [
        "Invalid JSON payload received. Unknown name \"const\" at 'tools[0].function_declarations[1].parameters'",
        "Failed to initialize samplers: failed to parse grammar",
        "JSON schema conversion failed:\nPattern must start with '^' and end with '$'",
    ],
)
async def test_a_schema_that_a_server_cannot_read_is_sent_plainly(fake, client, refusal):
    """Gemini and llama.cpp: no tool is lost, whichever the server means."""
    limited = ToolDefinition(name="limited", description="d", parameters=LIMITED)
    fake.plan(Status(400, refusal), Say("ok"), Say("ok"))
    await answer_of(client, tools=[LOOK, limited])
    await answer_of(client, tools=[LOOK, limited])

    assert [[tool["function"]["name"] for tool in one["tools"]] for one in fake.requests] == [
        ["look", "limited"]
    ] * 3
    assert fake.requests[0]["tools"][1]["function"]["parameters"]["properties"]["any"] == {}
    for request in fake.requests[1:]:
        assert request["tools"][1]["function"]["parameters"] == {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "t"},
                "kind": {"anyOf": [{"enum": ["a"], "type": "string"}, {"enum": ["b"], "type": "string"}]},
                "list": {"type": "array", "items": {"type": "string"}},
                "any": {},
            },
            "required": ["text"],
        }


async def test_a_declaration_is_found_by_its_number(fake, client):
    """Gemini: its tools are one, with many declarations; the right one goes if a plain schema does not help."""
    text = "Invalid value at 'tools[0].function_declarations[1].parameters'"
    fake.plan(Status(400, text), Say("ok"))
    await answer_of(client, tools=[LOOK, SHOP])

    assert [tool["function"]["name"] for tool in fake.requests[-1]["tools"]] == ["look"]


async def test_a_refused_length_is_lowered(fake, client):
    """To the highest that the provider names."""
    text = "max_tokens is too large: 9000. This model supports at most 4096 completion tokens."
    fake.plan(Status(400, text), Say("ok"))
    await answer_of(client)

    assert [one["max_tokens"] for one in fake.requests] == [9000, 4096]


@pytest.mark.parametrize("status", [400, 500])
async def test_a_refused_picture_is_not_sent_again(fake, client, status):
    """Not in this request and in no later one; the model reads that it cannot be shown."""
    file = Attachment(name="a.png", media_type="image/png", size_bytes=5, path="p", sha256="0" * 64)
    seen = [Message(role="user", content="what is this?", attachments=(file,))]
    fake.plan(Status(status, "cannot decode"), Say("ok"), Say("ok"))
    await answer_of(client, seen)
    await answer_of(client, seen)

    contents = [one["messages"][-1]["content"] for one in fake.requests]
    assert [isinstance(each, list) for each in contents] == [True, False, False]
    assert contents[1].endswith("cannot be shown to you.]")


async def test_a_refused_picture_stays_away_and_good_ones_stay(fake, client):
    """One that the model has answered with is not the reason; a new question brings only the new one."""
    good, bad, new = (
        Message(
            role="user",
            content=name,
            attachments=(
                Attachment(name=name, media_type="image/png", size_bytes=5, path=name, sha256=name * 64),
            ),
        )
        for name in "abc"
    )
    between = Message(role="assistant", content="I see.")
    fake.plan(Say("ok"), Status(400, "Could not process image"), Say("ok"), Say("ok"))
    await answer_of(client, [good])
    await answer_of(client, [good, between, bad])
    await answer_of(client, [good, between, bad, between, new])

    shown = [json.dumps(body["messages"]).count('"type": "image_url"') for body in fake.requests]
    assert shown == [1, 2, 1, 2]
    assert "cannot be shown" in json.dumps(fake.requests[3]["messages"])


@pytest.mark.parametrize("status", [401, 404, 503])
async def test_what_is_about_no_part_goes_up(fake, client, status):
    """Negative control: a wrong key, an unknown model or a server that is away is asked once."""
    fake.plan(Status(status, "no"), Say("ok"))
    with pytest.raises((ModelUnavailable, ModelRefused, Exception)):
        await answer_of(client, tools=[LOOK])

    assert len(fake.requests) == 1


# ── the shape ──


def _messages(*shape, **more):
    return request_body("m", [*shape], [], stream=False, **more)["messages"]


def _say(role, content, **more):
    return Message(role=role, content=content, **more)


def test_a_request_alternates_and_begins_with_a_user():
    """Whatever the history is: merged neighbours, no empty content, no user behind a tool's result."""
    call = ToolCall(id="1", name="look")
    out = _messages(
        _say("system", "s"),
        _say("assistant", "an alert"),
        _say("user", "a"),
        _say("user", "b"),
        _say("assistant", "", tool_calls=(call,)),
        _say("tool", "", tool_call_id="1"),
        _say("user", "a picture"),
    )

    assert [one["role"] for one in out] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert out[3]["content"] == "a\n\nb"
    assert all(one["content"] for one in out)


def test_the_tools_stay_in_the_last_step():
    """Strict servers want them while the history has calls; the choice is none."""
    body = request_body("m", [_say("user", "a", ends_tools=True)], [LOOK], stream=False)
    assert body["tool_choice"] == "none"
    assert len(body["tools"]) == 1
    assert "tool_choice" not in request_body("m", ASK, [LOOK], stream=False)


def test_schemas_are_completed_and_names_go_both_ways():
    """Arrays have items, objects properties, keys are plain; arguments come back as the tool wants them."""
    schema = {
        "type": "object",
        "properties": {
            "ids": {"type": ["string", "array", "null"]},
            "$filter": {"type": "object", "additionalProperties": {"type": "array"}},
            "deep": {"type": "array", "items": {"type": "object", "properties": {"a b": {"type": "array"}}}},
        },
        "required": ["$filter"],
    }
    out = complete_schema(schema)
    assert out["properties"]["ids"]["items"] == {}
    assert out["properties"]["_filter"]["properties"] == {}
    assert out["properties"]["_filter"]["additionalProperties"]["items"] == {}
    assert out["required"] == ["_filter"]
    assert out["properties"]["deep"]["items"]["properties"]["a_b"]["items"] == {}

    given = {"_filter": {"x": 1}, "deep": [{"a_b": [1]}], "other": 2}
    assert restore_names(given, schema) == {"$filter": {"x": 1}, "deep": [{"a b": [1]}], "other": 2}
    assert complete_schema({}) == {"type": "object", "properties": {}}


# ── reasoning ──


@pytest.mark.parametrize(
    ("deltas", "fields"),
    [
        ([{"reasoning_content": "I "}, {"reasoning_content": "look"}], {"reasoning_content": "I look"}),
        ([{"reasoning": "hm"}], {"reasoning": "hm"}),
        (
            [
                {"reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0}]},
                {
                    "reasoning_details": [
                        {"type": "reasoning.text", "text": "b", "signature": "s", "index": 0}
                    ]
                },
                {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "index": 1}]},
            ],
            {
                "reasoning_details": [
                    {"type": "reasoning.text", "text": "ab", "signature": "s", "index": 0},
                    {"type": "reasoning.encrypted", "data": "x", "index": 1},
                ]
            },
        ),
    ],
)
async def test_reasoning_goes_back_to_its_model_alone(fake, client, deltas, fields):
    """With the answer that called tools, in the provider's own fields."""
    calls = [{"index": 0, "id": "a", "function": {"name": "look", "arguments": "{}"}}]
    events = [
        *({"delta": one} for one in deltas),
        {"delta": {"tool_calls": calls}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    fake.plan(
        Raw(
            "".join(f"data: {json.dumps({'choices': [one]})}\n\n" for one in events).encode(),
            "text/event-stream",
        )
    )
    answer = await answer_of(client, tools=[LOOK])
    assert answer.reasoning == Reasoning(model="openai/m", fields=fields)

    said = Message(role="assistant", content="", tool_calls=answer.calls, reasoning=answer.reasoning)
    result = Message(role="tool", content="found", tool_call_id="a")
    await answer_of(client, [*ASK, said, result], [LOOK])
    assert fields.items() <= fake.requests[-1]["messages"][1].items()
    other = request_body("n", [*ASK, said, result], [LOOK], stream=False, own_name="openai/n")
    assert not fields.keys() & other["messages"][1].keys()


# ── how answers end ──


async def test_a_text_cut_at_the_limit_says_so(fake, client):
    fake.plan(Say("half a", finish="length"))
    answer = await answer_of(client)
    assert (answer.text, answer.is_cut) == ("half a", True)


@pytest.mark.parametrize(
    ("arguments", "finish"),
    [("", "length"), ('{"a": ', "length"), ("{}", "max_tokens"), ("{}", "content_filter")],
)
async def test_no_call_runs_of_an_answer_that_did_not_end(fake, client, arguments, finish):
    """It is asked for once more; after that a person is told why nothing was done."""
    fake.plan(*[Say(calls=[Call("look", arguments)], finish=finish)] * 2)
    with pytest.raises(ModelRefused, match=r"max_tokens|filter"):
        await answer_of(client, tools=[LOOK])


@pytest.mark.parametrize("finish", ["error", "network_error", "malformed_function_call"])
async def test_a_reason_that_is_an_error_is_a_broken_stream(fake, client, finish):
    fake.plan(Say("half a", finish=finish), Say("whole"))
    assert (await answer_of(client)).text == "whole"
    fake.plan(*[Say("half a", finish=finish)] * 2)
    with pytest.raises(StreamBroken):
        await answer_of(client)


async def test_a_fragment_that_belongs_to_no_call_spoils_the_answer(fake, client):
    """No call of it runs with arguments that were meant for another; it is asked for once more."""
    heads = [
        {"index": 0, "id": "a", "function": {"name": "order", "arguments": '{"article":"pen","count":3}'}},
        {"index": 0, "id": "b", "function": {"name": "order", "arguments": ""}},
        {"index": 1, "function": {"arguments": '{"article":"ink","count":7}'}},
    ]
    events = [{"delta": {"tool_calls": [one]}} for one in heads] + [
        {"delta": {}, "finish_reason": "tool_calls"}
    ]
    raw = Raw(
        "".join(f"data: {json.dumps({'choices': [one]})}\n\n" for one in events).encode(), "text/event-stream"
    )
    fake.plan(raw, Say("sorry"))
    assert (await answer_of(client, tools=[LOOK])).text == "sorry"
    fake.plan(raw, raw)
    with pytest.raises(ModelUnreadable):
        await answer_of(client, tools=[LOOK])


def _calls_of(*fragments):
    events = [{"delta": {"tool_calls": [one]}} for one in fragments]
    events.append({"delta": {}, "finish_reason": "tool_calls"})
    body = "".join(f"data: {json.dumps({'choices': [one]})}\n\n" for one in events)
    return Raw(body.encode(), "text/event-stream")


@pytest.mark.parametrize(
    ("fragments", "arguments"),
    [
        (
            [
                {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"n":'}},
                {"index": 1, "function": {"arguments": "1"}},
                {"index": 2, "function": {"arguments": "}"}},
            ],
            [{"n": 1}],
        ),
        (
            [
                {"index": 0, "function": {"name": "look", "arguments": '{"n":1}'}},
                {"index": 0, "function": {"name": "look", "arguments": '{"n":2}'}},
            ],
            [{"n": 1}, {"n": 2}],
        ),
        (
            [
                {"index": 0, "function": {"name": "look", "arguments": '{"n":1'}},
                {"index": 0, "function": {"name": "look", "arguments": "}"}},
                {"index": 0, "function": {"name": "look", "arguments": ""}},
            ],
            [{"n": 1}],
        ),
    ],
    ids=["each piece with a number", "all calls with one number", "the name with each piece"],
)
async def test_calls_that_are_counted_wrongly(fake, client, fragments, arguments):
    """Nebius, servers before Ollama's fashion, and those that repeat the name: no call is lost or made twice."""
    fake.plan(_calls_of(*fragments))
    answer = await answer_of(client, tools=[LOOK])

    assert [call.arguments for call in answer.calls] == arguments
    assert not any(call.unreadable for call in answer.calls)


async def test_an_empty_answer_after_a_tool_is_asked_for_in_other_words(fake, client):
    """Claude has often nothing to add then; without a tool the same question is asked again."""
    call = ToolCall(id="a", name="look")
    done = [*ASK, _say("assistant", "", tool_calls=(call,)), _say("tool", "done", tool_call_id="a")]
    fake.plan(Say(""), Say("It is done."), Say(""), Say("hi"))
    assert (await answer_of(client, done, [LOOK])).text == "It is done."
    assert (await answer_of(client)).text == "hi"

    assert ["no words" in json.dumps(one) for one in fake.requests] == [False, True, False, False]


async def test_a_refusal_is_the_answer_and_zero_width_is_none(fake, client):
    message = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    fake.plan(Raw(json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()))
    assert (await answer_of(client, stream=False)).text == "I can't help with that."
    fake.plan(Say("\u200b"), Say("\u200b"))
    with pytest.raises(ModelRefused, match="neither text nor tool call"):
        await answer_of(client)
