"""Mail as a kind of channel."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent_core.operation import Operation, operations_of
from channels.email.config import EmailConfig
from channels.plugin import AddressRules, ChannelPlugin, ChannelServices, Server, Way

if TYPE_CHECKING:
    from agent_core.state_folder import StateFolder
    from channels.base import Channel, ChannelClock
    from channels.setup import PersonAtTerminal, SetupForm


class EmailAddresses(AddressRules):
    """
    Mail addresses, compared ignoring the case of ASCII letters only; domains as IDNA 2008.

    Folding others would merge two mailboxes, such as the Kelvin sign and "k".
    """

    example = "you@example.org"

    def parse(self, text: str) -> str | None:
        """``local@domain`` in lower case."""
        local, _, domain = text.rpartition("@")
        if not (local and domain) or text.startswith("@") or "<" in text or ":" in text:
            return None
        if any(char.isspace() or ord(char) < 32 for char in text):
            return None
        return f"{_ascii_lower(local)}@{_domain(domain)}"

    def server(self, address: str) -> str:
        """The domain."""
        return address.rpartition("@")[2]

    def server_of_entry(self, entry: str) -> str | None:
        """The domain of ``*@domain``."""
        return _domain(entry[2:]) if entry.startswith("*@") and "*" not in entry[2:] else None

    def is_conversation(self, place: str) -> bool:
        """Never: the channel begins a thread with somebody."""
        return False


def _domain(domain: str) -> str:
    domain = domain.rstrip(".")
    if domain.isascii():
        return domain.lower()
    # Loaded only for a name that needs it: its tables are large.
    import idna  # noqa: PLC0415

    try:
        return idna.encode(domain, uts46=True).decode("ascii").lower()
    except idna.IDNAError:
        # No such name can exist; it stays different from every one that can.
        return _ascii_lower(domain)


def _ascii_lower(text: str) -> str:
    return "".join(char.lower() if char.isascii() else char for char in text)


class EmailPlugin(ChannelPlugin[EmailConfig]):
    """Mailboxes."""

    kind = "email"
    config = EmailConfig
    addresses = EmailAddresses()
    address_key = "address"
    contact_rank = 20
    has_rooms = False
    notes = MappingProxyType(
        {
            "enabled": "false switches it off",
            "address": "the bot's own mailbox",
            "username": "the user name for the login",
            "imap": "the server for reading mail",
            "smtp": "the server for sending mail",
            "allow_from": 'such as "bob@example.org"; nobody else is answered',
            "trusted_authserv_ids": "the server whose Authentication-Results squidbot trusts",
            "trust_headerless_auth_results": "the provider's Authentication-Results has no server name",
            "dkim": "squidbot verifies senders by their DKIM signatures, because the provider does not "
            "report on senders",
            "sent_copy": "who puts a copy of each answer into Sent: self, server, append, none",
            "tls_ca_file": "your own certificate authority, trusted besides those of the system",
        }
    )

    def build(self, config: EmailConfig, services: ChannelServices) -> Channel:
        """Make the channel."""
        from channels.email.channel import EmailChannel  # noqa: PLC0415 - loaded where it is used

        return EmailChannel(config, services)

    description = "Mailboxes."
    login_help = """
    Authorize squidbot for a mailbox at Google, Microsoft or another OAuth provider.

    This requires channels.email.oauth in the configuration. The token is stored in the home folder, readable
    by its owner alone. A running daemon uses it at once.
    """

    def setup(self) -> SetupForm[EmailConfig]:
        """The questions of `squidbot init`."""
        from channels.email.setup.mail_form import EmailForm  # noqa: PLC0415 - loaded when used

        return EmailForm()

    def operations(self) -> Sequence[Operation]:
        """The circuit breaker."""
        from channels.email import operations  # noqa: PLC0415 - loaded when used

        return operations_of(operations)

    async def log_in(
        self, config: EmailConfig, state: StateFolder, clock: ChannelClock, person: PersonAtTerminal
    ) -> None:
        """Get tokens of the provider under ``oauth``."""
        from channels.email.mail_credentials import give_access  # noqa: PLC0415 - loaded when used

        await give_access(config, state, clock, show=person.show, pasted=person.read_line)

    def trusts_no_more(self, config: EmailConfig, first: EmailConfig) -> bool:
        """Compare what senders are verified by."""
        if config.sender_verification == "off":
            return first.sender_verification == "off"
        return _vouching(config) <= _vouching(first)

    def servers(self, config: EmailConfig) -> Sequence[Server]:
        """Both servers of the mailbox."""
        return [_server(config, "imap"), _server(config, "smtp")]


def _server(config: EmailConfig, protocol: Way) -> Server:
    server = config.imap if protocol == "imap" else config.smtp
    ways: dict[str, Way] = {"tls": "tls", "none": "plain", "starttls": protocol}
    return Server(protocol, server.host, server.port, ways[server.security], ca_file=config.tls_ca_file)


def _vouching(config: EmailConfig) -> set[tuple[str, str]]:
    """Servers whose word on senders counts; a name in Authentication-Results is worth what its server is."""
    names = {*config.trusted_authserv_ids, *([""] if config.trust_headerless_auth_results else [])}
    return {(config.imap.host.lower(), name) for name in names}
