"""
The plugins of this process: our own from a table, those of other distributions as far as the settings say. A
plugin of another distribution is an entry point of the group ``squidbot.channels`` or ``squidbot.tools``. It
is loaded only if ``plugins.enabled`` names it, so that installing a package never adds a channel or a tool;
from then on this process knows its kind, as it knows a module that was imported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from agent_core.tools.family import ToolFamily
from channels.api.plugin import ApiPlugin
from channels.email.plugin import EmailPlugin
from channels.matrix.plugin import MatrixPlugin
from channels.plugin import API_VERSION, ChannelPlugin

if TYPE_CHECKING:
    from channels.setup import SetupForm

_CHANNELS, _TOOLS = "squidbot.channels", "squidbot.tools"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,23}")
_channels: dict[str, ChannelPlugin[Any]] = {
    plugin.kind: plugin for plugin in (MatrixPlugin(), EmailPlugin(), ApiPlugin())
}
_OWN = frozenset(_channels)
_families: dict[str, ToolFamily[Any]] = {}


class PluginRefused(Exception):
    """A plugin cannot be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """An entry point of an installed package."""

    group: str
    name: str
    distribution: str
    version: str
    entry: metadata.EntryPoint

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


def channel_kinds() -> Mapping[str, ChannelPlugin[Any]]:
    """Every kind of channel that this process knows, our own first."""
    return _channels


@lru_cache(maxsize=1024)
def normal_form(address: str) -> str:
    """The form in which addresses are compared; total, and the same when applied twice."""
    address = address.strip()
    found = (plugin.addresses.parse(address) for plugin in _channels.values())
    return next((each for each in found if each is not None), address)


def setup_forms() -> dict[str, SetupForm[Any]]:
    """The questions of `squidbot init` for each kind of channel that has some."""
    found = {kind: plugin.setup() for kind, plugin in _channels.items()}
    return {kind: form for kind, form in found.items() if form is not None}


def tool_families() -> Mapping[str, ToolFamily[Any]]:
    """The families of tools of other distributions that this process knows."""
    return _families


def installed_plugins() -> list[InstalledPlugin]:
    """List the plugins of other distributions; nothing is imported, and the environment is looked through."""
    return [
        InstalledPlugin(group, entry.name, entry.dist.name, entry.dist.version, entry)
        for group in (_CHANNELS, _TOOLS)
        for entry in sorted(metadata.entry_points(group=group))
        if entry.dist is not None
    ]


def load_plugins(names: Iterable[str], taken: Collection[str]) -> dict[str, PluginRefused]:
    """Load the plugins of these names, none of which is ``taken``. Returns those that cannot be used."""
    wanted = [name for name in names if name not in _families and name not in _channels.keys() - _OWN]
    installed = installed_plugins() if wanted else []
    refused = {}
    for name in wanted:
        try:
            _load(name, [one for one in installed if one.name == name], taken)
        except PluginRefused as error:
            refused[name] = error
    return refused


def _load(name: str, found: list[InstalledPlugin], taken: Collection[str]) -> None:
    if name in _OWN or name in taken or not _NAME.fullmatch(name):
        raise PluginRefused(f"{name!r} cannot be the name of a plugin")
    if not found:
        raise PluginRefused(
            f"no installed package has a plugin {name!r}; install it beside squidbot, such as, in "
            f"squidbot's clone: uv tool install . --with PATH/squidbot_{name.replace('-', '_')}.whl"
        )
    if len({one.distribution for one in found}) > 1:
        raise PluginRefused(f"{' and '.join(map(str, found))} both have a plugin {name!r}; uninstall one")
    made = [(one, _made(one)) for one in found]
    for one, plugin in made:
        if one.group == _CHANNELS:
            _channels[name] = plugin
            normal_form.cache_clear()
        else:
            _families[name] = plugin


def _made(one: InstalledPlugin) -> Any:
    """The plugin of an entry point. Raises `PluginRefused`."""
    try:
        plugin = one.entry.load()()
    except Exception as error:
        raise PluginRefused(f"{one} cannot be loaded: {type(error).__name__}: {error}") from error
    api = getattr(plugin, "api", None)
    if api != API_VERSION:
        raise PluginRefused(
            f"{one} is made for version {api} of squidbot's plugin interface, and this is version "
            f"{API_VERSION}; install a version of {one.distribution} for it"
        )
    base, key = (ChannelPlugin, "kind") if one.group == _CHANNELS else (ToolFamily, "name")
    if not isinstance(plugin, base) or getattr(plugin, key, None) != one.name:
        raise PluginRefused(f"{one} is broken: {one.entry.value} is no {base.__name__} called {one.name!r}")
    return plugin
