"""
A family of tools: configured and built together, by this program or by a plugin. A plugin is an entry point
of the group ``squidbot.tools``. Its author cannot lower the guard of somebody else's home: a tool of another
distribution counts as running a program, and is asked about before each call, until the owner's settings
repeat the effect that it declares (`GuardedTool`). What it returns counts as words that anybody may have
written, unless it says whose they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from agent_core.errors import ToolError
from agent_core.models import Session, ToolResult
from agent_core.ports import Clock, ToolPort
from agent_core.provenance import Origins, untrusted_origin
from agent_core.settings_section import SettingsSection
from agent_core.tools.effects import Effect, effect_of, needs_approval
from agent_core.tools.policy import Availability

if TYPE_CHECKING:
    from agent_core.state_folder import StateFolder


class FamilyConfig(SettingsSection):
    """The settings of a family, ``tools.NAME``; a family's own settings derive from it."""

    allow: Availability = "owner"
    """``owner``, ``people`` (everybody who may talk to the bot) or ``none``."""


Config = TypeVar("Config", bound=FamilyConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServices:
    """The gateway's side of one family. ``state`` keeps documents that survive restarts."""

    clock: Clock
    state: StateFolder


class ToolSource(ABC):
    """One family at work, for all conversations."""

    @abstractmethod
    def tools(self, session: Session) -> Sequence[ToolPort]:
        """Return the tools of one run, each named like the family or beginning with its name and ``_``."""

    async def aclose(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of what is held, at the end."""


class ToolFamily(ABC, Generic[Config]):
    """A family of tools; one instance for all its runs."""

    api: ClassVar[int]
    """The version of this interface that the plugin was made for: write the number itself."""
    name: ClassVar[str]
    """The key under ``tools:``."""
    config: type[Config]

    @abstractmethod
    def build(self, config: Config, services: ToolServices) -> ToolSource:
        """Put the family together. No input or output: it may never be used."""


class GuardedTool:
    """A tool of another distribution (``family``); ``effect`` is the owner's setting, if any."""

    def __init__(self, tool: ToolPort, family: str, effect: Effect | None, clock: Clock) -> None:
        self.name = tool.name
        self.description = tool.description
        self.parameters: Mapping[str, Any] = tool.parameters
        self._tool = tool
        self._family = family
        self._effect = effect
        self._clock = clock
        self.repeatable = getattr(tool, "effect", None) == effect and bool(getattr(tool, "repeatable", False))

    def __getattr__(self, name: str) -> Any:
        """Anything else that the tool declares."""
        return getattr(self._tool, name)

    def effect_of(self, arguments: Mapping[str, Any]) -> Effect:
        """Return what the tool declares, if the owner has said the same; else it runs a program."""
        return Effect.EXECUTE if self._effect is None or self._differs(arguments) else self._effect

    def guards(self, arguments: Mapping[str, Any]) -> bool:
        """Ask where the owner has not said what this call does, or the tool wants it."""
        return (
            self._differs(arguments)
            or bool(getattr(self._tool, "needs_approval", False))
            or needs_approval(self._tool, arguments)
        )

    async def execute(self, /, **arguments: Any) -> ToolResult:
        """Call it."""
        try:
            result = await self._tool.execute(**arguments)
        except ToolError as error:
            error.origins = error.origins or self._origins
            raise
        return result if result.origins else result.model_copy(update={"origins": self._origins})

    def _differs(self, arguments: Mapping[str, Any]) -> bool:
        return effect_of(self._tool, arguments) is not self._effect

    @property
    def _origins(self) -> Origins:
        return (untrusted_origin("plugin", self._family, self._clock.now()),)
