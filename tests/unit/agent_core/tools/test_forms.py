"""Forms of servers: what is asked, what is refused, and what a person's words fill in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.tools.forms import FormRefused, NotAnAnswer, form_of, form_to_fill_in, link_to_open, read
from tests.rows import rows

TRIP = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "Where to", "minLength": 2, "maxLength": 20},
        "nights": {"type": "integer", "minimum": 1, "maximum": 9},
        "class": {
            "type": "string",
            "oneOf": [{"const": "eco", "title": "Economy"}, {"const": "first", "title": "First class"}],
        },
        "pets": {"type": "boolean"},
        "meals": {"type": "array", "items": {"enum": ["lunch", "dinner"]}, "minItems": 1},
    },
    "required": ["city", "nights"],
}


def one(schema, *, required=True):
    return form_to_fill_in(
        "travel", "?", {"properties": {"x": schema}, "required": ["x"] if required else []}
    )


def test_named_lines_fill_in_all_kinds():
    form = form_to_fill_in("travel", "Which trip?", TRIP)
    said = "where to: Berlin\nNights: 3\nclass: first class\npets: no\nmeals: dinner, lunch"
    expected = {"city": "Berlin", "nights": 3, "class": "first", "pets": False, "meals": ["dinner", "lunch"]}
    assert read(form, said) == expected
    assert read(form, said.replace("\n", "; ")) == expected
    assert read(form, "city: Berlin; nights: 3") == {"city": "Berlin", "nights": 3}
    assert form_of(json.loads(json.dumps(form.as_json()))) == form


@rows(
    ("said", "why"),
    [
        ("city: Berlin", "nights"),
        ("Berlin\n3", "name: value"),
        ("city: Berlin; nights: three", "whole number"),
        ("city: Berlin; nights: 3; class: best", "Economy"),
        ("city: Berlin; nights: 3; pets: perhaps", "must be yes or no"),
        ("city: Berlin; nights: 99", "`nights` must be a whole number from 1 to 9[.]$"),
        ("city: X; nights: 3", "`city` must be text of 2 to 20 characters[.]$"),
        ("what a nice day", "name: value"),
        ("city: Berlin; nights: 3; password: x", "name: value"),
        ("x" * 3000, "2000"),
    ],
)
def test_what_does_not_fit_is_said(said, why):
    with pytest.raises(NotAnAnswer, match=why):
        read(form_to_fill_in("travel", "Which trip?", TRIP), said)


@rows(
    ("schema", "said", "value"),
    [
        ({"type": "string"}, "a: b", "a: b"),
        ({"type": "string"}, "x: b", "b"),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "string", "format": "date"}, "2026-03-01", "2026-03-01"),
        ({"type": "string", "format": "email"}, "a@b.example", "a@b.example"),
        ({"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "g"}]}, "red", "r"),
    ],
)
def test_a_single_field_is_filled_in_by_the_text(schema, said, value):
    assert read(one(schema), said) == {"x": value}


@rows(
    ("schema", "said"),
    [
        ({"type": "number"}, "nan"),
        ({"type": "number"}, "1e999"),
        ({"type": "integer"}, "2.5"),
        ({"type": "boolean"}, "perhaps"),
        ({"type": "string"}, "  "),
    ],
)
def test_a_single_field_that_does_not_fit(schema, said):
    with pytest.raises(NotAnAnswer):
        read(one(schema), said)


def test_what_is_asked_in_closed_questions_is_hardly_anything_else():
    """Only of these a word is taken as the answer that is no reply."""
    assert one({"type": "boolean"}).is_closed
    assert one({"type": "string", "enum": ["a"]}).is_closed
    assert not one({"type": "string"}).is_closed
    assert link_to_open("travel", "Pay", "https://pay.example.org/").is_closed
    assert not form_to_fill_in("travel", "?", TRIP).is_closed


@rows(
    "name",
    ["password", "userPassword", "pass_phrase", "apiKey", "api-key", "token", "PIN", "client_secret", "cvv"],
)
def test_secrets_are_not_asked_for(name):
    """The control: names that only look like them."""
    for schema in (
        {"properties": {name: {"type": "string"}}},
        {"properties": {"x": {"type": "string", "title": name}}},
    ):
        with pytest.raises(FormRefused, match="secret"):
            form_to_fill_in("s", "?", schema)
    with pytest.raises(FormRefused, match="url mode"):
        one({"type": "string", "format": "password"})
    for harmless in ("passenger", "spinner", "pinned", "city"):
        form_to_fill_in("s", "?", {"properties": {harmless: {"type": "string"}}})


@rows(
    ("message", "schema"),
    [
        ("m" * 3000, {}),
        ("?", {"properties": []}),
        ("?", {"properties": {f"p{each}": {"type": "string"} for each in range(11)}}),
        ("?", {"properties": {"x": {"type": "string", "enum": ["a"] * 51}}}),
        ("?", {"properties": {"x": {"type": "string", "enum": [1]}}}),
        ("?", {"properties": {"x": {"type": "object"}}}),
        ("?", {"properties": {"x": {"type": "string", "description": "d" * 400}}}),
        ("?", {"properties": {"n" * 400: {"type": "string"}}}),
        ("?", {"properties": {"x": "string"}}),
        ("?", {"properties": {"x": {"type": "array", "items": {"type": "string"}}}}),
    ],
)
def test_what_is_too_much_is_refused(message, schema):
    with pytest.raises(FormRefused):
        form_to_fill_in("s", message, schema)


@rows(
    "address",
    ["", "javascript:alert(1)", "file:///etc/passwd", "https://", "https://me@evil.example/", "https://a\u202eb/",
     "https://x/" + "y" * 3000, "http://[", "https://ex\nample/"],
)  # fmt: skip
def test_addresses_that_nobody_is_shown(address):
    with pytest.raises(FormRefused):
        link_to_open("s", "?", address)


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["type", "properties", "x", "enum", "oneOf", "const", "items", "required", "title", "string", "array"]
    ) | st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["properties", "required", "type"]), _json), st.text(max_size=60))
def test_whatever_a_server_sends_is_a_form_or_refused(schema, said):
    """And whatever a person writes is an answer or is not."""
    try:
        form = form_to_fill_in("s", "?", schema)
    except FormRefused:
        return
    try:
        assert set(read(form, said)) <= {field.name for field in form.fields}
    except NotAnAnswer:
        pass


def test_one_limit_alone_is_said_and_what_is_no_limit_is_none():
    """Negative control: limits of the wrong kind bind nobody."""
    assert one({"type": "number", "minimum": 0.5}).fields[0].describe() == "a number of at least 0.5"
    assert one({"type": "string", "maxLength": 9}).fields[0].describe() == "text of at most 9 characters"
    odd = one({"type": "integer", "minimum": "1", "maximum": True, "maxLength": 1})
    assert odd.fields[0].describe() == "a whole number"
    assert read(odd, "-7") == {"x": -7}


def test_a_form_that_was_kept_before_there_were_limits_can_be_read():
    form = form_to_fill_in("travel", "Which trip?", TRIP)
    kept = form.as_json()
    for each in kept["fields"]:
        del each["least"], each["most"]
    assert read(form_of(json.loads(json.dumps(kept))), "city: X; nights: 99") == {"city": "X", "nights": 99}
