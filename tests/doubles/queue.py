"""Puts something around single stores of a gateway's queue, for `gateway.app.Overrides.wrap_queue`."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from gateway.store.stores import Queue


def wrapping(**stores: Callable[[Any], Any]) -> Callable[[Queue], Queue]:
    """What is put around the stores of these names."""

    def wrapped(queue: Queue) -> Queue:
        changed = copy(queue)
        for name, wrap in stores.items():
            setattr(changed, name, wrap(getattr(queue, name)))
        return changed

    return wrapped
