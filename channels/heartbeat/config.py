"""The settings of the heartbeat (``agents.heartbeat`` in the configuration) and their checks."""

from __future__ import annotations

import hashlib
import re
import shlex
from datetime import tzinfo
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from agent_core.settings_section import SettingsSection
from agent_core.text import time_zone
from channels.heartbeat.tick_schedule import Schedule

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_WHOLE_DAY = 'the whole day is "00:00" to "24:00"'


def _not_a_number(value: Any) -> Any:
    """YAML reads 22:00 without quotes as the number 1320."""
    if isinstance(value, int) and not isinstance(value, bool):
        message = 'must be in quotes, such as "22:00"; without them YAML reads a number'
        raise ValueError(message)  # noqa: TRY004 - pydantic makes an error of the file of this one only
    return value


def _start_of(value: str) -> str:
    if _TIME.fullmatch(value) is None:
        raise ValueError(f'must be a time from "00:00" to "23:59", not {value!r}')
    return value


def _end_of(value: str) -> str:
    if value != "24:00" and _TIME.fullmatch(value) is None:
        raise ValueError(f'must be a time from "00:00" to "24:00", not {value!r}')
    return value


_Start = Annotated[str, BeforeValidator(_not_a_number), AfterValidator(_start_of)]
_End = Annotated[str, BeforeValidator(_not_a_number), AfterValidator(_end_of)]


class TickLimits(SettingsSection):
    """Limits of one check-in."""

    model_config = ConfigDict(strict=True)

    steps: int = Field(default=8, ge=1, le=200)
    """Model calls."""
    seconds: float = Field(default=240.0, gt=0, le=3600)
    """Time from start to answer."""
    tokens: int = Field(default=60_000, ge=1000)
    """Prompt and completion tokens."""


class Watch(SettingsSection):
    """
    One condition that is checked before a model is called; exactly one of ``file``, ``command`` and ``due``.

    ``file``: triggers when this file or folder (its direct entries) was changed, created or removed; relative
    to the workspace. ``command``: triggers when the command exits with a code other than ``expect``, takes
    longer than ``seconds``, or cannot be started; the text is split as a shell does, but no shell runs it.
    ``due: true``: triggers when the date of an open item of HEARTBEAT.md (``@2026-11-30 09:00``) has passed.
    """

    model_config = ConfigDict(strict=True)

    file: str | None = Field(default=None, min_length=1)
    command: tuple[str, ...] | None = None
    due: bool = False
    seconds: float = Field(default=10.0, gt=0, le=120.0)
    expect: int = Field(default=0, ge=0, le=255)

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = shlex.split(value)
            except ValueError as error:
                raise ValueError(f"cannot be split into words: {error}") from error
        if isinstance(value, (list, tuple)):
            if not value or not all(isinstance(part, str) for part in value) or not value[0]:
                raise ValueError('must be a command, such as "df -h /" or ["df", "-h", "/"]')
            return tuple(value)
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.file is not None) + (self.command is not None) + self.due != 1:
            raise ValueError("must have exactly one of file, command and due: true")
        return self

    @property
    def name(self) -> str:
        """The name of its position."""
        kind, what = ("file", self.file) if self.file else ("command", shlex.join(self.command or ()))
        if self.due:
            kind, what = "due", ""
        return f"watch:{kind}:{hashlib.sha256(str(what).encode()).hexdigest()[:16]}"


class DailyDigest(SettingsSection):
    """
    Collect alerts to a mail address and send them as one mail a day, in the heartbeat's time zone.

    Alerts that the model marks as urgent are sent at once. ``enabled: false`` sends every alert at once.
    """

    model_config = ConfigDict(strict=True)

    enabled: bool = True
    at: _Start = "08:00"
    """Time of day, in quotes."""

    @property
    def minute(self) -> int:
        """The minute of the local day."""
        return _minute(self.at)


class HeartbeatConfig(SettingsSection):
    """
    Check-ins that the bot starts on a schedule: when, at what cost, and where alerts go.

    ``target``: where alerts go: ``matrix:@you:server``, ``matrix:!room:server`` (with nobody but you in it)
    or ``email:you@domain``; with several accounts, the account's name instead of the channel. Empty: the
    direct conversation in which you wrote last. ``watch``: conditions; if the list is not empty, a model is
    called only when one of them triggers. ``dedupe_hours``: squidbot does not repeat the same alert within
    this time; 0 repeats it every time. ``alert_after_missed``: squidbot alerts you once after this many
    missed check-ins; 0 disables it.
    """

    model_config = ConfigDict(strict=True)

    enabled: bool = True
    """Whether check-ins run."""
    interval_minutes: float = Field(default=30.0, ge=0.01, le=7 * 24 * 60, allow_inf_nan=False)
    """Time between two check-ins."""
    active_hours_start: _Start = "00:00"
    """Check-ins run from this time of day; the hours may cross midnight."""
    active_hours_end: _End = "24:00"
    """Check-ins run until this time; ``"24:00"`` is midnight."""
    timezone: str = "local"
    """Zone of these times, if it is not the ``timezone`` of the whole configuration."""
    pool: str = ""
    """Empty: the default pool."""
    target: str = ""
    watch: tuple[Watch, ...] = Field(default=(), strict=False, max_length=50)
    dedupe_hours: float = Field(default=24.0, ge=0, le=24 * 366, allow_inf_nan=False)
    digest: DailyDigest = DailyDigest()
    limits: TickLimits = TickLimits()
    alert_after_missed: int = Field(default=48, ge=0, le=100_000)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        _zone(value)
        return value

    @field_validator("target")
    @classmethod
    def _place(cls, value: str) -> str:
        if value:
            split_target(value)
        return value

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about valid settings that are probably a mistake."""
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


def split_target(text: str) -> tuple[str, str]:
    """Split a target into channel and place. Raises ValueError."""
    channel, colon, place = text.partition(":")
    if not (channel and colon and place) or any(char.isspace() for char in text):
        raise ValueError(
            f"{text!r} is not a target; write matrix:@you:server, matrix:!room:server or email:you@domain "
            "(of several accounts, the name of one instead of matrix or email)"
        )
    return channel, place


def _minute(value: str) -> int:
    hours, minutes = value.split(":")
    return int(hours) * 60 + int(minutes)


def _zone(name: str) -> tzinfo | None:
    return None if name == "local" else time_zone(name, or_local=True)
