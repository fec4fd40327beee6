"""
Completes the schemas of tools for servers that check them strictly, and maps property names both ways. Pure.
A JSON Schema may leave out what some providers demand: the ``items`` of an array, the ``properties`` of an
object. Anthropic and others accept only plain property names; others get one on the way out, and the
arguments of a call get the original back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_DEPTH = 40


def complete_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool's arguments as every server accepts it."""
    return {"type": "object", "properties": {}} | dict(_completed(schema, 0))


def plain_schema(schema: Any, depth: int = 0) -> dict[str, Any]:
    """The schema in the few words that every server knows; what limits a value more closely is left out."""
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return {}
    out = {key: schema[key] for key in ("type", "description", "enum", "required") if key in schema}
    if "const" in schema:
        out["enum"] = [schema["const"]]
    if isinstance(kinds := out.get("type"), list):
        out["type"] = next((kind for kind in kinds if kind != "null"), "string")
    elif "enum" in out and all(isinstance(value, str) for value in out["enum"]):
        out.setdefault("type", "string")
    if isinstance(properties := schema.get("properties"), Mapping):
        out["properties"] = {name: plain_schema(each, depth + 1) for name, each in properties.items()}
    if "items" in schema:
        out["items"] = plain_schema(schema["items"], depth + 1)
    if isinstance(choices := schema.get("anyOf", schema.get("oneOf")), list):
        out["anyOf"] = [plain_schema(each, depth + 1) for each in choices]
    return out


def restore_names(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the property names of the tool's own schema."""
    restored = _restored(arguments, schema, 0)
    return restored if isinstance(restored, dict) else arguments


def _completed(schema: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            names = _wire_names(value)
            wide = {name: {} if each is True else each for name, each in value.items()}
            out[key] = {names[name]: _completed(each, depth + 1) for name, each in wide.items()}
        elif key == "required" and isinstance(value, list) and isinstance(schema.get("properties"), Mapping):
            names = _wire_names(schema["properties"])
            out[key] = [names.get(name, name) for name in value if isinstance(name, str)]
        elif key in ("$defs", "definitions") and isinstance(value, Mapping):
            out[key] = {name: _completed(each, depth + 1) for name, each in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            out[key] = [_completed(each, depth + 1) for each in value]
        elif key in ("items", "additionalProperties", "not"):
            out[key] = _completed(value, depth + 1)
        else:
            out[key] = value
    kinds = out.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "array" in kinds and not isinstance(out.get("items"), Mapping):
        out["items"] = {}
    if "object" in kinds:
        out.setdefault("properties", {})
    return out


def _restored(value: Any, schema: Any, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return value
    if isinstance(value, list):
        return [_restored(each, schema.get("items"), depth + 1) for each in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or not isinstance(properties, Mapping):
        return value
    originals = {wire: name for name, wire in _wire_names(properties).items()}
    return {
        originals.get(key, key): _restored(each, properties.get(originals.get(key, key)), depth + 1)
        for key, each in value.items()
    }


def _wire_names(properties: Mapping[str, Any]) -> dict[str, str]:
    """The plain name of each property; no two are the same."""
    names = {name: name for name in properties if _PLAIN.fullmatch(name)}
    for name in properties:
        if name not in names:
            plain = re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:60] or "_"
            while plain in names.values():
                plain = f"{plain[:60]}_{len(names)}"
            names[name] = plain
    return names
