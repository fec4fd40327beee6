"""
The settings of one Matrix account. Every mistake that can be seen without a connection is an error here, with
the remedy in its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from agent_core.language import check_code
from agent_core.settings_section import SettingsSection
from channels.plugin import AccountConfig, AddressRules

_USER_ID = re.compile(r"@[!-9;-~]+:[A-Za-z0-9.\-\[\]:]+")
_ROOM_ID = re.compile(r"![!-~]+")
_ADDRESS = re.compile(r"@[^:\s\x00-\x1f]+:[^\s\x00-\x1f]+")
_ALIAS = re.compile(r"#[^\s:]+:[A-Za-z0-9.\-\[\]:]+")


def _off(value: Any) -> Any:
    """YAML reads a bare ``off`` as false."""
    return "off" if value is False else value


def _person(entry: str) -> str:
    entry = entry.strip()
    plain = f"@x{entry[2:]}" if entry.startswith("@*:") else entry
    if entry != "*" and ("*" in plain or not _USER_ID.fullmatch(plain)):
        raise ValueError(
            f'{entry!r} is not a Matrix id ("@name:server"); "@*:server" means everybody there, "*" everybody'
        )
    return entry


Person = Annotated[str, AfterValidator(_person)]
Threads = Annotated[Literal["off", "follow", "always"], BeforeValidator(_off)]
Policy = Literal["mention", "open", "allowlist"]


class DisplayConfig(SettingsSection):
    """Display of answers."""

    reply: Literal["groups", "always", "never"] = "groups"
    """Where an answer is sent as a reply to its question: in rooms with several people, always, or never."""
    html: bool = True
    """Send formatted text in addition to plain text."""
    typing: bool = True
    """Show "is typing" while an answer is prepared."""
    read_receipts: bool = True
    """Mark messages as read once they are stored durably."""


class StreamingConfig(SettingsSection):
    """Show an answer while it is written, as one message that is edited."""

    enabled: bool = False
    """Whether answers are streamed."""
    max_edits: int = Field(default=8, ge=1, le=60)
    """Maximum number of edits per answer before the final one. Homeservers count each edit as a message."""
    min_interval_s: float = Field(default=1.0, ge=0.2, le=60.0)
    """Minimum time between two edits; doubled whenever the homeserver asks for a pause."""


class GroupContextConfig(SettingsSection):
    """
    Room messages that do not address the bot, as context for the next question there.

    They are kept in memory only, and dropped once a question has used them.
    """

    messages: int = Field(default=20, ge=0, le=200)
    """Maximum number of messages since the last question; 0 keeps none."""
    chars: int = Field(default=4000, ge=200, le=50_000)
    """Maximum length of their text."""
    senders: Literal["allowed", "everyone"] = "allowed"
    """Whose messages: of people who may talk to the bot, or of everybody in the room."""


class RoomRule(SettingsSection):
    """Settings of one room. Settings that are not given are those of the account."""

    policy: Annotated[Literal["mention", "open", "allowlist", "off"] | None, BeforeValidator(_off)] = None
    """
    What addresses the bot in this room: mentions; every message; every message of the people in this rule's
    ``allow_from``; nothing.
    """
    threads: Threads | None = None
    """Like ``threads`` of the account."""
    allow_from: tuple[Person, ...] | None = None
    """Who may talk to the bot in this room, instead of the channel's ``allow_from``. The owner always may."""
    language: Annotated[str, AfterValidator(check_code)] = ""
    """The language of what squidbot itself says in this room. Empty: that of the person who has asked."""
    persona: str = Field(default="", max_length=2000)
    """Name and manner of the assistant in this room, after PERSONA.md."""
    pool: str = ""
    """The pool of models that answers in this room. Empty: the default pool."""
    tools: tuple[str, ...] | None = None
    """The tools that may be used in this room, such as ``[web_search, "home__*"]``. Left out: all."""

    @model_validator(mode="after")
    def _check_allow_list(self) -> Self:
        if self.policy == "allowlist" and not self.allow_from:
            raise ValueError("policy: allowlist in a room needs an allow_from that says whose messages count")
        return self


