"""The accounts and the access rules of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.plugins import channel_kinds
from gateway.routing.access import Access
from gateway.settings import Settings


def accounts_of(settings: Settings) -> dict[str, str]:
    """The bot's own address on each enabled channel."""
    kinds = settings.channels.kinds()
    return {
        name: channel_kinds()[kinds[name]].own_address(config)
        for name, config in settings.channels.enabled().items()
    }


def access_of(settings: Settings, more: Mapping[str, Sequence[str]] | None = None) -> Access:
    """The access rules of these settings, and of ``more`` people."""
    return Access(
        settings.owner.aliases,
        {**settings.allow_from(), **(more or {})},
        kinds=settings.channels.kinds(),
        apart=settings.channels.apart(),
        own=accounts_of(settings).values(),
    )
