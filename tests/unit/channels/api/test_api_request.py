"""Bodies of OpenAI's requests: the words in them, and a plain sentence for what cannot be done."""

from __future__ import annotations

import json

import pytest

from channels.api.api_server import addition
from channels.api.request import BadRequest, read_body


def read(key="messages", conversation="", **body):
    content = json.dumps({"model": "squidbot", **body}).encode()
    return read_body(
        content, key=key, model="squidbot", person="@a:b.c", ours="squidbot", conversation=conversation
    )


def message(role, content):
    return {"role": role, "content": content}


def test_what_came_before_is_background_by_who_may_have_written_it():
    """The user's and the instructions are the person's, answers ours, results of tools a stranger's."""
    said = [
        message("system", "be brief"),
        message("user", "one"),
        message("assistant", "two"),
        {"role": "tool", "tool_call_id": "x", "content": "three"},
        message("assistant", None),
        message("user", [{"type": "text", "text": "four"}, {"type": "text", "text": "five"}]),
    ]
    words = read(messages=said)
    assert words.text == "four\nfive"
    assert [(each.sender, each.name, each.text) for each in words.earlier] == [
        ("@a:b.c", "instructions", "be brief"),
        ("@a:b.c", "", "one"),
        ("squidbot", "", "two"),
        ("tool", "", "three"),
    ]
    assert {each.kind for each in words.earlier} == {"thread"}


def test_a_named_conversation_has_its_own_history():
    said = [message("user", "one"), message("assistant", "two"), message("user", "three")]
    assert read(messages=said, metadata={"conversation": " a "}).conversation == "a"
    assert read(messages=said, metadata={"conversation": "a"}, conversation="b").conversation == "a"
    assert read(messages=said, conversation="b").conversation == "b"
    assert read(messages=said, conversation="b").earlier == ()


def test_what_came_before_is_bounded_and_says_so():
    said = [message("user", "x" * 60_000), message("user", "y" * 60_000), message("user", "now")]
    first, second = read(messages=said).earlier
    assert ("left out" in first.text, first.sender) == (True, "tool")
    assert second.text == "y" * 60_000


def test_requests_differ_by_their_words():
    """Not by how an answer is to come: a repetition may stream."""
    one = read(messages=[message("user", "x")])
    assert read(messages=[message("user", "x")], stream=True, temperature=1).digest == one.digest
    assert read(messages=[message("user", "y")]).digest != one.digest
    assert read(messages=[message("user", "x")], conversation="c").digest != one.digest


def test_the_newer_form():
    assert read("input", input="hello").text == "hello"
    words = read("input", input=[message("user", "a")], instructions="be brief")
    assert [each.text for each in words.earlier] == ["be brief"]


def test_halves_of_characters_are_replaced():
    assert read(messages=[message("user", "a\ud800b")]).text == "a?b"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "x"},
        {"messages": [1]},
        {"messages": [message("user", 5)]},
        {"messages": [message("user", " ")]},
        {"messages": [message("user", [5])]},
        {"messages": [message("user", [{"type": "image_url", "image_url": 5}])]},
        {"messages": [message("user", "x")], "metadata": {"conversation": 5}},
        {"messages": [message("user", "x")], "metadata": {"conversation": "x" * 200}},
        {"messages": [message("user", "x")], "text": 5},
        {"messages": [message("user", "x")], "text": {"format": {"type": "json_schema"}}},
        {"messages": [message("user", "x")], "model": 5},
        {"messages": [message("user", "x")], "n": "two"},
        {"messages": [message("user", "x")], "tool_choice": {"type": "function"}},
    ],
)
def test_anything_else_is_refused(body):
    if body.get("text") == 5:
        assert read(**body).text == "x"
        return
    with pytest.raises(BadRequest):
        read(**body)


@pytest.mark.parametrize(
    ("shown", "text", "more"),
    [("", "a", "a"), ("a", "ab", "b"), ("a", "a", ""), ("ab", "a", ""), ("ab", "cd", "\n\ncd")],
)
def test_what_a_stream_adds(shown, text, more):
    assert addition(shown, text) == more