class MatrixConfig(AccountConfig):
    """One Matrix account under ``channels:``."""

    enabled: bool = True
    """``false`` keeps the entry but does not use the account."""
    homeserver: str
    """Address of the client API, such as ``https://matrix.example.org``."""
    user_id: str
    """The bot's own account, such as ``@bot:example.org``."""
    password: SecretStr | None = None
    """Preferably a reference, such as ``${secret:matrix-password}``."""
    access_token: SecretStr | None = None
    """Instead of a password, together with ``device_id``. squidbot then cannot log in again if the token
    stops working."""
    login: Literal["password", "browser"] = "password"
    """
    ``browser``: a person logs in once with ``squidbot matrix login``, as servers want it that give no
    passwords. ``password``: squidbot logs in with the password, or the ``access_token``.
    """
    device_id: str | None = Field(default=None, min_length=1, max_length=255)
    """The device that the ``access_token`` belongs to. With a password, squidbot creates its own."""
    device_name: str = Field(default="squidbot", max_length=100)
    """The name of this login in the account's session list."""
    tls_ca_file: Path | None = None
    """Certificates of your own CA, trusted in addition to the system's."""
    allow_from: tuple[Person, ...] = ()
    """Who may talk to the bot and invite it: Matrix ids, ``@*:server`` or ``*``. Nobody by default."""
    group_policy: Policy = "mention"
    """
    What addresses the bot in rooms with several people: mentions, every message, or every message in the
    rooms of ``group_allow_from``.
    """
    group_allow_from: tuple[str, ...] = ()
    """For ``group_policy: allowlist``: ids of the rooms in which every message addresses the bot."""
    mention_by_name: bool = True
    """Whether the bot's display name in a text counts as a mention."""
    mention_by_reply: bool = True
    """Whether a reply to one of the bot's messages counts as a mention."""
    rooms: dict[str, RoomRule] = Field(default_factory=dict)
    """Settings of single rooms, by id (``!…``) or alias (``#name:server``)."""
    ignore_senders: tuple[str, ...] = ()
    """
    Bots and bridges that are never answered: Matrix ids, in which ``*`` matches any text, such as
    ``@_irc_*:*``.
    """
    threads: Threads = "follow"
    """
    ``off``: one conversation per room; a question in a thread is answered there. ``follow``: each thread that
    people open is a conversation of its own. ``always``: like ``follow``, and each new question in a room
    with several people opens a thread.
    """
    group_context: GroupContextConfig = GroupContextConfig()
    ack_reactions: bool = False
    """React to each question with its state: in progress, done, failed."""
    streaming: StreamingConfig = StreamingConfig()
    reply_approval: Literal["none", "strangers", "all"] = "none"
    """Which answers wait for the owner's approval: none, answers to other people, or all."""
    encrypt_new_rooms: bool = True
    """Whether rooms that the bot creates are encrypted."""
    trust_devices: Literal["all", "signed"] = "signed"
    """
    Which devices of a room's members get room keys and are heard: only those that their owners have verified
    (cross-signing, as Matrix demands since its version 1.18), or all.
    """
    batching: Literal["merge", "each"] = "merge"
    """
    ``merge``: messages of one person that wait in a conversation are answered together. ``each``: one answer
    per message.
    """
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
            raise ValueError(
                "may have a scheme, a host, a port and a path, nothing else; credentials have keys of "
                "their own"
            )
        return value

    @field_validator("user_id")
    @classmethod
    def _is_user(cls, value: str) -> str:
        value = value.strip()
        if not _USER_ID.fullmatch(value) or len(value) > 255:
            raise ValueError(f'must be a full Matrix id, such as "@bot:example.org"; got {value!r}')
        return value

    @field_validator("rooms")
    @classmethod
    def _name_rooms(cls, value: dict[str, RoomRule]) -> dict[str, RoomRule]:
        for name in value:
            if not _ROOM_ID.fullmatch(name) and not _ALIAS.fullmatch(name):
                raise ValueError(
                    f'{name!r} is neither the id of a room ("!…", under "Advanced" in its settings) nor '
                    'an alias ("#name:server"); in YAML it must be in quotes'
                )
        return value

    @field_validator("ignore_senders")
    @classmethod
    def _are_patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        entries = tuple(entry.strip() for entry in value)
        for entry in entries:
            if not entry.startswith("@") or ":" not in entry:
                raise ValueError(f'{entry!r} is not a pattern for Matrix ids, such as "@_irc_*:*"')
        return entries

    @field_validator("group_allow_from")
    @classmethod
    def _are_rooms(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        entries = tuple(entry.strip() for entry in value)
        for entry in entries:
            if not _ROOM_ID.fullmatch(entry):
                raise ValueError(
                    f'{entry!r} is not a room id; a room id begins with "!" and stands in the settings of '
                    'the room under "Advanced" (an alias that begins with "#" may move to another room)'
                )
        return entries

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        if self.login == "browser" and (self.access_token is not None or self.password is not None):
            raise ValueError("login: browser needs neither password nor access_token; remove them")
        if self.access_token is not None and self.device_id is None:
            raise ValueError("access_token needs the device_id that it belongs to; or use password instead")
        has_secret = self.access_token is not None or (
            self.password is not None and self.password.get_secret_value()
        )
        if self.login == "password" and not has_secret:
            raise ValueError(
                "a password is missing (or an access_token together with its device_id, or login: browser)"
            )
        if self.group_allow_from and self.group_policy != "allowlist":
            raise ValueError("group_allow_from has an effect only with group_policy: allowlist")
        return self

    @property
    def server_name(self) -> str:
        """The part of the user's id after the colon."""
        return self.user_id.partition(":")[2]

    @property
    def admits_others(self) -> bool:
        """A rule for one room may let people in that the account does not."""
        return bool(self.allow_from) or any(rule.allow_from for rule in self.rooms.values())

    @property
    def warnings(self) -> list[str]:
        """Return sentences for the operator about settings that may cost more than was meant."""
        if "open" not in (self.group_policy, *(rule.policy for rule in self.rooms.values())):
            return []
        cost = "324 calls were measured for 300 messages"
        return [
            f"with policy open, every message in a group is a model call, also what people say there ({cost})"
        ]

    def allows(self, user_id: str) -> bool:
        """Return True if ``allow_from`` names this user."""
        return names_person(self.allow_from, user_id)


def names_person(entries: tuple[str, ...], user_id: str) -> bool:
    """Return True if an entry of an ``allow_from`` matches this user."""
    server = user_id.partition(":")[2]
    return any(entry in ("*", user_id, f"@*:{server}") for entry in entries)


class MatrixAddresses(AddressRules):
    """Matrix ids. They are compared as they are, because old accounts have case-sensitive names."""

    example = "@you:example.org"

    def parse(self, text: str) -> str | None:
        """``@local:server`` as it is."""
        return text if _ADDRESS.fullmatch(text) else None

    def server(self, address: str) -> str:
        """The homeserver."""
        return address.partition(":")[2]

    def server_of_entry(self, entry: str) -> str | None:
        """The homeserver of ``@*:server``."""
        return entry[3:] if entry.startswith("@*:") and "*" not in entry[3:] else None

    def is_room(self, place: str) -> bool:
        """``!…``; ids of rooms of version 12 and later name no server."""
        return len(place) > 1 and place.startswith("!")

    def is_conversation(self, place: str) -> bool:
        """A person, a room, or the alias of a room."""
        return super().is_conversation(place) or (place.startswith("#") and ":" in place)
