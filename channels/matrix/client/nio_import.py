"""
nio without the libraries that it imports and squidbot never uses: 7 MB of memory and a tenth of a second.

- ``cffi``: pycryptodome takes it if it is there, and parses C declarations with it. Without, it uses ctypes,
  to the same effect.
- ``aiohttp_socks``: for SOCKS proxies, which our configuration does not offer.
- ``jsonschema``: ``small_schema`` is as much of it as nio needs.
- ``h2`` and ``h11``: for ``nio.HttpClient``, a client without input and output of its own. Ours is
  ``nio.AsyncClient``, which speaks HTTP through aiohttp.

While nio is imported these names stand for nothing; afterwards they can be imported by anybody as usual. What
is there already is left alone. Measured on CPython 3.11 with nio 0.26.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from channels.matrix.client import small_schema

__all__ = ["load_nio"]

_ABSENT = ("cffi",)
_EMPTY = ("aiohttp_socks", "h2", "h2.connection", "h2.events", "h11")


class _LeftOut(ModuleType):
    """A module of which every public name exists and says, when it is called, that it is not there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def left_out(*_: object, **__: object) -> None:
            raise NotImplementedError(
                f"{self.__name__}.{name} is left out: see channels.matrix.client.nio_import"
            )

        return left_out


def load_nio() -> None:
    """Import nio, unless that has happened. It takes a while, so call it in a thread."""
    if "nio" not in sys.modules:
        with _left_out():
            importlib.import_module("nio")


def _schemas() -> dict[str, ModuleType]:
    """``jsonschema`` and its exceptions, small."""
    if "jsonschema" in sys.modules:
        return {}
    exceptions = ModuleType("jsonschema.exceptions")
    exceptions.__dict__.update(
        SchemaError=small_schema.SchemaError, ValidationError=small_schema.ValidationError
    )
    return {"jsonschema": small_schema, "jsonschema.exceptions": exceptions}


@contextmanager
def _left_out() -> Iterator[None]:
    absent: dict[str, ModuleType | None] = dict.fromkeys(_ABSENT)
    modules = absent | {name: _LeftOut(name) for name in _EMPTY} | _schemas()
    if "h2" in sys.modules or "h11" in sys.modules:  # one of them without the other helps nobody
        modules = {name: module for name, module in modules.items() if not name.startswith("h")}
    placed = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(placed)  # type: ignore[arg-type]  # None is what "cannot be imported" is told by
    try:
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name, module) is module:
                sys.modules.pop(name, None)
