"""The settings of the heartbeat (``agents.heartbeat`` in the configuration), checked as far as they go."""

from __future__ import annotations

import re
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator

from channels.heartbeat.schedule import Schedule

__all__ = ["HeartbeatConfig"]

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_WHOLE_DAY = 'the whole day is "00:00" to "24:00"'


class HeartbeatConfig(BaseModel):
    """When the bot looks around by itself, and which pool of models it uses for that."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    enabled: bool = True
    interval_minutes: float = Field(default=30.0, ge=0.01, le=7 * 24 * 60, allow_inf_nan=False)
    active_hours_start: str = "00:00"
    active_hours_end: str = "24:00"
    timezone: str = "local"
    pool: str = ""
    """Empty: the default pool."""

    @field_validator("active_hours_start", "active_hours_end", mode="before")
    @classmethod
    def _quoted(cls, value: Any) -> Any:
        """YAML reads 22:00 without quotes as the number 1320."""
        if isinstance(value, int) and not isinstance(value, bool):
            message = 'must be in quotes, such as "22:00"; without them YAML reads a number'
            raise ValueError(message)  # noqa: TRY004 - pydantic makes an error of the file of this one only
        return value

    @field_validator("active_hours_start")
    @classmethod
    def _starts(cls, value: str) -> str:
        if _TIME.fullmatch(value) is None:
            raise ValueError(f'must be a time from "00:00" to "23:59", not {value!r}')
        return value

    @field_validator("active_hours_end")
    @classmethod
    def _ends(cls, value: str) -> str:
        if value != "24:00" and _TIME.fullmatch(value) is None:
            raise ValueError(f'must be a time from "00:00" to "24:00", not {value!r}')
        return value

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        _zone(value)
        return value

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and yet hardly meant, as sentences for the operator."""
        if self.enabled and self.active_hours_start == self.active_hours_end:
            same = self.active_hours_start
            return (f"the active hours start and end at {same}, so the heartbeat never fires; {_WHOLE_DAY}",)
        return ()

    def schedule(self) -> Schedule:
        """The schedule that these settings describe."""
        return Schedule(
            interval_minutes=self.interval_minutes,
            start_minute=_minute(self.active_hours_start),
            end_minute=_minute(self.active_hours_end),
            zone=_zone(self.timezone),
        )


def _minute(value: str) -> int:
    hours, minutes = value.split(":")
    return int(hours) * 60 + int(minutes)


def _zone(name: str) -> tzinfo | None:
    if name == "local":
        return None
    try:
        return ZoneInfo(name)
    # A folder of the database, a path, a file that is no zone: each Python says it differently.
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"unknown time zone {name!r}; give a name such as Europe/Berlin, UTC or local "
            "(a machine without any zones needs the package tzdata)"
        ) from error
