"""Where files of messages are kept, how large they may be and for how long they stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field, field_validator, model_validator

from agent_core.settings_section import SettingsSection

if TYPE_CHECKING:
    from channels.attachments.file_storage import LocalFiles


class AttachmentSettings(SettingsSection):
    """
    Files that people send and files that the bot sends.

    ``store``: where they are kept: the absolute path of a folder that several machines mount
    (docs/attachments.md). Empty: in the home folder.
    ``max_file_mb``: limit of one file. ``max_total_mb``: limit of all files together (one megabyte is a
    million bytes); everybody except the owner together may fill half of it.
    squidbot removes a file after ``keep_days``; what was said about it stays.
    """

    store: str = ""
    max_file_mb: float = Field(default=25.0, gt=0, le=2000)
    max_total_mb: float = Field(default=2000.0, gt=0)
    keep_days: float = Field(default=180.0, ge=1)

    @field_validator("store")
    @classmethod
    def _is_place(cls, value: str) -> str:
        from channels.attachments.file_storage import place_problem  # noqa: PLC0415 - not for most settings

        problem = place_problem(value) if value else None
        if problem is not None:
            raise ValueError(problem)
        return value

    def storage(self, home_root: Path) -> LocalFiles:
        """The storage of the files; nothing is touched yet."""
        from channels.attachments.file_storage import storage_at  # noqa: PLC0415 - not for every command

        return storage_at(home_root, self.store)

    @model_validator(mode="after")
    def _one_fits(self) -> Self:
        if self.max_total_mb < self.max_file_mb:
            raise ValueError("max_total_mb is less than max_file_mb: not even one file would fit")
        return self
