"""A mapping that forgets: the one bound of everything that is remembered for a while and may be lost."""

from __future__ import annotations

from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Bounded(dict[_Key, _Value]):
    """A mapping of at most ``most`` keys; beyond, the one goes that was set the longest time ago."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: _Key, value: _Value) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]
