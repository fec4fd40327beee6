"""The OpenAI chat format in both directions."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.llm.openai_format import (
    Assembler,
    Piece,
    TextJoiner,
    TokenCounts,
    ToolFragment,
    bare_model_name,
    parse_piece,
    request_body,
)
from agent_core.llm.streaming import SseDecoder
from agent_core.models import Message, ToolCall, ToolDefinition

TOOL = ToolDefinition(name="look", description="Looks.", parameters={"type": "object", "properties": {}})


def calls_of(*fragments: ToolFragment) -> list[ToolCall]:
    assembler = Assembler()
    for fragment in fragments:
        assembler.feed(Piece(fragments=(fragment,)))
    return assembler.calls()


class TestRequest:
    def test_a_conversation_with_a_tool_call(self):
        """Calls and results go out in the form that servers know, arguments as text."""
        body = request_body(
            "m",
            [
                Message(role="user", content="hi"),
                Message(
                    role="assistant",
                    content="",
                    tool_calls=(ToolCall(id="1", name="look", arguments={"q": "ä"}),),
                ),
                Message(role="tool", content="found", tool_call_id="1"),
            ],
            [TOOL],
            stream=True,
            max_tokens=5,
            extra={"temperature": 0.5},
        )

        assistant, result = body["messages"][1:]
        assert assistant["content"] == "…"
        assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"q": "ä"}
        assert result == {"role": "tool", "content": "found", "tool_call_id": "1"}
        assert body["stream_options"] == {"include_usage": True}
        assert body["max_tokens"] == 5
        assert body["temperature"] == 0.5

    def test_what_is_not_there_is_not_sent(self):
        """Without tools there is no empty list of tools, without a stream no stream options."""
        body = request_body("m", [], [], stream=False)

        assert set(body) == {"model", "messages", "stream"}

    def test_half_an_emoji_can_be_sent(self):
        """Text that is not valid Unicode becomes valid instead of failing on its way out."""
        body = request_body("m", [Message(role="user", content="a\ud83d")], [], stream=False)

        assert json.dumps(body, ensure_ascii=False).encode()

    def test_the_name_that_the_server_knows(self):
        """Only the prefix of the configuration is taken off."""
        assert bare_model_name("openai/qwen/qwen3") == "qwen/qwen3"
        assert bare_model_name("llama3") == "llama3"


class TestPieces:
    def test_a_delta(self):
        """Text, fragments and the reason for the end are read."""
        piece = parse_piece(
            {
                "choices": [
                    {
                        "delta": {
                            "content": "a",
                            "tool_calls": [{"index": 0, "id": "x", "function": {"name": "f"}}],
                        },
                        "finish_reason": "stop",
                    }
                ]
            }
        )

        assert piece == Piece("a", (ToolFragment(0, "x", "f", ""),), None, "stop")

    def test_usage_alone(self):
        """The last chunk has usage and no choices."""
        assert parse_piece({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}) == Piece(
            tokens=TokenCounts(3, 4)
        )
        assert parse_piece({"usage": {"prompt_tokens": 3}}) == Piece(tokens=TokenCounts(3, 0))

    def test_text_in_parts(self):
        """Content may be a list of parts."""
        piece = parse_piece(
            {"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"text": "b"}, 3]}}]}
        )

        assert piece.text == "ab"

    @pytest.mark.parametrize(
        "data", [{}, {"choices": "x"}, {"choices": ["x"]}, {"choices": [{"delta": "x"}]}]
    )
    def test_nonsense_is_refused(self, data):
        """What is no answer raises ValueError, nothing else."""
        with pytest.raises(ValueError, match=r"."):
            parse_piece(data)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["choices", "delta", "message", "content", "tool_calls", "function", "usage", "index"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=15,
        )
    )
    def test_any_object_is_read_or_refused(self, value):
        """No JSON object makes the parser fail in another way than ValueError."""
        if isinstance(value, dict):
            try:
                piece = parse_piece(value)
            except ValueError:
                return
            Assembler().feed(piece)


class TestToolCalls:
    def test_fragments_by_index(self):
        """Fragments of two calls in turn find their call by its index."""
        calls = calls_of(
            ToolFragment(0, "a", "f", '{"x"'),
            ToolFragment(1, "b", "g", ""),
            ToolFragment(0, "", "", ": 1}"),
            ToolFragment(1, "", "", "{}"),
        )

        assert [(c.id, c.name, c.arguments) for c in calls] == [("a", "f", {"x": 1}), ("b", "g", {})]

    def test_every_call_has_index_zero(self):
        """A server that numbers every call 0 is understood by the ids."""
        calls = calls_of(
            ToolFragment(0, "a", "f", '{"x": 1}'),
            ToolFragment(0, "b", "f", '{"x"'),
            ToolFragment(0, "", "", ": 2}"),
        )

        assert [c.arguments for c in calls] == [{"x": 1}, {"x": 2}]

    def test_no_index_and_no_id(self):
        """Without index and id a new name begins a new call, and ids are made up that differ."""
        calls = calls_of(ToolFragment(None, "", "f", '{"x": 1}'), ToolFragment(None, "", "g", '{"x": 2}'))

        assert [(c.name, c.arguments) for c in calls] == [("f", {"x": 1}), ("g", {"x": 2})]
        assert len({c.id for c in calls}) == 2

    def test_the_id_repeated_in_every_fragment(self):
        """A server that repeats id and name with every fragment still makes one call."""
        calls = calls_of(ToolFragment(0, "a", "f", '{"x"'), ToolFragment(0, "a", "f", ": 1}"))

        assert [(c.name, c.arguments) for c in calls] == [("f", {"x": 1})]

    def test_the_same_id_twice(self):
        """Two calls under one id get ids of their own, so that each result finds its call."""
        calls = calls_of(ToolFragment(0, "a", "f", "{}"), ToolFragment(1, "a", "g", "{}"))

        assert len({c.id for c in calls}) == 2

    @pytest.mark.parametrize(
        "text", ['{"a": ', "[1]", '"x"', "nonsense", '{"a": NaN}', '{"a": "\\ud83d"}', "[" * 5000]
    )
    def test_no_call_counts_if_one_is_no_object(self, text):
        """None of the calls of the answer runs; the control has two that can be read."""
        calls = calls_of(ToolFragment(0, "a", "f", "{}"), ToolFragment(1, "b", "f", text))
        assert ["tool call" in each.unreadable for each in calls] == [True, True]
        control = calls_of(ToolFragment(0, "a", "f", "{}"), ToolFragment(1, "b", "f", "{}"))
        assert [each.unreadable for each in control] == ["", ""]

    @pytest.mark.parametrize("text", ["", "  ", "{}"])
    def test_no_arguments_are_fine(self, text):
        """A call without arguments is one with none."""
        (call,) = calls_of(ToolFragment(0, "a", "f", text))

        assert call.arguments == {}

    def test_arguments_as_an_object(self):
        """A server that sends the arguments as an object is understood."""
        data = {
            "choices": [
                {"message": {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]}}
            ]
        }
        assembler = Assembler()
        assembler.feed(parse_piece(data))

        assert assembler.calls()[0].arguments == {"a": 1}


class TestText:
    def test_two_halves_of_an_emoji(self):
        """Halves in two pieces come out as one character."""
        joiner = TextJoiner()

        assert joiner.feed("a\ud83d") == "a"
        assert joiner.feed("\ude00b") == "\U0001f600b"
        assert joiner.flush() == ""

    def test_a_lonely_half(self):
        """Half an emoji becomes the replacement character, at the end as well."""
        joiner = TextJoiner()

        assert joiner.feed("\ude00x") == "\ufffdx"
        assert joiner.feed("\ud83d") == ""
        assert joiner.flush() == "\ufffd"

    @given(st.text(alphabet=st.characters(), max_size=30), st.integers(1, 4))
    def test_sound_text_is_not_changed(self, text, size):
        """Cut anywhere, even between the halves of a character, sound text comes out as it went in."""
        raw = text.encode("utf-16-le", "surrogatepass")
        units = [raw[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(raw), 2)]
        joiner = TextJoiner()
        out = (
            "".join(joiner.feed("".join(units[i : i + size])) for i in range(0, len(units), size))
            + joiner.flush()
        )

        assert out == raw.decode("utf-16-le", "replace")


class TestEvents:
    STREAM = ': hi\n\ndata: {"a": "ü"}\r\n\r\nevent: x\ndata: one\ndata: two\n\ndata:[DONE]\n\n'.encode()

    @given(st.lists(st.integers(0, len(STREAM)), max_size=8))
    def test_any_cut_gives_the_same_events(self, cuts):
        """Where the network cuts the stream does not matter, not even inside a character."""
        decoder = SseDecoder()
        places = [0, *sorted(cuts), len(self.STREAM)]
        events = [event for a, b in pairwise(places) for event in decoder.feed(self.STREAM[a:b])]

        assert events == ['{"a": "ü"}', "one\ntwo", "[DONE]"]

    def test_the_last_event_may_lack_its_end(self):
        """A server that does not close its last event is understood."""
        decoder = SseDecoder()

        assert list(decoder.feed(b"data: x")) == []
        assert list(decoder.flush()) == ["x"]

    def test_an_event_without_end_is_refused(self):
        """What never ends does not fill the memory."""
        decoder = SseDecoder()
        with pytest.raises(ValueError, match="does not end"):
            for _ in range(100):
                list(decoder.feed(b"x" * 100_000))
