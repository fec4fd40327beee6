"""
Generates the JSON Schema (draft 2020-12) of ``squidbot.yaml`` from the models, for editors and other
programs. It accepts whatever the loader accepts, and refuses unknown keys, wrong kinds and values outside of
their limits. What only the whole can show (pools that do not exist, an account without a password) it cannot
say; `squidbot config check` can. Any value may be, or hold, a reference such as ``${secret:NAME}``, and a
number may stand in quotes, because the loader reads both.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from gateway.routing.access import Alias
from gateway.settings import Settings
from gateway.settings.descriptions import plain_type, section_text, setting_text

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = {"$ref": "#/$defs/Reference"}
_SCALARS = frozenset({"integer", "number", "boolean", "string"})
_LIMITS = frozenset({"enum", "const", "pattern", "minLength", "maxLength"})
_AS_TEXT = {
    "integer": r"^\s*[-+]?[0-9][0-9_]*(\.0*)?\s*$",
    "number": r"^\s*[-+]?([0-9._]+([eE][-+]?[0-9]+)?|[iI][nN][fF][a-zA-Z]*|[nN][aA][nN])\s*$",
    "boolean": r"^([01ynYNtfTF]|[oO][nN]|[oO][fF][fF]|[yY][eE][sS]|[nN][oO]"
    r"|[tT][rR][uU][eE]|[fF][aA][lL][sS][eE])$",
}
_ALSO: dict[tuple[str, str], dict[str, Any]] = {("Watch", "command"): {"type": "string", "minLength": 1}}
"""What a model's own code reads besides what its types say."""


def config_schema() -> dict[str, Any]:
    """The schema, as JSON can hold it."""
    schema = Settings.model_json_schema(mode="validation")
    definitions: dict[str, Any] = schema.pop("$defs", {})
    for model in _models(Settings, set()):
        part = schema if model is Settings else definitions.get(model.__name__)
        if part is not None:
            _describe(part, model)
    definitions[Alias.__name__] = _alias()
    definitions = {name: _opened(part) for name, part in definitions.items()}
    definitions["Reference"] = {
        "description": "A text with ${NAME} of the environment, ${file:/path} or ${secret:NAME} in it.",
        "type": "string",
        "pattern": r"\$\{",
    }
    head = {"$schema": DRAFT, "title": "squidbot.yaml", "description": "The configuration of squidbot."}
    opened = _opened({name: part for name, part in schema.items() if name not in ("title", "description")})
    return {**head, **opened, "$defs": dict(sorted(definitions.items()))}


def _describe(part: dict[str, Any], model: type[BaseModel]) -> None:
    if text := section_text(model):
        part["description"] = text
    else:
        part.pop("description", None)
    for name, inner in part.get("properties", {}).items():
        inner.pop("title", None)
        if text := setting_text(model, name):
            inner["description"] = text
        if more := _ALSO.get((model.__name__, name)):
            inner["anyOf"] = [*inner["anyOf"], more]


def _opened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, opened for what the loader also accepts; it is walked through as a whole."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        match key:
            case "properties":
                result[key] = {name: _opened(inner) for name, inner in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                result[key] = _opened(value)
            case "anyOf" | "oneOf":
                result[key] = [_opened(inner) for inner in value]
            case "default" if isinstance(value, dict):
                pass  # whole sections say their own
            case _:
                result[key] = value
    return _with_references(result)


def _with_references(result: dict[str, Any]) -> dict[str, Any]:
    """Extend the schema of a value by a reference to it, where that is allowed."""
    kind = result.get("type")
    if kind not in _SCALARS and not {"enum", "const"} & result.keys():
        return result
    if kind == "string" and not _LIMITS & result.keys():
        return result
    kept: dict[str, Any] = {
        key: result.pop(key) for key in ("description", "default", "title") if key in result
    }
    also: list[dict[str, Any]] = []
    if pattern := _AS_TEXT.get(str(kind)):
        also.append({"type": "string", "pattern": pattern})
    if kind == "boolean":
        also.append({"enum": [0, 1]})
    if "off" in result.get("enum", ()):
        also.append({"const": False})  # as some editors write it
    return {**kept, "anyOf": [result, *also, _REFERENCE]}


def _alias() -> dict[str, Any]:
    whole = {
        "type": "object",
        "additionalProperties": False,
        "required": ["channel", "address"],
        "properties": {"channel": {"type": "string"}, "address": {"type": "string"}},
    }
    told = "An address of the owner: a Matrix id, a mail address, or {channel, address}."
    return {"description": told, "anyOf": [{"type": "string"}, whole]}


def _models(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """A model and all models in it."""
    if model in seen:
        return seen
    seen.add(model)
    waiting = [field.annotation for field in model.model_fields.values()]
    while waiting:
        kind = plain_type(waiting.pop())
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            _models(kind, seen)
        else:
            waiting += get_args(kind)
    return seen
