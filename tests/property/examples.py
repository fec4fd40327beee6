"""How many examples a property is tried with: as many as it says, or many more when somebody has the time."""

from __future__ import annotations

import os

_MORE = 20


def examples(count: int) -> int:
    """``count``; with ``SQUIDBOT_EXPLORE`` in the environment twenty times as many."""
    return count * _MORE if os.environ.get("SQUIDBOT_EXPLORE") else count
