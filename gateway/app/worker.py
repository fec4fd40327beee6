"""Composition root: a worker, which uses accounts and files that other processes have."""

from __future__ import annotations

from typing import NoReturn

from agent_core.models import Session
from agent_core.tools.availability import is_available
from channels.attachments import LocalFiles
from channels.base import Capabilities
from channels.email import capabilities as email
from channels.matrix import capabilities as matrix
from channels.matrix.config import MatrixConfig
from gateway.app.environment import Configured, Environment
from gateway.errors import NeedsAccount
from gateway.routing.access import LOCAL_CHANNELS
from gateway.routing.account_elsewhere import AccountElsewhere
from gateway.settings import Settings
from gateway.supervision.other_processes import OtherProcesses


def accounts_elsewhere(env: Environment, others: OtherProcesses) -> Configured:
    """The configured accounts, all of which other processes have; a worker has no terminal."""
    return {
        name: (AccountElsewhere(name, account, able, others.tell_typing), batching)
        for name, (account, able, batching) in _configured(env).items()
    }


def _configured(env: Environment) -> dict[str, tuple[str, Capabilities, str]]:
    """By channel: the address of the account, what the channel can do, and how its messages are batched."""
    if env.overrides.channels is not None:
        return {
            name: (channel.account, channel.capabilities, batching)
            for name, (channel, batching) in env.overrides.channels.items()
            if name not in LOCAL_CHANNELS
        }
    found: dict[str, tuple[str, Capabilities, str]] = {}
    for name, config in env.settings.channels.enabled().items():
        if isinstance(config, MatrixConfig):
            found[name] = (config.user_id, matrix.capabilities_of(config), config.batching)
        else:
            found[name] = (config.address, email.capabilities_of(config), config.batching)
    return found


class FilesElsewhere(LocalFiles):
    """Files in the homes of the processes that received them: no worker can read one."""

    def read(self, path: str, size: int, *, offset: int, max_bytes: int) -> NoReturn:
        """
        Raise `NeedsAccount`.

        Raises:
            NeedsAccount: Always.
        """
        raise NeedsAccount("a file of a message, since attachments.store is not shared")


def refuse_servers(settings: Settings, session: Session) -> None:
    """
    Give a run no tools of MCP servers, because only the daemon with the account talks to them.

    Raises:
        NeedsAccount: It has.
    """
    if any(is_available(server.allow, session) for server in settings.mcp.servers.values()):
        raise NeedsAccount("the tools of MCP servers")
