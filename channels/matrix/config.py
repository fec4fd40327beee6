"""
The settings of one Matrix account.

Every mistake that can be seen without a connection is an error here, with the remedy in its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

__all__ = [
    "DisplayConfig",
    "GroupContextConfig",
    "MatrixConfig",
    "RoomRule",
    "StreamingConfig",
    "names_person",
]

_USER_ID = re.compile(r"@[!-9;-~]+:[A-Za-z0-9.\-\[\]:]+")
_ROOM_ID = re.compile(r"![!-~]+")
_ALIAS = re.compile(r"#[^\s:]+:[A-Za-z0-9.\-\[\]:]+")


def _off(value: Any) -> Any:
    """YAML reads a bare ``off`` as false."""
    return "off" if value is False else value


Threads = Annotated[Literal["off", "follow", "always"], BeforeValidator(_off)]
Policy = Literal["mention", "open", "allowlist"]


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


class StreamingConfig(_Strict):
    """Showing an answer while it is being written, as one message that is edited."""

    enabled: bool = False
    """Whether it is shown."""
    max_edits: int = Field(default=8, ge=1, le=60)
    """At most so many edits per answer before the final one. Homeservers count each like a message."""
    min_interval_s: float = Field(default=1.0, ge=0.2, le=60.0)
    """Not more often than this; doubled whenever the homeserver asks for a pause."""


class GroupContextConfig(_Strict):
    """
    What is said in rooms without being meant for the bot, as context for the next question there.

    It is kept in memory only, and forgotten once a question has taken it along.
    """

    messages: int = Field(default=20, ge=0, le=200)
    """The newest so many since the last question; 0: nothing is kept."""
    chars: int = Field(default=4000, ge=200, le=50_000)
    """So much text of it at most."""
    senders: Literal["allowed", "everyone"] = "allowed"
    """Whose words: of those who may talk to the bot, or of everybody in the room."""


class RoomRule(_Strict):
    """What is different in one room; what is not given is as everywhere."""

    policy: Annotated[Literal["mention", "open", "allowlist", "off"] | None, BeforeValidator(_off)] = None
    """
    What is meant for the bot there: mentions; everything; everything that the people in this rule's
    ``allow_from`` say; nothing at all.
    """
    threads: Threads | None = None
    """As ``threads`` of the account."""
    allow_from: tuple[str, ...] | None = None
    """Who may talk to the bot there, instead of the channel's ``allow_from``. The owner always may."""

    @field_validator("allow_from")
    @classmethod
    def _are_people(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if value is None else _people(value)

    @model_validator(mode="after")
    def _allows_somebody(self) -> Self:
        if self.policy == "allowlist" and not self.allow_from:
            raise ValueError("policy: allowlist in a room needs an allow_from that says whose words count")
        return self


class MatrixConfig(_Strict):
    """One entry under ``channels:`` for a Matrix account."""

    enabled: bool = True
    """``false`` keeps the entry and leaves the account alone."""
    homeserver: str
    """The address of the client API, such as ``https://matrix.example.org``."""
    user_id: str
    """The bot's own account, such as ``@bot:example.org``."""
    password: SecretStr | None = None
    """Better a reference, such as ``${secret:matrix-password}``."""
    access_token: SecretStr | None = None
    """Instead of a password, together with ``device_id``; then nothing can be repaired by itself."""
    device_id: str | None = Field(default=None, min_length=1, max_length=255)
    """The device of the ``access_token``; with a password squidbot makes its own."""
    device_name: str = Field(default="squidbot", max_length=100)
    """What the account's list of sessions shows for this login."""
    tls_ca_file: Path | None = None
    """Certificates of one's own authority, believed besides those of the system."""
    allow_from: tuple[str, ...] = ()
    """Who may talk to the bot and invite it: Matrix ids, ``@*:server`` or ``*``. Nobody by default."""
    group_policy: Policy = "mention"
    """In rooms with several people, what is meant for the bot: mentions, everything, or the rooms listed."""
    group_allow_from: tuple[str, ...] = ()
    """For ``group_policy: allowlist``: ids of the rooms in which everything is meant for the bot."""
    mention_by_name: bool = True
    """Whether the bot's display name in a text counts as a mention, besides real ones."""
    mention_by_reply: bool = True
    """Whether an answer to one of the bot's own messages is meant for it, mentioned or not."""
    rooms: dict[str, RoomRule] = Field(default_factory=dict)
    """Rules for single rooms, by id (``!…``) or alias (``#name:server``)."""
    ignore_senders: tuple[str, ...] = ()
    """Bots and bridges that are never answered: Matrix ids with ``*`` for any text, such as ``@_irc_*:*``."""
    threads: Threads = "follow"
    """
    ``off``: one conversation per room; what is asked in a thread is answered there. ``follow``: each thread
    that people open is a conversation of its own. ``always``: also, each new question in a room with several
    people opens a thread.
    """
    group_context: GroupContextConfig = GroupContextConfig()
    ack_reactions: bool = False
    """React to each question with its state: being worked on, done, failed."""
    streaming: StreamingConfig = StreamingConfig()
    reply_approval: Literal["none", "strangers", "all"] = "none"
    """Whose answers the owner sees and approves before they leave: nobody's, those to others, all."""
    encrypt_new_rooms: bool = True
    """Whether conversations that the bot begins by itself are encrypted."""
    trust_devices: Literal["all", "signed"] = "all"
    """Which devices are trusted in encrypted rooms: all of a person's, or those that they have signed."""
    batching: Literal["merge", "each"] = "merge"
    """``merge``: what waits in a conversation is answered together; ``each``: one answer for each message."""
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
        return _people(value)

    @field_validator("rooms")
    @classmethod
    def _name_rooms(cls, value: dict[str, RoomRule]) -> dict[str, RoomRule]:
        for name in value:
            if not _ROOM_ID.fullmatch(name) and not _ALIAS.fullmatch(name):
                raise ValueError(
                    f'{name!r} is neither the id of a room ("!…", under "Advanced" in its settings) nor an '
                    'alias ("#name:server"); in YAML it has to stand in quotes'
                )
        return value

    @field_validator("ignore_senders")
    @classmethod
    def _are_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        entries = tuple(entry.strip() for entry in value)
        for entry in entries:
            if not entry.startswith("@") or ":" not in entry:
                raise ValueError(f'{entry!r} is no pattern of Matrix ids, such as "@_irc_*:*"')
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
        return names_person(self.allow_from, user_id)


def names_person(entries: tuple[str, ...], user_id: str) -> bool:
    """Whether one of the entries of an ``allow_from`` means this user."""
    server = user_id.partition(":")[2]
    return any(entry in ("*", user_id, f"@*:{server}") for entry in entries)


def _people(value: tuple[str, ...]) -> tuple[str, ...]:
    entries = tuple(entry.strip() for entry in value)
    for entry in entries:
        plain = f"@x{entry[2:]}" if entry.startswith("@*:") else entry
        if entry != "*" and ("*" in plain or not _USER_ID.fullmatch(plain)):
            raise ValueError(
                f'{entry!r} is not a Matrix id ("@name:server"); "@*:server" means everybody there, '
                '"*" everybody'
            )
    return entries
