"""
Reads the text of each setting from the models of the configuration.

The text of a setting is the docstring below its line, read from the source when it is asked for; a daemon
carries none of it. A section's text is the docstring of its model, which may speak of its settings by name.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel


def section_text(model: type[BaseModel]) -> str:
    """The description of a section: its model's docstring; empty if there is none."""
    return inspect.cleandoc(model.__dict__.get("__doc__") or "")


def setting_text(model: type[BaseModel], name: str) -> str:
    """The description of one setting; empty if there is none."""
    for owner in model.__mro__:
        if issubclass(owner, BaseModel) and owner is not BaseModel and name in _texts(owner):
            return _texts(owner)[name]
    return model.model_fields[name].description or ""


def plain_type(annotation: Any) -> Any:
    """The type without its annotations."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def nested_model(annotation: Any, *, held: bool = True) -> type[BaseModel] | None:
    """The first model that an annotation allows: itself or, if ``held``, in a list or in a mapping."""
    annotation = plain_type(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in ((Union, UnionType, tuple, list, dict) if held else (Union, UnionType)):
        parts = get_args(annotation)
        return next((found for part in parts if (found := nested_model(part, held=held))), None)
    return None


@lru_cache(maxsize=256)
def _texts(model: type[BaseModel]) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, SyntaxError):
        return {}  # without its source: a program that was packed into one file
    body = tree.body[0].body if tree.body and isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for line, following in pairwise(body):
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[line.target.id] = inspect.cleandoc(following.value.value)
    return found
