"""Dice: a family with one tool."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from squidbot_api.tool import (
    Effect,
    FamilyConfig,
    Session,
    ToolFamily,
    ToolPort,
    ToolResult,
    ToolRetry,
    ToolServices,
    ToolSource,
)


class DiceConfig(FamilyConfig):
    """``tools.dice``."""

    most: int = 20
    """So many dice at once."""


class RollTool:
    """Rolls dice."""

    name = "dice_roll"
    description = "Roll dice. Returns what each shows, and the sum."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "dice": {"type": "integer", "minimum": 1},
            "sides": {"type": "integer", "minimum": 2, "default": 6},
        },
        "required": ["dice"],
        "additionalProperties": False,
    }
    effect = Effect.READ
    repeatable = True

    def __init__(self, most: int) -> None:
        self._most = most

    async def execute(self, **arguments: Any) -> ToolResult:
        dice, sides = arguments["dice"], arguments.get("sides", 6)
        if dice > self._most:
            raise ToolRetry(f"There are only {self._most} dice.")
        shown = [secrets.randbelow(sides) + 1 for _ in range(dice)]
        return ToolResult(content=f"{' '.join(map(str, shown))} (sum {sum(shown)})")


class DiceSource(ToolSource):
    """The tools of each run."""

    def __init__(self, config: DiceConfig) -> None:
        self._config = config

    def tools(self, session: Session) -> Sequence[ToolPort]:
        return [RollTool(self._config.most)]


class Dice(ToolFamily[DiceConfig]):
    """Entry point of the group ``squidbot.tools``."""

    api = 1
    name = "dice"
    config = DiceConfig

    def build(self, config: DiceConfig, services: ToolServices) -> ToolSource:
        return DiceSource(config)
