"""Matrix as a kind of channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from agent_core.operation import Operation, operations_of
from channels.matrix.config import MatrixAddresses, MatrixConfig
from channels.plugin import ChannelPlugin, ChannelServices, Server

if TYPE_CHECKING:
    from agent_core.state_folder import Row, StateFolder
    from channels.base import Channel, ChannelClock
    from channels.setup import PersonAtTerminal, SetupForm


class MatrixPlugin(ChannelPlugin[MatrixConfig]):
    """Accounts on Matrix."""

    kind = "matrix"
    config = MatrixConfig
    addresses = MatrixAddresses()
    address_key = "user_id"
    contact_rank = 10
    notes = MappingProxyType(
        {
            "enabled": "false switches it off",
            "homeserver": "the address of the client API",
            "user_id": "the bot's own account",
            "allow_from": 'such as "@bob:example.org"; nobody else is let in',
            "tls_ca_file": "your own certificate authority, trusted besides those of the system",
        }
    )

    def build(self, config: MatrixConfig, services: ChannelServices) -> Channel:
        """Make the channel."""
        from channels.matrix.channel import MatrixChannel  # noqa: PLC0415 - nio is heavy

        return MatrixChannel(config, services)

    description = "Matrix: the login, devices and emoji verification."
    login_help = """
    Log the bot in with a browser, on any device, where the homeserver gives accounts no password.

    This requires login: browser in the configuration of the account. The login is stored in the home folder,
    readable by its owner alone. A running daemon uses it at once.
    """

    def setup(self) -> SetupForm[MatrixConfig]:
        """The questions of `squidbot init`."""
        from channels.matrix.setup.matrix_form import MatrixForm  # noqa: PLC0415 - loaded when used

        return MatrixForm()

    def operations(self) -> Sequence[Operation]:
        """Devices, verification and encryption."""
        from channels.matrix import operations  # noqa: PLC0415 - loaded when used

        return operations_of(operations)

    async def log_in(
        self, config: MatrixConfig, state: StateFolder, clock: ChannelClock, person: PersonAtTerminal
    ) -> None:
        """Get tokens by a browser (``login: browser``)."""
        from channels.base import ChannelMisconfigured  # noqa: PLC0415 - loaded when used
        from channels.matrix.assembly import connect_by_nio  # noqa: PLC0415 - nio is heavy
        from channels.matrix.client.browser_login import log_in_by_browser  # noqa: PLC0415 - as above

        if config.login != "browser":
            raise ChannelMisconfigured(
                "login is not browser in the configuration: squidbot logs in by itself"
            )
        homeserver = await connect_by_nio(config)
        try:
            await log_in_by_browser(config, homeserver, state, clock, person)
        finally:
            await homeserver.aclose()

    def read_row_files(
        self, folder: Path, refused: Callable[[str], None]
    ) -> Iterator[tuple[str, int, list[Row]]]:
        """The key stores of devices."""
        from channels.matrix.crypto.key_store_copy import rows_of  # noqa: PLC0415 - loaded when used
        from channels.matrix.crypto.key_types import StoreBroken  # noqa: PLC0415 - as above

        for path in sorted(folder.glob("crypto-*.db")):
            try:
                yield rows_of(path)
            except StoreBroken as error:
                refused(f"{path}: it cannot be moved ({error}) and stays where it is")

    def servers(self, config: MatrixConfig) -> Sequence[Server]:
        """The homeserver."""
        path = "/_matrix/client/versions"
        return [Server.from_url("homeserver", config.homeserver, path, ca_file=config.tls_ca_file)]
