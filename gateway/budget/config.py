"""The settings of the daily budget (``llm.budget`` in the configuration)."""

from __future__ import annotations

from typing import Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gateway.budget.policy import BudgetTier, Limits

__all__ = ["BudgetSettings", "ShareSettings"]


class ShareSettings(BaseModel):
    """Up to which part of the day's amount each may spend, whoever has spent it; the owner may spend all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heartbeat: float = Field(default=0.7, ge=0, le=1)
    """Check-ins."""
    consolidation: float = Field(default=0.8, ge=0, le=1)
    """Condensing of conversations."""
    others: float = Field(default=0.9, ge=0, le=1)
    """Everybody who is not the owner."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.heartbeat <= self.consolidation <= self.others:
            raise ValueError(
                "the shares must not fall: heartbeat stops first, then consolidation, then others "
                f"(they are {self.heartbeat:g}, {self.consolidation:g}, {self.others:g})"
            )
        return self


class BudgetSettings(BaseModel):
    """
    What all models together may cost in a day, for whatever purpose; 0 is no limit.

    ``usd_per_day`` counts what prices are known of: litellm's, or ``llm.models.NAME.price``.
    ``timezone``: where the day begins at midnight; empty: that of the heartbeat.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens_per_day: int = Field(default=0, ge=0)
    """Read and written, together."""
    usd_per_day: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    shares: ShareSettings = ShareSettings()
    timezone: str = ""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value and value != "local":
            try:
                ZoneInfo(value)
            except (KeyError, ValueError, OSError) as error:
                raise ValueError(
                    f"unknown time zone {value!r}; give a name such as Europe/Berlin, UTC or local"
                ) from error
        return value

    def limits(self, heartbeat_timezone: str) -> Limits:
        """The limits, with days of this zone or else of the heartbeat's."""
        name = self.timezone or heartbeat_timezone
        return Limits(
            tokens=self.tokens_per_day or None,
            usd=self.usd_per_day or None,
            shares={
                BudgetTier.HEARTBEAT: self.shares.heartbeat,
                BudgetTier.CONSOLIDATION: self.shares.consolidation,
                BudgetTier.OTHERS: self.shares.others,
            },
            zone=None if name == "local" else ZoneInfo(name),
        )
