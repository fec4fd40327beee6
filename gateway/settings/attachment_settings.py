"""Where files of messages are kept, how large they may be and for how long they stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from agent_core.settings_section import SettingsSection

if TYPE_CHECKING:
    from channels.attachments.attachment_storage import Storage


class S3Settings(SettingsSection):
    """
    Access to an S3-compatible store. Empty settings come from the environment (``AWS_ENDPOINT_URL``,
    ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, or the machine's role).
    """

    endpoint: str = ""
    """Such as https://s3.example.org. Empty: the endpoint of AWS."""
    region: str = ""
    """Such as eu-central-1. Most stores other than AWS have no regions."""
    access_key_id: SecretStr = SecretStr("")
    """Needs ``secret_access_key`` too. Empty: from the environment."""
    secret_access_key: SecretStr = SecretStr("")
    """Preferably a reference, such as ``${secret:NAME}``."""

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("https", "http") or not parts.hostname):
            raise ValueError("must be a URL such as https://s3.example.org")
        if parts.username or parts.password or parts.query:
            raise ValueError("must not contain credentials; set access_key_id and secret_access_key")
        return value

    def options(self) -> dict[str, str]:
        """The settings that have a value, by the names of the library."""
        found = {
            "endpoint": self.endpoint,
            "region": self.region,
            "access_key_id": self.access_key_id.get_secret_value(),
            "secret_access_key": self.secret_access_key.get_secret_value(),
        }
        return {name: value for name, value in found.items() if value}


class AttachmentSettings(SettingsSection):
    """
    Files that people send and files that the bot sends.

    ``store``: where they are kept: ``s3://bucket/prefix``, or the absolute path of a folder that several
    machines mount (docs/attachments.md). Empty: in the home folder.
    ``max_file_mb``: limit of one file. ``max_total_mb``: limit of all files together (one megabyte is a
    million bytes); everybody except the owner together may fill half of it.
    squidbot removes a file after ``keep_days``; what was said about it stays.
    """

    store: str = ""
    s3: S3Settings = S3Settings()
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

    def storage(self, home_root: Path) -> Storage:
        """The storage of the files; nothing is touched yet."""
        from channels.attachments.file_storage import storage_at  # noqa: PLC0415 - not for every command

        return storage_at(home_root, self.store, self.s3.options())

    @model_validator(mode="after")
    def _one_fits(self) -> Self:
        if self.max_total_mb < self.max_file_mb:
            raise ValueError("max_total_mb is less than max_file_mb: not even one file would fit")
        return self
