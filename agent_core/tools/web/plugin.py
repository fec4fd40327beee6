"""The web tools that a conversation has. Nothing that connects is loaded before one of them is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_core.models import Session
from agent_core.ports import Clock, ToolPort
from agent_core.tools.policy import is_available
from agent_core.tools.web.config import WebSettings
from agent_core.tools.web.web_fetch import WebFetchTool
from agent_core.tools.web.web_search import WebSearchTool

if TYPE_CHECKING:
    from agent_core.tools.web.ip_rules import AddressReach
    from agent_core.tools.web.web_client import WebClient  # loads aiohttp


class WebTools:
    """The web tools of a gateway; all conversations share one client with its limits."""

    def __init__(self, settings: WebSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._made: WebClient | None = None

    def tools_for(self, session: Session) -> list[ToolPort]:
        """The tools of one run; none where they are not allowed, and no search where none is configured."""
        if not is_available(self._settings.allow, session):
            return []
        tools: list[ToolPort] = [WebFetchTool(self._client, self._clock)]
        if self._settings.search is not None:
            tools.append(WebSearchTool(self._client, self._settings.search, self._clock))
        return tools

    def _client(self) -> WebClient:
        if self._made is None:
            self._made = web_client(self._settings)
        return self._made


def web_client(settings: WebSettings) -> WebClient:
    """A client that reaches what these settings allow."""
    from agent_core.tools.web.web_client import WebClient, WebLimits  # noqa: PLC0415 - not before it is used

    return WebClient(reach_of(settings), WebLimits(max_bytes=int(settings.max_mb * 1_000_000)))


def reach_of(settings: WebSettings) -> AddressReach:
    """Build the address rule of these settings."""
    from agent_core.tools.web.ip_rules import AddressReach, allowed_network  # noqa: PLC0415
    from agent_core.tools.web.web_client import is_own_address  # noqa: PLC0415 - not before it is used

    return AddressReach(
        allow_private=tuple(map(allowed_network, settings.allow_private)),
        is_own=is_own_address,
        ports=settings.ports,
    )
