"""
A kind of channel, as the gateway knows it: its settings, its addresses and how an account is built. Our own
kinds and those of other distributions (entry points of the group ``squidbot.channels``) are the same to the
gateway. A module with a plugin loads quickly: what is heavy is imported in `ChannelPlugin.build`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from agent_core.settings_section import SettingsSection
from channels.setup import PersonAtTerminal, SetupForm

if TYPE_CHECKING:  # the settings are read without them
    from agent_core.messages import SessionKey
    from agent_core.operation import Operation
    from agent_core.state_folder import Row, StateFolder
    from channels.attachments import AttachmentStore
    from channels.base import Channel, ChannelClock

API_VERSION = 1
"""Raised when a plugin that was made for the version before may no longer work."""

Way = Literal["plain", "tls", "imap", "smtp"]


class AccountConfig(SettingsSection):
    """The settings of every account under ``channels:``; those of a kind derive from it."""

    enabled: bool = True
    """``false`` keeps the entry but does not use the account."""
    allow_from: tuple[str, ...] = ()
    """Who may talk to the bot: addresses, or ``*``. Nobody by default."""
    reply_approval: Literal["none", "strangers", "all"] = "none"
    """Which answers wait for the owner's approval: none, answers to other people, or all."""
    batching: Literal["merge", "each"] = "merge"
    """
    ``merge``: messages of one person that wait in a conversation are answered together. ``each``: one answer
    per message.
    """

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences for the operator about settings that may cost more than was meant."""
        return ()

    @property
    def admits_others(self) -> bool:
        """Return True if anybody but the owner may talk to the bot there."""
        return bool(self.allow_from)


Config = TypeVar("Config", bound=AccountConfig)


class AddressRules(ABC):
    """Reads and compares the addresses of a kind of channel. Pure and total."""

    example: str
    """An address that a person can model theirs on."""

    @abstractmethod
    def parse(self, text: str) -> str | None:
        """A person's whole address in the form in which addresses are compared; None: it is none."""

    def server(self, address: str) -> str:
        """The server that vouches for an address in normal form; empty: none in particular."""
        return ""

    def server_of_entry(self, entry: str) -> str | None:
        """The server of which an entry of ``allow_from`` lets everybody in; None: it is no such entry."""
        return None

    def is_room(self, place: str) -> bool:
        """Return True for the lasting name of a place with people in it."""
        return False

    def is_conversation(self, place: str) -> bool:
        """Return True for a room, or a person whose conversation the channel finds when it sends."""
        return self.is_room(place) or self.parse(place) is not None

    def entry_problem(self, entry: str) -> str | None:
        """Say why an entry of ``allow_from`` cannot be used; None if it can."""
        if entry == "*" or self.server_of_entry(entry) or ("*" not in entry and self.parse(entry)):
            return None
        return f'is neither an address such as {self.example} nor "*"'


