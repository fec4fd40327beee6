"""
Makes fit what servers and models send nearly as the protocol and a schema want it. Pure.

One odd entry of a list costs itself and no other: what can be completed is, and what cannot is left out and
named. Of the arguments of a call only what a model means by them without doubt is changed; the rest is for
the server to refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agent_core.tools.mcp.definitions import is_usable_name

_LISTS = {
    "tools": ("tool", "name"),
    "resources": ("resource", "uri"),
    "resourceTemplates": ("address template", "uriTemplate"),
    "prompts": ("prompt", "name"),
}


def fit_lists(result: dict[str, Any]) -> list[str]:
    """Make the lists in a server's answer fit, in place; what was left out, for the owner."""
    left_out: list[str] = []
    for key, (what, name) in _LISTS.items():
        entries = result.get(key)
        if not isinstance(entries, list) or "content" in result:
            continue
        result[key] = fit = []
        for number, entry in enumerate(entries, start=1):
            if isinstance(entry, dict) and is_usable_name(entry.get(name)):
                fit.append(_fit_entry(key, name, entry))
            else:
                left_out.append(f"{what} {number} of the list: it has no usable {name}")
    return left_out


def _fit_entry(key: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    fit = {name: entry[name]}
    if isinstance(entry.get("description"), str):
        fit["description"] = entry["description"]
    if key == "tools":
        schema = entry.get("inputSchema")
        fit["inputSchema"] = {**(schema if isinstance(schema, dict) else {}), "type": "object"}
    elif key == "prompts":
        arguments = entry.get("arguments")
        fit["arguments"] = [
            {"name": each["name"], "required": each.get("required") is True}
            for each in (arguments if isinstance(arguments, list) else ())
            if isinstance(each, dict) and isinstance(each.get("name"), str)
        ]
    else:
        fit["name"] = entry["name"] if isinstance(entry.get("name"), str) else entry[name]
    return fit


def fit_arguments(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """
    The arguments of a call as their schema wants them.

    Null, and an empty text for what is no free text, stand for an optional argument that was left out. A text
    that is a number, or true or false, is that where no text is wanted.
    """
    properties, required = schema.get("properties", {}), schema.get("required", ())
    fit: dict[str, Any] = {}
    for name, value in arguments.items():
        wanted = properties.get(name)
        allowed = _types(wanted)
        is_choice = isinstance(wanted, dict) and isinstance(wanted.get("enum"), list)
        is_empty = value == "" and ("string" not in allowed or (is_choice and "" not in wanted["enum"]))
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
    if not ("type" in schema or "enum" in schema) or {"$ref", "allOf", "not", "if"} & schema.keys():
        return frozenset()
    if "type" not in schema:
        values = schema["enum"] if isinstance(schema["enum"], list) else []
        if any(not isinstance(value, str) for value in values):
            return frozenset()
        return frozenset({"string"})
    kind = schema["type"]
    found = {kind} if isinstance(kind, str) else set(filter(_is_text, kind if isinstance(kind, list) else ()))
    return frozenset(found | ({"null"} if found and schema.get("nullable") is True else set()))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _meant(text: str, allowed: frozenset[str]) -> Any:
    with suppress(ValueError, RecursionError):
        value = json.loads(text.strip().lower())
        if isinstance(value, bool):
            return value if "boolean" in allowed else text
        if isinstance(value, int) and allowed & {"integer", "number"}:
            return value
        if isinstance(value, float) and math.isfinite(value) and "number" in allowed:
            return value
    return text
