"""The settings of the daily budget (``llm.budget`` in the configuration)."""

from __future__ import annotations

from typing import Self
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from agent_core.settings_section import SettingsSection
from agent_core.text import time_zone
from gateway.budget.budget_policy import BudgetLimits, BudgetTier


class ShareSettings(SettingsSection):
    """The share of the day's budget up to which each purpose is served. The owner's messages may use all."""

    heartbeat: float = Field(default=0.7, ge=0, le=1)
    """Check-ins."""
    jobs: float = Field(default=0.8, ge=0, le=1)
    """Background jobs of the owner."""
    consolidation: float = Field(default=0.8, ge=0, le=1)
    """Consolidation of conversations."""
    others: float = Field(default=0.5, ge=0, le=1)
    """Everybody except the owner, with their jobs. The rest of the day is kept for the owner."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.heartbeat > self.consolidation:
            raise ValueError(
                "the shares must not fall: heartbeat stops first, then consolidation "
                f"(they are {self.heartbeat:g}, {self.consolidation:g})"
            )
        return self


class BudgetSettings(SettingsSection):
    """
    The most that all models together may cost per day, for every purpose; 0 means no limit.

    ``usd_per_day`` counts models whose price is known: from litellm's list or from ``llm.models.NAME.price``.
    ``timezone``: the zone in which the day begins at midnight; empty: the heartbeat's.
    """

    tokens_per_day: int = Field(default=0, ge=0)
    """Prompt and completion tokens together."""
    usd_per_day: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    shares: ShareSettings = ShareSettings()
    timezone: str = ""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        return value if value in ("", "local") else time_zone(value, or_local=True).key

    def limits(self, heartbeat_timezone: str) -> BudgetLimits:
        """The limits, with days of this zone or else of the heartbeat's."""
        name = self.timezone or heartbeat_timezone
        return BudgetLimits(
            tokens=self.tokens_per_day or None,
            usd=self.usd_per_day or None,
            shares={
                BudgetTier.HEARTBEAT: self.shares.heartbeat,
                BudgetTier.BACKGROUND: self.shares.jobs,
                BudgetTier.CONSOLIDATION: self.shares.consolidation,
                BudgetTier.OTHERS: self.shares.others,
            },
            zone=None if name == "local" else ZoneInfo(name),
        )
