"""
The plugins of this process: our own from a table, those of other distributions as far as the settings say.

A plugin of another distribution is an entry point of the group ``squidbot.channels`` or ``squidbot.tools``.
It is loaded only if ``plugins.enabled`` names it, so that installing a package never adds a channel or a
tool; from then on this process knows its kind, as it knows a module that was imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.email.plugin import EmailPlugin
from channels.matrix.plugin import MatrixPlugin
from channels.plugin import ChannelPlugin

_channels: dict[str, ChannelPlugin[Any]] = {plugin.kind: plugin for plugin in (MatrixPlugin(), EmailPlugin())}


def channel_kinds() -> Mapping[str, ChannelPlugin[Any]]:
    """Every kind of channel that this process knows, our own first."""
    return _channels
