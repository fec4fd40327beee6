"""
The settings of one Matrix account.

Every mistake that can be seen without a connection is an error here, with the remedy in its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

__all__ = ["DisplayConfig", "MatrixConfig"]

_USER_ID = re.compile(r"@[!-9;-~]+:[A-Za-z0-9.\-\[\]:]+")
_ROOM_ID = re.compile(r"![!-~]+")


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DisplayConfig(_Strict):
    """How answers look."""

    reply: Literal["groups", "always", "never"] = "groups"
    """Where an answer points back to its question: in rooms with several people, everywhere, nowhere."""
    html: bool = True
    """Send formatted answers besides the plain text."""
    typing: bool = True
    """Show "is typing" while an answer is being made."""
    read_receipts: bool = True
    """Mark messages as read once they are safely stored."""


class MatrixConfig(_Strict):
    """One entry under ``channels:`` for a Matrix account."""

    enabled: bool = True
    homeserver: str
    user_id: str
    password: SecretStr | None = None
    access_token: SecretStr | None = None
    device_id: str | None = Field(default=None, min_length=1, max_length=255)
    device_name: str = Field(default="squidbot", max_length=100)
    """What the account's list of sessions shows for this login."""
    tls_ca_file: Path | None = None
    """Certificates of one's own authority, believed besides those of the system."""
    allow_from: tuple[str, ...] = ()
    """Who may talk to the bot and invite it: Matrix ids, ``@*:server`` or ``*``. Nobody by default."""
    group_policy: Literal["mention", "open", "allowlist"] = "mention"
    """In rooms with several people, what is meant for the bot: mentions, everything, or the rooms listed."""
    group_allow_from: tuple[str, ...] = ()
    """For ``group_policy: allowlist``: ids of the rooms in which everything is meant for the bot."""
    mention_by_name: bool = True
    """Whether the bot's display name in a text counts as a mention, besides real ones."""
    queue: Literal["merge", "each"] = "merge"
    display: DisplayConfig = DisplayConfig()

    @field_validator("homeserver")
    @classmethod
    def _is_address(cls, value: str) -> str:
        value = value.strip().rstrip("/")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f'must be the address of the client API, such as "https://matrix.example.org"; got {value!r}'
            )
        if parts.query or parts.fragment or parts.username:
            raise ValueError("only scheme, host, port and perhaps a path; credentials have keys of their own")
        return value

    @field_validator("user_id")
    @classmethod
    def _is_user(cls, value: str) -> str:
        value = value.strip()
        if not _USER_ID.fullmatch(value) or len(value) > 255:
            raise ValueError(f'must be a whole Matrix id, such as "@bot:example.org"; got {value!r}')
        return value

    @field_validator("allow_from")
    @classmethod
    def _are_people(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        entries = tuple(entry.strip() for entry in value)
        for entry in entries:
            plain = f"@x{entry[2:]}" if entry.startswith("@*:") else entry
            if entry != "*" and ("*" in plain or not _USER_ID.fullmatch(plain)):
                raise ValueError(
                    f'{entry!r} is not a Matrix id ("@name:server"); "@*:server" means everybody there, '
                    '"*" everybody'
                )
        return entries

    @field_validator("group_allow_from")
    @classmethod
    def _are_rooms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        entries = tuple(entry.strip() for entry in value)
        for entry in entries:
            if not _ROOM_ID.fullmatch(entry):
                raise ValueError(
                    f'{entry!r} is not a room id; it begins with "!" and stands in its settings under '
                    '"Advanced" (an alias that begins with "#" may move to another room)'
                )
        return entries

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.access_token is not None and self.device_id is None:
            raise ValueError("access_token needs the device_id that it belongs to; or use password instead")
        if self.access_token is None and not (self.password and self.password.get_secret_value()):
            raise ValueError("a password is missing (or an access_token together with its device_id)")
        if self.group_allow_from and self.group_policy != "allowlist":
            raise ValueError("group_allow_from has an effect only with group_policy: allowlist")
        return self

    @property
    def server_name(self) -> str:
        """The part of the user's id after the colon."""
        return self.user_id.partition(":")[2]

    def allows(self, user_id: str) -> bool:
        """Whether ``allow_from`` names this user."""
        server = user_id.partition(":")[2]
        return any(entry in ("*", user_id, f"@*:{server}") for entry in self.allow_from)
