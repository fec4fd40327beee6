"""Makes the credentials of a mailbox from its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio.to_thread

from agent_core.oauth import OAuthTokens, ProviderAway, TokenStore
from agent_core.oauth_http import HttpProvider
from agent_core.oauth_login import BrowserLogin, LoginFailed, Post, run_browser_flow, run_device_flow
from agent_core.state_folder import StateFolder, state_in
from channels.base import ChannelAuthFailed, ChannelClock, ChannelMisconfigured, ChannelUnavailable
from channels.email.config import EmailConfig
from channels.email.mail_credentials import Credentials, PasswordCredentials
from channels.email.mail_oauth_tokens import (
    TokenCredentials,
    client_from_settings,
    token_store,
)
from channels.email.mail_tls import verifying_context


def credentials_of(
    config: EmailConfig, state_dir: Path | StateFolder, clock: ChannelClock, post: Post | None = None
) -> Credentials:
    """A password, or tokens that are stored in ``state_dir``; ``post`` asks their provider."""
    if config.oauth is None:
        return PasswordCredentials.from_config(config)
    post = post or _provider(config)
    return TokenCredentials(config.username, config.oauth, token_file(state_dir), post, clock)


def _provider(config: EmailConfig) -> HttpProvider:
    return HttpProvider(partial(verifying_context, config.tls_ca_file))


def token_file(state_dir: Path | StateFolder) -> TokenStore[OAuthTokens]:
    """Return the store of a mailbox's tokens."""
    state = state_in(state_dir)
    return token_store(state.local / "oauth.json", state)


async def give_access(
    config: EmailConfig,
    state_dir: Path | StateFolder,
    clock: ChannelClock,
    *,
    show: Callable[[str], None],
    pasted: Callable[[], Awaitable[str]],
    post: Post | None = None,
) -> None:
    """Lead a person through the login by ``show`` and ``pasted``; store the tokens. Raises ChannelError."""
    oauth = config.oauth
    if oauth is None:
        raise ChannelMisconfigured("there is no oauth in the settings")
    client, post = client_from_settings(oauth), post or _provider(config)
    by_browser = oauth.flow == "browser" or (oauth.flow == "auto" and not client.device_endpoint)
    if by_browser and not client.authorization_endpoint:
        raise ChannelMisconfigured("this provider has no authorization_endpoint; use flow: device")
    if not by_browser and not client.device_endpoint:
        raise ChannelMisconfigured("this provider has no device_endpoint; use flow: browser")
    try:
        if by_browser:
            tokens = await run_browser_flow(client, post, clock, BrowserLogin(show, pasted))
        else:
            tokens = await run_device_flow(client, post, clock, show)
    except LoginFailed as error:
        raise ChannelAuthFailed(str(error)) from error
    except ProviderAway as error:
        raise ChannelUnavailable(f"the provider cannot be used now: {error}") from error
    await anyio.to_thread.run_sync(token_file(state_dir).save, tokens)
