"""The operations on accounts call the account's admin by name: each name is one of its methods."""

from __future__ import annotations

import inspect
import re

from channels.matrix import operations
from channels.matrix.admin import MatrixAdmin

_NAMED = re.compile(r'_ask\(context, channel, "(\w+)"')


def unknown(source: str) -> list[str]:
    """The names in a source that the admin of an account does not have."""
    return [name for name in _NAMED.findall(source) if not callable(getattr(MatrixAdmin, name, None))]


def test_each_name_is_a_method() -> None:
    source = inspect.getsource(operations)
    assert len(_NAMED.findall(source)) >= 6
    assert unknown(source) == []


def test_another_name_is_noticed() -> None:
    """The control."""
    assert unknown('_ask(context, channel, "compared", user)') == ["compared"]
