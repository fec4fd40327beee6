"""The settings of the schedule (``agents.schedule`` in the configuration)."""

from __future__ import annotations

from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["ScheduleConfig"]


class ScheduleConfig(BaseModel):
    """
    What people may have done at a time.

    ``timezone``: in which the times of jobs are meant unless they say another one; empty: the heartbeat's.
    ``misfire``: a job that fell due while squidbot was not running is done at the start, a repeated one for
    its newest time; ``say`` adds that it is late, ``plain`` does not. ``misfire_grace_minutes``: from then on
    it is late. ``jitter_seconds``: repeated questions to the model start up to so much later (at most half of
    their interval), each at its own moment; reminders never.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    enabled: bool = True
    """Whether jobs are done and can be made."""
    timezone: str = ""
    jobs_per_person: int = Field(default=50, ge=1, le=10_000)
    """So many may one person have at a time."""
    runs_per_day: int = Field(default=300, ge=0, le=1_000_000)
    """So often in a day may the jobs of somebody else than the owner run, all together; 0 is no limit."""
    min_interval_minutes: float = Field(default=5.0, ge=0.01, le=7 * 24 * 60, allow_inf_nan=False)
    """Nothing is repeated more often."""
    misfire: Literal["say", "plain"] = "say"
    misfire_grace_minutes: float = Field(default=5.0, ge=0.1, le=7 * 24 * 60, allow_inf_nan=False)
    jitter_seconds: float = Field(default=30.0, ge=0, le=3600, allow_inf_nan=False)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value:
            try:
                ZoneInfo(value)
            except (KeyError, ValueError, OSError) as error:
                raise ValueError(
                    f"unknown time zone {value!r}; give a name such as Europe/Berlin or UTC"
                ) from error
        return value