class OwnerAlert(Protocol):
    """Tells the owner something; each ``about`` at most once an hour, with ``once`` only once."""

    def __call__(self, about: str, text: str, once: str = "") -> None:
        """Say ``text``, a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelServices:
    """
    The gateway's side of one account.

    Args:
        name: The account's name, everywhere.
        state: Documents that survive restarts and go with the account.
        attachments: The store of messages' files.
        may_talk: Returns True if a proven address may talk to the bot.
        is_owner: Returns True if a proven address is the owner's.
        owner_addresses: The owner's addresses on this account.
        alert: Notifies the owner of something that needs a person.
        arrived: Sends the messages of a conversation that wait since `NoRecipient`.
        language_of: The language of the texts that an address is told; empty: that of the home.
    """

    name: str
    clock: ChannelClock
    state: StateFolder
    attachments: AttachmentStore
    may_talk: Callable[[str], bool]
    is_owner: Callable[[str], bool]
    owner_addresses: Sequence[str]
    alert: OwnerAlert
    arrived: Callable[[SessionKey], None] | None = None
    language_of: Callable[[str], str] | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """
    A server that an account needs, for `squidbot check`. ``part`` names it in the report; ``way`` is how TLS
    begins (imap and smtp: STARTTLS); ``path`` is what to ask an HTTP server for; ``account`` is the channel
    that depends on it, which the gateway fills in.
    """

    part: str
    host: str
    port: int
    way: Way
    path: str = ""
    ca_file: Path | None = None
    account: str = ""

    @classmethod
    def from_url(cls, part: str, url: str, path: str, *, ca_file: Path | None = None) -> Self:
        """The server of a URL, asked for ``path`` below it."""
        parts = urlsplit(url)
        way: Way = "tls" if parts.scheme == "https" else "plain"
        port = parts.port or (443 if way == "tls" else 80)
        return cls(part, parts.hostname or "", port, way, parts.path.rstrip("/") + path, ca_file)


class RunningAccounts(Protocol):
    """The running accounts, for the operations of a plugin."""

    def channels_of(self, kind: str, name: str = "") -> Mapping[str, Channel]:
        """The accounts of a kind, or the one of that name. Raises for the operator if there is none."""


class ChannelPlugin(ABC, Generic[Config]):
    """A kind of channel; one instance serves all its accounts."""

    api: ClassVar[int] = API_VERSION
    """The version of this interface that the plugin was made for: write the number itself."""
    kind: ClassVar[str]
    """The key under ``channels:``."""
    config: type[Config]
    """The settings of one account."""
    addresses: AddressRules
    address_key: ClassVar[str]
    """The setting with the bot's own address."""
    contact_rank: ClassVar[int] = 100
    """The owner is written to on the kind of the lowest rank, where nothing else is set."""
    has_rooms: ClassVar[bool] = True
    """False: whatever arrives was sent to the bot itself, also if others got it too, as in a mailbox."""

    description: ClassVar[str] = ""
    """The help of the group of commands of this kind, ``squidbot KIND``."""
    login_help: ClassVar[str] = ""
    """What ``squidbot KIND login`` does and needs; empty: accounts have no login of their own."""
    borrows_addresses: ClassVar[bool] = False
    """True: its people have the addresses, and the rights, that they have on other channels."""

    needs_http: ClassVar[bool] = False
    """True: its channels can only be reached at ``gateway.http.listen`` (`SupportsHttp`)."""

    notes: ClassVar[Mapping[str, str]] = {}
    """Comments beside settings in a new configuration, by the name of the setting."""

    def own_address(self, config: Config) -> str:
        """The bot's own address of an account."""
        return str(getattr(config, self.address_key))

    @abstractmethod
    def build(self, config: Config, services: ChannelServices) -> Channel:
        """Make the channel of an account. No input or output: it may never run."""

    async def log_in(
        self, config: Config, state: StateFolder, clock: ChannelClock, person: PersonAtTerminal
    ) -> None:
        """
        Lead a person through the login of an account, and keep it in ``state``.

        Raises:
            ChannelError: It did not work, or the account logs in by itself; the text is for the person.
        """
        from channels.base import ChannelMisconfigured  # noqa: PLC0415 - the settings are read without it

        raise ChannelMisconfigured(f"accounts of the kind {self.kind} have no login of their own")

    def setup(self) -> SetupForm[Config] | None:
        """The questions of `squidbot init`; None: an account is configured by hand."""
        return None

    def operations(self) -> Sequence[Operation]:
        """
        The requests of operators to accounts: functions declared with `operation`, see `operations_of`.

        Their first argument is a `RunningAccounts`; a `ChannelError` that they raise is told to the operator.
        """
        return ()

    def read_row_files(
        self, folder: Path, refused: Callable[[str], None]
    ) -> Iterator[tuple[str, int, list[Row]]]:
        """
        Yield name, generation and rows of each file of an account that is a `RowStore` in a database.

        ``refused`` is told of a file that cannot be read. Nothing else uses the account meanwhile.
        """
        return iter(())

    def trusts_no_more(self, config: Config, first: Config) -> bool:
        """
        Return True if an account believes nobody about who a sender is whom the first of the kind does not.

        On an account that does, the owner's address of the kind is not taken for the owner's.
        """
        rules = self.addresses
        return rules.server(self.own_address(config)) == rules.server(self.own_address(first))

    def servers(self, config: Config) -> Sequence[Server]:
        """The servers of an account, for `squidbot check`."""
        return ()
