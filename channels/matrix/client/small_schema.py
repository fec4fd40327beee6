"""
As much of JSON Schema (draft 4) as nio's own schemas use, in the place of the library ``jsonschema``.

That library and what it brings take 3 MB, for a dozen keywords. What is here has its names and its behaviour,
so that nio does not see a difference: keywords that draft 4 does not know, such as ``const``, mean nothing; a
boolean is no number. ``tests/unit/channels/matrix/test_small_schema.py`` compares both on nio's schemas, and
fails when nio begins to use a keyword that is not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

__all__ = ["KEYWORDS", "Draft4Validator", "FormatChecker", "SchemaError", "ValidationError", "validators"]

Errors = Iterator["ValidationError"]
Check = Callable[["Draft4Validator", Any, Any, Mapping[str, Any]], Errors]


class ValidationError(Exception):
    """What does not fit."""


class SchemaError(Exception):
    """Never raised here; nio expects it."""


class FormatChecker:
    """The formats that nio defines by itself."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Callable[[Any], Any], Any]] = {}

    def checks(self, name: str, raises: Any = ()) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Register a check, as a decorator."""

        def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self._checks[name] = (function, raises)
            return function

        return register

    def fits(self, value: Any, name: str) -> bool:
        """Whether a value has a format; one that is not known fits everything."""
        function, raises = self._checks.get(name, (None, ()))
        if function is None:
            return True
        try:
            return bool(function(value))
        except raises:
            return False


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES.get(name, ()))


def _type(_: Draft4Validator, names: Any, value: Any, __: Mapping[str, Any]) -> Errors:
    if not any(_is(value, name) for name in ([names] if isinstance(names, str) else names)):
        yield ValidationError(f"not of type {names}")


def _properties(validator: Draft4Validator, known: Any, value: Any, _: Mapping[str, Any]) -> Errors:
    if isinstance(value, dict):
        for name, schema in known.items():
            if name in value:
                yield from validator.iter_errors(value[name], schema)


def _pattern_properties(validator: Draft4Validator, known: Any, value: Any, _: Mapping[str, Any]) -> Errors:
    if isinstance(value, dict):
        for pattern, schema in known.items():
            for name, one in value.items():
                if re.search(pattern, name):
                    yield from validator.iter_errors(one, schema)


def _additional(validator: Draft4Validator, wanted: Any, value: Any, schema: Mapping[str, Any]) -> Errors:
    if not isinstance(value, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name, one in value.items():
        if name in schema.get("properties", {}) or any(re.search(pattern, name) for pattern in patterns):
            continue
        if isinstance(wanted, dict):
            yield from validator.iter_errors(one, wanted)
        elif not wanted:
            yield ValidationError("more properties than are known")


def _required(_: Draft4Validator, names: Any, value: Any, __: Mapping[str, Any]) -> Errors:
    if isinstance(value, dict) and any(name not in value for name in names):
        yield ValidationError("a property is missing")


def _items(validator: Draft4Validator, schema: Any, value: Any, _: Mapping[str, Any]) -> Errors:
    if isinstance(value, list):
        for one in value:
            yield from validator.iter_errors(one, schema)


def _enum(_: Draft4Validator, wanted: Any, value: Any, __: Mapping[str, Any]) -> Errors:
    if value not in wanted:
        yield ValidationError("none of the values that are known")


def _minimum(_: Draft4Validator, least: Any, value: Any, __: Mapping[str, Any]) -> Errors:
    if _is(value, "number") and value < least:
        yield ValidationError(f"less than {least}")


def _pattern(_: Draft4Validator, pattern: Any, value: Any, __: Mapping[str, Any]) -> Errors:
    if isinstance(value, str) and not re.search(pattern, value):
        yield ValidationError("does not look as it should")


def _not(validator: Draft4Validator, schema: Any, value: Any, _: Mapping[str, Any]) -> Errors:
    if next(validator.iter_errors(value, schema), None) is None:
        yield ValidationError("what it must not be")


def _format(validator: Draft4Validator, name: Any, value: Any, _: Mapping[str, Any]) -> Errors:
    if validator.format_checker is not None and not validator.format_checker.fits(value, name):
        yield ValidationError(f"no {name}")


class Draft4Validator:
    """Checks values against a schema."""

    VALIDATORS: ClassVar[dict[str, Check]] = {
        "type": _type,
        "properties": _properties,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional,
        "required": _required,
        "items": _items,
        "enum": _enum,
        "minimum": _minimum,
        "pattern": _pattern,
        "not": _not,
        "format": _format,
    }

    def __init__(self, schema: Mapping[str, Any], format_checker: FormatChecker | None = None) -> None:
        self._schema = schema
        self.format_checker = format_checker

    def validate(self, value: Any) -> None:
        """Raise the first error, if there is one."""
        for error in self.iter_errors(value):
            raise error

    def iter_errors(self, value: Any, schema: Mapping[str, Any] | None = None) -> Errors:
        """All errors, in the order of the schema."""
        schema = self._schema if schema is None else schema
        for keyword, wanted in schema.items():
            check = self.VALIDATORS.get(keyword)
            if check is not None:
                yield from check(self, wanted, value, schema)


KEYWORDS = frozenset(Draft4Validator.VALIDATORS)


def _extend(validator: type[Draft4Validator], more: Mapping[str, Check]) -> type[Draft4Validator]:
    return type("Extended", (validator,), {"VALIDATORS": {**validator.VALIDATORS, **more}})


validators = SimpleNamespace(extend=_extend)
