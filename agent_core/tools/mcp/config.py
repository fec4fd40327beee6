"""``mcp``: the settings of the servers whose tools the assistant may use."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent_core.settings_section import SettingsSection
from agent_core.tools.policy import Availability

_SERVER = re.compile(r"[a-z0-9](?:[a-z0-9]|[_-](?![_-])){0,23}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,80}")


def _server(name: str) -> str:
    if not _SERVER.fullmatch(name) or name[-1] in "_-":
        raise ValueError("a name has up to 24 lower-case letters, digits and single - or _ between them")
    return name


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError("is not the name of a variable")
    return text


def _header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError("is not the name of a header")
    return text


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("must be an address such as https://mcp.example.org/mcp, without user and #")
    return text


EffectName = Literal[
    "read", "private_read", "write_workspace", "persist", "send", "network_get", "network_send", "execute"
]


class McpServerSettings(SettingsSection):
    """
    One server: a program (``command``) or an address (``url``).

    A program runs with squidbot's own rights, outside of the sandbox, so name only programs that you trust.
    """

    command: str = ""
    """The program, such as ``uvx`` or ``/usr/local/bin/mcp-server-git``."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[Annotated[str, AfterValidator(_variable)], SecretStr] = Field(default={})
    """Its environment variables, such as ``{API_KEY: "${secret:key}"}``. From the daemon it inherits only
    ``PATH``, ``HOME``, ``LANG``, ``LC_ALL``, ``TZ`` and ``USER``."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Address of a server that speaks streamable HTTP. Redirects are not followed."""
    headers: dict[Annotated[str, AfterValidator(_header)], SecretStr] = Field(default={})
    """Request headers, such as ``{Authorization: "Bearer ${secret:token}"}``."""
    auth: Literal["none", "oauth"] = "none"
    """``oauth``: a person logs in once, with ``squidbot mcp login NAME``."""
    client_id: str = ""
    """With ``oauth``: squidbot's client id. Empty: squidbot registers itself."""
    client_secret: SecretStr | None = None
    """The secret of this ``client_id``, if it has one."""
    scope: str = ""
    """With ``oauth``: the scope to request. Empty: what the server says."""
    allow: Availability = "owner"
    """``owner``, ``people`` (everybody who may talk to the bot) or ``none``."""
    tools: tuple[str, ...] = ()
    """The tools to use. Empty: all of them."""
    effects: dict[str, EffectName] = Field(default={})
    """What a call of a tool does, by its name or ``"*"``, such as ``{get_time: read}``. A tool that is not
    listed counts as running a program, and squidbot asks before each call."""
    trust: Literal["untrusted", "own"] = "untrusted"
    """``own``: all that it says, also of its tools, counts as your own words. Only for a server whose data
    nobody else can write."""
    timeout_s: float = Field(default=60.0, ge=1, le=3600)
    """Maximum duration of a call."""
    start_s: float = Field(default=30.0, ge=1, le=600)
    """Maximum time until a started server is ready."""
    idle_minutes: float = Field(default=10.0, ge=0.01, le=10_080)
    """A server that was not used for this time is stopped until it is needed again."""
    eager: bool = False
    """Start the server with the daemon and keep it running."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("name either a command or a url")
        if self.url is None and self.headers:
            raise ValueError("headers are for a url")
        if self.auth == "none" and (self.client_id or self.client_secret or self.scope):
            raise ValueError("client_id, client_secret and scope are for auth: oauth")
        if self.auth == "oauth" and self.url is None:
            raise ValueError("auth: oauth is for a url")
        if self.auth == "oauth" and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("auth: oauth sets the header Authorization itself")
        if self.client_secret and not self.client_id:
            raise ValueError("client_secret needs client_id")
        if self.url is not None and (self.args or self.env):
            raise ValueError("args and env are for a command")
        return self


class McpSettings(SettingsSection):
    """Servers that speak MCP, the Model Context Protocol. Needs the extra ``mcp``; see docs/mcp.md."""

    servers: dict[Annotated[str, AfterValidator(_server)], McpServerSettings] = Field(default={})
