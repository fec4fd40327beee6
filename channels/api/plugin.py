"""The endpoint for OpenAI's clients as a kind of channel. Loads quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from channels.api.config import ApiConfig
from channels.plugin import AddressRules, ChannelPlugin, ChannelServices

if TYPE_CHECKING:
    from channels.base import Channel


class ApiAddresses(AddressRules):
    """Knows no addresses: a token speaks for a person of another channel."""

    example = "@you:example.org"

    def parse(self, text: str) -> str | None:
        """Return None."""
        return None

    def entry_problem(self, entry: str) -> str | None:
        """Refuse every entry: a token is what lets somebody in."""
        return "has no use here: whoever may talk to the bot elsewhere can have a token (squidbot tokens add)"


class ApiPlugin(ChannelPlugin[ApiConfig]):
    """The endpoint for OpenAI's clients."""

    kind = "api"
    config = ApiConfig
    addresses = ApiAddresses()
    address_key = "model"
    contact_rank = 1000
    borrows_addresses = True
    needs_http = True

    def own_address(self, config: ApiConfig) -> str:
        """Return the same for every configuration: there is one endpoint."""
        return "squidbot"

    def build(self, config: ApiConfig, services: ChannelServices) -> Channel:
        """Make the channel."""
        from channels.api.api_server import ApiServer  # noqa: PLC0415
        from channels.api.channel import ApiChannel  # noqa: PLC0415 - loaded where it is used

        return ApiChannel(config, services, lambda channel: ApiServer(channel).routes())
