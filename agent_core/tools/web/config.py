"""``tools.web``: which parts of the web the model may use."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent_core.settings_section import SettingsSection
from agent_core.tools.policy import Availability


def _network(text: str) -> str:
    from agent_core.tools.web.ip_rules import allowed_network  # noqa: PLC0415 - rarely set

    return str(allowed_network(text))


def _address(text: str) -> str:
    from agent_core.tools.web.urls import normalise_url  # noqa: PLC0415 - rarely set

    return normalise_url(text)


class SearchSettings(SettingsSection):
    """The ``provider`` that ``web_search`` uses. It learns what is searched for."""

    provider: Literal["searxng", "brave", "tavily", "kagi"]
    url: Annotated[str, AfterValidator(_address)] | None = None
    """Address of your SearXNG; it may be in your own network. For the others, only if it is not the
    provider's own."""
    key: SecretStr = SecretStr("")
    """API key, for example ``${secret:search-key}``. SearXNG needs none."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.provider == "searxng" and self.url is None:
            raise ValueError("searxng needs url, the address of your SearXNG")
        if self.provider != "searxng" and not self.key.get_secret_value():
            raise ValueError(f"{self.provider} needs key, the API key of your account there")
        return self


class WebSettings(SettingsSection):
    """
    Reading pages (``web_fetch``) and searching (``web_search``, if ``search`` is set).

    ``allow``: ``owner``, ``people`` (everybody who may talk to the bot) or ``none``.
    """

    allow: Availability = "owner"
    allow_private: tuple[Annotated[str, AfterValidator(_network)], ...] = ()
    """Networks that may be reached although they are not public, such as ``192.168.1.0/24``; on any port."""
    ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = (80, 443)
    """Ports that may be reached on public addresses."""
    max_mb: float = Field(default=5.0, ge=0.1, le=100)
    """Maximum size of a page, after unpacking."""
    search: SearchSettings | None = None
