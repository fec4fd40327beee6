"""Checks the arguments of a tool call against the tool's schema. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

_SHOWN_CHARS = 200
_MOST_SHOWN = 5


def problem_with(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """
    What is wrong with ``arguments`` by the JSON Schema ``parameters``, as a sentence for the model, or None.

    Null stands for an optional argument that was left out. A schema that is none, or that refers to anything
    outside of itself, allows everything; nothing is ever fetched. Of many problems the first few are named.
    """
    validator = _validator(json.dumps(parameters, sort_keys=True))
    if validator is None:
        return None
    properties, required = parameters.get("properties", {}), parameters.get("required", ())
    given = {name: value for name, value in arguments.items() if value is not None or name in required}
    problems = []
    try:
        for error in islice(validator.iter_errors(given), _MOST_SHOWN):
            where = "".join(f"{part}: " for part in error.path)
            problems.append(f"{where}{error.message}"[:_SHOWN_CHARS])
    except Unresolvable:
        return None
    if not problems:
        return None
    return f"{'; '.join(problems)}. Arguments are: {', '.join(properties) or 'none'}."


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator | None:
    """To look whether a schema is one takes longer than to look at the arguments of a call."""
    parameters = json.loads(schema)
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError:
        return None
    return Draft202012Validator(parameters, registry=Registry())  # an empty one, which fetches nothing
