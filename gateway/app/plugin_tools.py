"""Composition root: the tools of other distributions, as far as the settings enable them."""

from __future__ import annotations

import structlog

from agent_core.models import Session
from agent_core.ports import ToolPort
from agent_core.tools.effects import Effect
from agent_core.tools.family import FamilyConfig, GuardedTool, ToolServices, ToolSource
from agent_core.tools.policy import is_available
from gateway.app.environment import Environment
from gateway.app.state_folders import AccountFolders
from gateway.plugins import tool_families
from gateway.settings.cross_checks import TOOLS

_log = structlog.get_logger(__name__)


class PluginTools:
    """The families of `plugins.enabled`. One instance serves all sessions."""

    def __init__(self, env: Environment, folders: AccountFolders) -> None:
        self._effects = env.settings.plugins.effects
        self._clock = env.clock
        self._built: dict[str, tuple[FamilyConfig, ToolSource]] = {}
        for name in env.settings.plugins.enabled:
            if (family := tool_families().get(name)) is not None:
                services = ToolServices(clock=env.clock, state=folders(f"tools.{name}"))
                config = getattr(env.settings.tools, name)
                self._built[name] = config, family.build(config, services)

    def tools(self, session: Session) -> list[ToolPort]:
        """The tools of one run."""
        return [
            GuardedTool(tool, name, self._effect(name, tool.name), self._clock)
            for name, (config, source) in self._built.items()
            if is_available(config.allow, session)
            for tool in source.tools(session)
            if _has_a_name_of_its_own(name, tool)
        ]

    async def aclose(self) -> None:
        """Close all of them."""
        for name, (_, source) in self._built.items():
            try:
                await source.aclose()
            except Exception as error:  # noqa: BLE001 - code of others; the rest is closed all the same
                _log.warning("plugin.not_closed", plugin=name, error=str(error))

    def _effect(self, family: str, tool: str) -> Effect | None:
        named = self._effects.get(family, {}).get(tool)
        return None if named is None else Effect(named)


def _has_a_name_of_its_own(family: str, tool: ToolPort) -> bool:
    fits = (tool.name == family or tool.name.startswith(f"{family}_")) and tool.name not in TOOLS
    if not fits:
        _log.error("plugin.tool_refused", plugin=family, tool=tool.name, wanted=f"{family}_…")
    return fits
