"""The limits of one turn: steps, time, tokens, lengths. `gateway.settings` sets some of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """
    The limits of one turn: ``steps`` model calls (the last without tools), ``tokens`` of all calls.

    Above ``tokens`` one more call is made, without tools. ``tool_result_chars`` of a result are shown.
    """

    steps: int = 20
    seconds: float = 600.0
    tokens: int = 400_000
    tool_seconds: float = 60.0
    tool_result_chars: int = 16_000
    answer_chars: int = 200_000
