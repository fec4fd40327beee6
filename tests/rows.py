"""
Rows of a table in one test, for pure functions: a test of its own for each costs more than what it checks.

Where rows wait, take fixtures, or are a few, `pytest.mark.parametrize` is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

_Test = Callable[..., None]
_OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)


def rows(names: str | tuple[str, ...], values: Iterable[Any], ids: object = None) -> Callable[[_Test], _Test]:
    """
    Return a decorator that runs a test with each of ``values``; it is written as `pytest.mark.parametrize` is.

    All rows are tried. Those that fail are raised together, each with a note that says which it was; no row is skipped.
    """
    keys = names if isinstance(names, tuple) else tuple(name.strip() for name in names.split(","))
    table = [ParameterSet.extract_from(row, force_tuple=len(keys) == 1) for row in values]
    assert table and not any(row.marks for row in table)

    def decorate(test: _Test) -> _Test:
        def every_row(*instance: Any, **others: Any) -> None:
            failed: list[BaseException] = []
            for row in table:
                given = dict(zip(keys, row.values, strict=True))
                try:
                    test(*instance, **others, **given)
                except (Exception, BaseExceptionGroup, *_OUTCOMES) as error:
                    error.add_note(f"in the row {given!r}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(table)} rows", failed)

        every_row.__name__, every_row.__qualname__ = test.__name__, test.__qualname__
        every_row.__doc__, every_row.__module__ = test.__doc__, test.__module__
        every_row.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
        return every_row

    return decorate
