"""Makes the credentials of a mailbox from its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio.to_thread

from agent_core.state_folder import StateFolder, state_in
from channels.base import ChannelMisconfigured, Clock
from channels.email.auth.credentials import Credentials, PasswordCredentials
from channels.email.auth.oauth_tokens import AskProvider, Endpoints, TokenCredentials, TokenFile
from channels.email.config import EmailConfig


def credentials_of(
    config: EmailConfig, state_dir: Path | StateFolder, clock: Clock, ask: AskProvider | None = None
) -> Credentials:
    """A password, or tokens that are stored in ``state_dir``; ``ask`` asks their provider."""
    if config.oauth is None:
        return PasswordCredentials.of(config)
    from channels.email.auth.oauth_flow import HttpProvider  # noqa: PLC0415 - not for a password

    ask = ask or HttpProvider(config.tls_ca_file)
    return TokenCredentials(config.username, config.oauth, token_file(state_dir), ask, clock)


def token_file(state_dir: Path | StateFolder) -> TokenFile:
    """Where the tokens of a mailbox are stored."""
    state = state_in(state_dir)
    return TokenFile(state.local / "oauth.json", state)


async def give_access(
    config: EmailConfig,
    state_dir: Path | StateFolder,
    clock: Clock,
    *,
    show: Callable[[str], None],
    pasted: Callable[[], Awaitable[str]],
    ask: AskProvider | None = None,
) -> None:
    """
    Lead a person through the login, and store the tokens.

    Args:
        config: The mailbox; it has ``oauth``.
        show: Tells the person what to do.
        pasted: Gives what the person pastes.

    Raises:
        ChannelError: It came to nothing; why, in plain words.
    """
    from channels.email.auth.oauth_flow import (  # noqa: PLC0415 - not for a password
        HttpProvider,
        by_browser,
        by_device,
    )

    oauth = config.oauth
    if oauth is None:
        raise ChannelMisconfigured("there is no oauth in the settings")
    ask = ask or HttpProvider(config.tls_ca_file)
    if oauth.flow == "browser" or (oauth.flow == "auto" and not Endpoints.of(oauth).device):
        tokens = await by_browser(oauth, ask, clock, show, pasted)
    else:
        tokens = await by_device(oauth, ask, clock, show)
    await anyio.to_thread.run_sync(token_file(state_dir).save, tokens)
