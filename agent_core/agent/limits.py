"""The limits of one run of the agent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """
    The limits of one turn.

    Args:
        steps: Model calls. The last of them gets no tools and must answer.
        tokens: Read and written in all calls together; one more call is made after that, without tools.
        tool_result_chars: What the model gets to see of one result.
    """

    steps: int = 20
    seconds: float = 600.0
    tokens: int = 400_000
    tool_seconds: float = 60.0
    tool_result_chars: int = 16_000
    answer_chars: int = 200_000
