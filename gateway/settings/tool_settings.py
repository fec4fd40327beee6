"""The settings of the assistant's tools, by family."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agent_core.settings_section import SettingsSection
from agent_core.tools.policy import Availability


def _absolute(text: str) -> str:
    if not Path(text).is_absolute() and not text.startswith("~/"):
        raise ValueError(f"{text!r} must be an absolute path, or begin with ~/")
    if ".." in Path(text).parts:
        raise ValueError(f"{text!r} must be written without '..'")
    return text


class FileToolSettings(SettingsSection):
    """
    File tools, for the workspace and for ``roots``.

    Configuration, secrets, databases and conversations stay out of reach, whatever ``roots`` says.
    """

    allow: Availability = "owner"
    """
    ``owner``: you, in conversations that nobody else can read. ``people``: everybody who may talk to the bot
    shares the workspace, but not your memory, skills and ``roots``. ``none``: nobody.
    """
    roots: dict[Annotated[str, AfterValidator(_absolute)], Literal["ro", "rw"]] = Field(default={})
    """Further folders, and whether they may be changed (``rw``) or only read (``ro``)."""
    keep_days: float = Field(default=30.0, ge=1, le=3650)
    """How long the earlier versions of changed files are kept."""


class JobLimits(SettingsSection):
    """Limits of one background job."""

    steps: int = Field(default=60, ge=1, le=1000)
    """Model calls."""
    seconds: float = Field(default=1800.0, gt=0, le=86_400)
    """Time from start to answer. After a restart it begins again from zero."""
    tokens: int = Field(default=600_000, ge=1000)
    """Prompt and completion tokens."""


class JobSettings(SettingsSection):
    """
    Background jobs: a task or a command that runs concurrently with the conversation and reports back once.

    At most three jobs of one conversation run at once. All jobs together leave at least one of
    ``gateway.max_concurrent_turns`` to people, and another one to the owner's jobs.
    """

    allow: Availability = "owner"
    """
    ``owner``: you, in conversations where nobody else reads along. ``people``: everybody who may talk to the
    bot. ``none``: nobody.
    """
    pool: str = ""
    """Empty: the default pool."""
    limits: JobLimits = JobLimits()
    command_minutes: float = Field(default=30.0, gt=0, le=1440)
    """Maximum duration of a command in the background (needs ``tools.shell``)."""
