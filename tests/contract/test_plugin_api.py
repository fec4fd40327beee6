"""
The interface for plugins stays as it is: every public signature stands in ``api.txt``.

After a change that plugins may see (an addition with a default, or a new `API_VERSION`), write it anew with
``python -m tests.contract.test_plugin_api``.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from pathlib import Path

from pydantic import BaseModel

import squidbot_api

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("api.txt")
MODULES = ("squidbot_api.channel", "squidbot_api.declare", "squidbot_api.tool")


def api():
    lines = [f"API_VERSION = {squidbot_api.API_VERSION}"]
    for name in MODULES:
        module = importlib.import_module(name)
        for each in module.__all__:
            lines += _described(f"{name}.{each}", getattr(module, each))
    return "\n".join(lines) + "\n"


def _default(field):
    value = field.get_default(call_default_factory=True)
    return f"{type(value).__name__}()" if dataclasses.is_dataclass(value) else repr(value)


def _described(name, thing):
    if not inspect.isclass(thing):
        yield (
            f"{name}{_signature(thing)}"
            if callable(thing) and inspect.isfunction(thing)
            else f"{name}: {_plain(thing)}"
        )
        return
    bases = [base.__name__ for base in thing.__bases__ if base is not object]
    yield f"{name}({', '.join(bases)})"
    if issubclass(thing, enum.Enum):
        yield from (f"    {one.name} = {one.value!r}" for one in thing)
        return
    written = inspect.get_annotations(thing)
    if issubclass(thing, BaseModel):
        for field in (name for name in written if name in thing.model_fields):
            one = thing.model_fields[field]
            default = "" if one.is_required() else f" = {_default(one)}"
            yield f"    {field}: {written[field]}{default}"
    elif dataclasses.is_dataclass(thing):
        for one in dataclasses.fields(thing):
            default = "" if one.default is dataclasses.MISSING else f" = {one.default!r}"
            yield f"    {one.name}: {one.type}{default}"
    else:
        for field, kind in written.items():
            yield f"    {field}: {kind}"
    for method, one in sorted(vars(thing).items()):
        if isinstance(one, property) and not method.startswith("_"):
            yield f"    {method}: property"
        function = getattr(one, "__func__", one)
        if inspect.isfunction(function) and (not method.startswith("_") or method == "__call__"):
            kind = "async " if inspect.iscoroutinefunction(function) else ""
            must = " (abstract)" if getattr(function, "__isabstractmethod__", False) else ""
            yield f"    {kind}{method}{_signature(function)}{must}"


def _signature(function):
    return _plain(inspect.signature(function))


def _plain(thing):
    return re.sub(r"<class '([\w.]+)'>", r"\1", str(thing)).replace("typing.", "")


def test_every_public_signature_is_the_agreed_one():
    """A plugin that was written yesterday works today."""
    assert api() == FILE.read_text(), "see the module's docstring"


def test_a_change_is_noticed(monkeypatch):
    """The negative control: another parameter, and another default."""
    from channels.plugin import ChannelPlugin, Server

    def build(self, config, services, more):
        """Another signature."""

    monkeypatch.setattr(ChannelPlugin, "build", build)
    assert api() != FILE.read_text()
    monkeypatch.undo()
    monkeypatch.setattr(dataclasses.fields(Server)[-1], "default", "other")
    assert api() != FILE.read_text()


def test_the_package_only_gives_names():
    """Nothing is defined there, so nothing can be wrong there."""
    for path in (ROOT / "squidbot_api").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_all = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            assert is_docstring or is_all or isinstance(node, ast.ImportFrom), ast.unparse(node)


if __name__ == "__main__":
    FILE.write_text(api())
