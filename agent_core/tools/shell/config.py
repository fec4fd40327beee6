"""``tools.shell``: whether there is a shell, and the limits of one command."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent_core.settings_section import SettingsSection

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _absolute(text: str) -> str:
    if not PurePosixPath(text).is_absolute() or ".." in PurePosixPath(text).parts:
        raise ValueError("name the whole path, such as /srv/data")
    return text


def _variable(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("is not the name of a variable")
    return text


def _host(text: str) -> str:
    from agent_core.tools.shell.proxy import host_pattern  # noqa: PLC0415 - rarely set

    return host_pattern(text)


class ShellSettings(SettingsSection):
    """
    Running commands (``shell``): only in a sandbox that was tested at start, and only for the owner. Without
    one there is no ``shell``; ``squidbot check`` says why.
    """

    allow: Literal["owner", "none"] = "none"
    """``owner``: in conversations that only the owner can read and write."""
    backend: Literal["auto", "unit", "bubblewrap", "landlock"] = "auto"
    """What confines commands. ``auto``: the first of these that passes its test: a unit for each command if
    ``squidbot-shell.socket`` is installed, bubblewrap if it is installed, Landlock."""
    seconds: float = Field(default=120.0, ge=1, le=600)
    """Maximum duration of a command."""
    memory_mb: float = Field(default=512.0, ge=32, le=1_000_000)
    """Maximum memory of a command and everything that it starts."""
    processes: int = Field(default=48, ge=4, le=4096)
    """Maximum number of processes of a command."""
    disk_mb: float = Field(default=500.0, ge=1, le=10_000_000)
    """Maximum disk space that a command may fill."""
    network: tuple[Annotated[str, AfterValidator(_host)], ...] = ()
    """The only hosts that commands may reach, by HTTP and HTTPS, at addresses that ``tools.web`` may reach:
    such as ``pypi.org`` or ``*.example.org`` (its subdomains). Landlock alone does not support this."""
    read_only: tuple[Annotated[str, AfterValidator(_absolute)], ...] = ()
    """Further folders, besides the system's, that commands may read and run programs from."""
    env: dict[Annotated[str, AfterValidator(_variable)], SecretStr] = Field(default={})
    """Environment variables for commands. They inherit nothing from the daemon's environment."""

    @model_validator(mode="after")
    def _can_connect(self) -> ShellSettings:
        if self.network and self.backend == "landlock":
            raise ValueError(
                "`network` cannot be given by `backend: landlock`; choose another one or list no hosts"
            )
        return self
