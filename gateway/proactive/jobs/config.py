"""The settings of the schedule (``agents.schedule`` in the configuration)."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from agent_core.settings_section import SettingsSection
from agent_core.text import time_zone


class ScheduleConfig(SettingsSection):
    """
    Scheduled jobs: reminders and scheduled questions.

    ``timezone``: the zone of a job's times unless the job names another; empty: the heartbeat's. ``misfire``:
    a job that fell due while squidbot was down runs at the start (a repeated job only for its newest time);
    ``say`` adds that it is late, ``plain`` does not. ``misfire_grace_minutes``: a job counts as late after
    this time. ``jitter_seconds``: repeated questions to the model start up to this much later (at most half
    their interval), each at its own moment; reminders never do.
    """

    model_config = ConfigDict(strict=True)

    enabled: bool = True
    """Whether jobs run and can be created."""
    timezone: str = ""
    jobs_per_person: int = Field(default=50, ge=1, le=10_000)
    """Maximum number of jobs per person; ten times as many for all together whom one pattern lets in."""
    runs_per_day: int = Field(default=300, ge=0, le=1_000_000)
    """
    Maximum number of job runs per day for each person except the owner, and ten times as many for all
    together whom one pattern lets in; 0 means no limit.
    """
    min_interval_minutes: float = Field(default=5.0, ge=0.01, le=7 * 24 * 60, allow_inf_nan=False)
    """Minimum interval of a repeated job."""
    misfire: Literal["say", "plain"] = "say"
    misfire_grace_minutes: float = Field(default=5.0, ge=0.1, le=7 * 24 * 60, allow_inf_nan=False)
    jitter_seconds: float = Field(default=30.0, ge=0, le=3600, allow_inf_nan=False)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        return time_zone(value).key if value else value
