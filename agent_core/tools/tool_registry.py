"""
The tools that every run has, filled once at start, and the check of a call's arguments against the tool's
schema. Tools of a single run come as ``extra_tools`` and are never registered here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from agent_core.models import ToolDefinition, ToolResult
from agent_core.ports import ToolPort

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

# The library of schemas is loaded by the first call of a tool, not by the start of a daemon.
# ruff: noqa: PLC0415

_SHOWN_CHARS = 200


def problem_with(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """
    Describe the violations of ``arguments`` against a JSON Schema, as a sentence for the model, or None.

    Null stands for an optional argument that was left out. An invalid schema, or one with references outside
    itself, allows everything; nothing is fetched. Only the first few violations are named.
    """
    from referencing.exceptions import Unresolvable

    validator = _validator(json.dumps(parameters, sort_keys=True))
    if validator is None:
        return None
    properties, required = parameters.get("properties", {}), parameters.get("required", ())
    given = {name: value for name, value in arguments.items() if value is not None or name in required}
    problems = []
    try:
        for error in islice(validator.iter_errors(given), 5):
            where = "".join(f"{part}: " for part in error.path)
            problems.append(f"{where}{error.message}"[:_SHOWN_CHARS])
    except Unresolvable:
        return None
    if not problems:
        return None
    return f"{'; '.join(problems)}. Arguments are: {', '.join(properties) or 'none'}."


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator | None:
    """Return the cached validator; None: an invalid schema, whose check takes longer than a call's."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    parameters = json.loads(schema)
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError:
        return None
    return Draft202012Validator(parameters, registry=Registry())  # an empty one, which fetches nothing


def fit_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The arguments as the schema wants them, where a model means that without doubt.

    Null, and an empty text for what is no free text, stand for an optional argument that was left out. A text
    that is a number, true or false, a list or an object in JSON, is that where no text is wanted.
    """
    properties, required = schema.get("properties"), schema.get("required", ())
    if not isinstance(properties, Mapping):
        return dict(arguments)
    fit: dict[str, Any] = {}
    for name, value in arguments.items():
        wanted = properties.get(name)
        allowed = _types(wanted)
        choices = wanted.get("enum") if isinstance(wanted, dict) else None
        is_no_choice = isinstance(choices, list) and "" not in choices
        is_empty = value == "" and ("string" not in allowed or is_no_choice)
        is_left_out = is_empty or (value is None and "null" not in allowed)
        if allowed and name not in required and is_left_out:
            continue
        is_text = isinstance(value, str) and bool(allowed) and "string" not in allowed
        fit[name] = _meant(value, allowed) if is_text else value
    return fit


def _types(schema: object) -> frozenset[str]:
    """The types of values that a schema allows; empty where that is not plain."""
    if not isinstance(schema, dict):
        return frozenset()
    either = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(either, list):
        parts = [_types(each) for each in either]
        return frozenset().union(*parts) if all(parts) else frozenset()
    if {"$ref", "allOf", "not", "if"} & schema.keys():
        return frozenset()
    if "type" not in schema:
        values = schema.get("enum")
        is_texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
        return frozenset({"string"} if is_texts else ())
    kind = schema["type"]
    kinds = kind if isinstance(kind, list) else [kind]
    found = {one for one in kinds if isinstance(one, str)}
    return frozenset(found | ({"null"} if found and schema.get("nullable") is True else set()))


def _meant(text: str, allowed: frozenset[str]) -> Any:
    with suppress(ValueError, RecursionError):
        value = json.loads(text.strip().lower())
        if isinstance(value, list | dict):
            return json.loads(text) if {list: "array", dict: "object"}[type(value)] in allowed else text
        if isinstance(value, bool):
            return value if "boolean" in allowed else text
        if isinstance(value, int) and allowed & {"integer", "number"}:
            return value
        if isinstance(value, float) and math.isfinite(value) and "number" in allowed:
            return value
    return text


def definition_of(tool: ToolPort) -> ToolDefinition:
    """The definition of ``tool`` for a model."""
    return ToolDefinition(
        name=tool.name,
        description=tool.description,
        parameters=dict(tool.parameters),
        origins=getattr(tool, "definition_origins", ()),
    )


async def run_tool(tool: ToolPort, arguments: dict[str, Any], *, tool_call_id: str = "") -> ToolResult:
    """Run ``tool`` if the arguments fit, else return the problem; its exceptions pass through."""
    problem = problem_with(arguments, tool.parameters)
    if problem is not None:
        result = ToolResult(content=f"The arguments of {tool.name} do not fit: {problem}", is_error=True)
    else:
        result = await tool.execute(**arguments)
    return result.model_copy(update={"tool_call_id": tool_call_id})


class ToolRegistry:
    """Tools by name, in the order of their registration."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolPort] = {}
        self._definitions: list[ToolDefinition] = []

    def register(self, tool: ToolPort) -> None:
        """Add a tool. Raises `ValueError`: there is one of that name already."""
        if tool.name in self._tools:
            raise ValueError(f"there already is a tool named {tool.name!r}")
        self._tools[tool.name] = tool
        self._definitions.append(definition_of(tool))

    def get(self, name: str) -> ToolPort | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    def get_definitions(self) -> list[ToolDefinition]:
        """The definitions of all tools for a model."""
        return list(self._definitions)

    async def execute(self, name: str, /, *, tool_call_id: str = "", **arguments: Any) -> ToolResult:
        """Run the tool with that name; see `run_tool`. The model learns that a name does not exist."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolResult(
                content=f"There is no tool named {name[:80]!r}. Tools are: {known}.",
                is_error=True,
                tool_call_id=tool_call_id,
            )
        return await run_tool(tool, arguments, tool_call_id=tool_call_id)
