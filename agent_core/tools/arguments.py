"""
Whether the arguments of a model fit what a tool says it takes. Pure.

Only the basics of JSON Schema are looked at: required, type, enum, and unknown names where the schema forbids
them. A tool checks the rest itself; a model that gets a plain sentence back corrects itself most of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["problem_with"]

_SHOWN_CHARS = 80
_TYPES: dict[str, Any] = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": (list, tuple),
    "object": Mapping,
}


def problem_with(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """What is wrong with ``arguments``, as a sentence for the model, or None."""
    properties = parameters.get("properties")
    known: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    problems = [
        f"{name!r} is missing" for name in parameters.get("required", ()) if arguments.get(name) is None
    ]
    for name, value in arguments.items():
        schema = known.get(name)
        if isinstance(schema, Mapping):
            optional = value is None and name not in parameters.get("required", ())
            problem = None if optional else _problem_with_value(value, schema)
            if problem is not None and value is not None:
                problems.append(f"{name!r} {problem}")
        elif schema is None and parameters.get("additionalProperties") is False:
            problems.append(f"{name[:_SHOWN_CHARS]!r} is not an argument")
    if not problems:
        return None
    return f"{'; '.join(problems)}. Arguments are: {', '.join(known) or 'none'}."


def _problem_with_value(value: object, schema: Mapping[str, Any]) -> str | None:
    wanted = schema.get("type")
    kinds = [wanted] if isinstance(wanted, str) else list(wanted or ())
    if kinds and not any(_is(kind, value) for kind in kinds):
        return f"must be of type {' or '.join(kinds)}, not {_kind_of(value)}"
    allowed = schema.get("enum")
    if allowed is not None and value not in allowed:
        return f"must be one of {', '.join(map(repr, allowed))}"
    return None


def _is(kind: str, value: object) -> bool:
    """Whether a value is of a JSON Schema type; everything is of a type that we do not know."""
    if isinstance(value, bool):
        return kind == "boolean" or kind not in _TYPES
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, object))


def _kind_of(value: object) -> str:
    return next((kind for kind in _TYPES if _is(kind, value)), type(value).__name__)
