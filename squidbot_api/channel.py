"""What a channel is made of."""

from agent_core.messages import (
    Amendment,
    Attachment,
    Audience,
    InboundMessage,
    OutboundMessage,
    Sender,
    SessionKey,
)
from channels.base import (
    Capabilities,
    Channel,
    ChannelAuthFailed,
    ChannelError,
    ChannelMisconfigured,
    ChannelUnavailable,
    DeliveryFailed,
    DeliveryUncertain,
    Inbox,
    LinkState,
    Receipt,
    Redelivery,
)
from channels.plugin import AccountConfig, AddressRules, ChannelPlugin, ChannelServices, Server

__all__ = [
    "AccountConfig",
    "AddressRules",
    "Amendment",
    "Attachment",
    "Audience",
    "Capabilities",
    "Channel",
    "ChannelAuthFailed",
    "ChannelError",
    "ChannelMisconfigured",
    "ChannelPlugin",
    "ChannelServices",
    "ChannelUnavailable",
    "DeliveryFailed",
    "DeliveryUncertain",
    "InboundMessage",
    "Inbox",
    "LinkState",
    "OutboundMessage",
    "Receipt",
    "Redelivery",
    "Sender",
    "Server",
    "SessionKey",
]
