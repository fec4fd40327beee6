"""Whether the arguments of a model fit what a tool says it takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

__all__ = ["problem_with"]

_SHOWN_CHARS = 200


def problem_with(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """
    What is wrong with ``arguments`` by the JSON Schema ``parameters``, as a sentence for the model, or None.

    Null stands for an optional argument that was left out. A schema that is none allows everything.
    """
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError:
        return None
    properties, required = parameters.get("properties", {}), parameters.get("required", ())
    given = {name: value for name, value in arguments.items() if value is not None or name in required}
    problems = []
    for error in Draft202012Validator(parameters).iter_errors(given):
        where = "".join(f"{part}: " for part in error.path)
        problems.append(f"{where}{error.message}"[:_SHOWN_CHARS])
    if not problems:
        return None
    return f"{'; '.join(problems)}. Arguments are: {', '.join(properties) or 'none'}."
