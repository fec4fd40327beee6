"""
Turns pydantic's errors into sentences for the operator, each with key and line, none with a secret; also
checks addresses to listen on. Pure.
"""

from __future__ import annotations

import difflib
import ipaddress
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.observability.redaction import Redactor
from gateway.settings.accounts import AccountProblems
from gateway.settings.descriptions import nested_model, plain_type
from gateway.settings.source import KeyPath, Problem, Source, is_secret_name, show_path
from gateway.system.terminal_text import plain_line

_WANTED = {
    "string_type": "text; put it in quotes if it looks like a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": 'a list, such as ["one", "two"]',
    "list_type": 'a list, such as ["one", "two"]',
    "dict_type": '"key: value" lines',
    "model_type": '"key: value" lines',
    "model_attributes_type": '"key: value" lines',
    "path_type": "the path of a file",
}


def problems_of(error: ValidationError, source: Source, model: type[BaseModel]) -> list[Problem]:
    """Pydantic's errors as problems of the file."""
    return [each for detail in error.errors(include_url=False) for each in _problems(detail, source, model)]


def explain(source: Source, problems: list[Problem]) -> str:
    """All problems as one readable text, in the order of the file."""
    redactor = Redactor(source.secret_texts)
    ordered = sorted(
        problems, key=lambda problem: (problem.line or source.line_of(problem.path), problem.column)
    )
    lines = [plain_line(redactor.redact_configured_secrets(_shown(problem, source))) for problem in ordered]
    unique = list(dict.fromkeys(lines))
    count = "1 problem" if len(unique) == 1 else f"{len(unique)} problems"
    return "\n".join([f"{source.path}: {count}", *(f"  {line}" for line in unique)])


def _shown(problem: Problem, source: Source) -> str:
    line = problem.line or (source.line_of(problem.path) if problem.path else 0)
    where = [f"line {line}"] if line else []
    if problem.column and not problem.path:
        where.append(f"column {problem.column}")
    if problem.path:
        where.append(show_path(problem.path))
    return f"{', '.join(where)}: {problem.message}" if where else problem.message


def _problems(detail: ErrorDetails, source: Source, model: type[BaseModel]) -> list[Problem]:
    between = detail["ctx"]["error"] if detail["type"] == "value_error" else None
    if isinstance(between, AccountProblems):
        return between.problems
    return [_problem(detail, source, model)]


def _problem(detail: ErrorDetails, source: Source, model: type[BaseModel]) -> Problem:
    path = _known_path(detail["loc"], source)
    match detail["type"]:
        case "extra_forbidden":
            return Problem(path, f"unknown key{_meant(path, model)}")
        case "missing":
            return Problem((*path, detail["loc"][-1]) if path != detail["loc"] else path, "is missing")
        case "value_error":
            return Problem(path, str(detail["ctx"]["error"]))
        case "literal_error" | "enum":
            return Problem(path, f"must be {detail['ctx']['expected']}{_given(detail, path, source)}")
        case kind if kind in _WANTED:
            return Problem(path, f"must be {_WANTED[kind]}{_given(detail, path, source)}")
        case _:
            said = detail["msg"].removeprefix("Input should be ")
            text = f"must be {said}" if said != detail["msg"] else detail["msg"]
            return Problem(path, text[:1].lower() + text[1:] + _given(detail, path, source))


def _known_path(loc: tuple[int | str, ...], source: Source) -> KeyPath:
    """Return the part of ``loc`` in the file; Pydantic adds names such as a union's member."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in source.lines:
            path = (*path, part)
    return path


def _given(detail: ErrorDetails, path: KeyPath, source: Source) -> str:
    """Return the text about the given value, if it may be shown."""
    value = detail.get("input")
    if path in source.referenced or any(is_secret_name(part) for part in path):
        return ""
    if value is None:
        return "; it is empty"
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    if isinstance(value, int | float):
        return f", not {value}"
    return f", not {value!r}" if isinstance(value, str) and len(value) <= 60 else ""


def _meant(path: KeyPath, model: type[BaseModel]) -> str:
    owner = _model_at(model, path[:-1])
    if owner is None:
        return ""
    near = difflib.get_close_matches(str(path[-1]), owner.model_fields, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; known here: {', '.join(owner.model_fields)}"


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    annotation: Any = model
    for part in path:
        found = None if isinstance(part, int) else nested_model(annotation, held=False)
        if found is not None:
            field = found.model_fields.get(str(part))
            if field is None:
                return None
            annotation = field.annotation
        else:
            # A mapping or a list: its elements are of the last type argument.
            inner = [argument for argument in get_args(_list_in(annotation)) if argument is not Ellipsis]
            if not inner:
                return None
            annotation = inner[-1]
    return nested_model(annotation, held=False)


def _list_in(annotation: Any) -> Any:
    """The list or mapping among what is allowed, if it is one of several things."""
    annotation = plain_type(annotation)
    if get_origin(annotation) in (Union, UnionType):
        found = (_list_in(part) for part in get_args(annotation))
        return next((part for part in found if get_origin(part) in (tuple, list, dict)), annotation)
    return annotation


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``host:port``, IPv6 hosts in brackets. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f'must be "host:port", such as "127.0.0.1:8811"; got {text!r}')
    if ":" in bare and not host.startswith("["):
        raise ValueError(f'an IPv6 address stands in brackets, such as "[::1]:8811"; got {text!r}')
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
