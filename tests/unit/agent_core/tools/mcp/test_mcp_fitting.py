"""Lists and arguments that are nearly as they should be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.tools.mcp.offers import all_pages, fit_lists
from agent_core.tools.tool_registry import fit_arguments
from tests.rows import rows

INTEGER, NUMBER, BOOLEAN, TEXT = ({"type": each} for each in ("integer", "number", "boolean", "string"))
LIST, OBJECT = {"type": "array"}, {"type": "object"}
MAYBE = {"anyOf": [INTEGER, {"type": "null"}]}
CHOICE = {"type": "string", "enum": ["a", "b"]}


@rows(
    ("schema", "value", "fit"),
    [
        (INTEGER, None, "left out"),
        (CHOICE, None, "left out"),
        (INTEGER, "", "left out"),
        (CHOICE, "", "left out"),
        (MAYBE, "", "left out"),
        (INTEGER, "5", 5),
        (MAYBE, "5", 5),
        (NUMBER, "2.5", 2.5),
        (BOOLEAN, "True", True),
        (LIST, '["a", "B"]', ["a", "B"]),
        (OBJECT, '{"Name": 1}', {"Name": 1}),
        ({"anyOf": [LIST, {"type": "null"}]}, "[]", []),
        # The controls: what is allowed, or may mean something else, stays.
        (MAYBE, None, None),
        ({"type": "integer", "nullable": True}, None, None),
        ({"type": ["string", "null"]}, None, None),
        (TEXT, "", ""),
        (TEXT, "5", "5"),
        ({"type": ["string", "integer"]}, "5", "5"),
        ({"enum": ["", "a"]}, "", ""),
        ({"$ref": "#/$defs/x"}, None, None),
        ({}, None, None),
        (True, None, None),
        (INTEGER, "2.5", "2.5"),
        (INTEGER, "five", "five"),
        (INTEGER, "1_000", "1_000"),
        (NUMBER, "nan", "nan"),
        (INTEGER, "true", "true"),
        (INTEGER, 5, 5),
        (LIST, "a, b", "a, b"),
        (LIST, "[a]", "[a]"),
        (LIST, '{"a": 1}', '{"a": 1}'),
        (TEXT, "[1]", "[1]"),
    ],
)
def test_only_what_is_meant_without_doubt_is_changed(schema, value, fit):
    found = fit_arguments({"x": value}, {"properties": {"x": schema}})
    assert found == ({} if fit == "left out" else {"x": fit})


def test_what_is_required_is_left_to_the_server():
    schema = {"properties": {"x": INTEGER}, "required": ["x"]}
    assert fit_arguments({"x": None}, schema) == {"x": None}
    assert fit_arguments({"x": ""}, schema) == {"x": ""}
    assert fit_arguments({"x": "5", "y": None}, schema) == {"x": 5, "y": None}


@rows("structured", [[{"id": "1"}], [], "deleted", 7])
def test_a_structured_result_that_is_no_object_becomes_one(structured):
    """Servers without an SDK send lists; without this the outcome of such a call was unknown."""
    result = {"content": [{"type": "text", "text": "x"}], "structuredContent": structured}
    fit_lists(result)
    assert result["structuredContent"] == {"result": structured}
    alone = {"structuredContent": {"a": 1}}
    fit_lists(alone)
    assert alone["content"] == []
    for fine in (
        {"content": []},
        {"content": [], "structuredContent": None},
        {"isError": True},
    ):
        before = dict(fine)
        fit_lists(fine)
        assert fine == before


@pytest.mark.parametrize(
    ("pages", "most", "expected"),
    [
        ([("a b", "c"), ("a b", "c")], 2, ("a b", False)),
        ([("a", "c"), ("b", "c"), ("b", "c")], 3, ("a b", False)),
        ([("a", "1"), ("b", "2"), ("c", "")], 3, ("a b c", False)),
        ([("a", "1"), ("", "1")], 2, ("a", False)),
    ],
)
async def test_a_list_without_end_ends_where_it_says_the_same_again(pages, most, expected):
    """A server with one page may give it with a next one for ever; one that moves on under one name may not end."""
    asked = []

    async def ask(*, params):
        asked.append(params and params.cursor)
        names, cursor = pages[len(asked) - 1]
        return SimpleNamespace(names=names.split(), next_cursor=cursor)

    found, are_more = await all_pages(ask, lambda page: page.names)
    assert (" ".join(found), are_more) == expected
    assert len(asked) == most


def test_the_result_of_a_call_is_no_list():
    result = {"content": [], "tools": [7]}
    assert fit_lists(result) == []
    assert result["tools"] == [7]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "enum", "anyOf", "name", "uri", "inputSchema", "arguments", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(
    st.dictionaries(st.sampled_from(["tools", "resources", "resourceTemplates", "prompts"]), _json),
    _json,
    _json,
)
def test_whatever_comes_is_made_fit_or_named(result, schema, value):
    count = sum(len(each) for each in result.values() if isinstance(each, list))
    left_out = fit_lists(result)
    fit = [each for entries in result.values() if isinstance(entries, list) for each in entries]
    assert len(fit) + len(left_out) == count
    assert fit_lists(result) == []
    fit_arguments({"x": value}, {"properties": {"x": schema}})
