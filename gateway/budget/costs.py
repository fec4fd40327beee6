"""What the costs of models are looked up with; it measures nothing itself."""

from __future__ import annotations

from dataclasses import dataclass

from agent_core.ports import Clock
from gateway.budget.policy import (
    Limits,
)
from gateway.queue.ports import UsageStore

__all__ = ["Costs"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What is worked with: the sums, what a day may cost, and the time."""

    store: UsageStore
    limits: Limits
    clock: Clock
