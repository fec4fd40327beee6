"""Composition root: where accounts keep their logins and keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from agent_core.ports import Clock
from agent_core.state_folder import DiskFolder, StateFolder, StateUnreachable
from gateway.settings import Settings
from gateway.store.opening import account_state_of, open_postgres, opened_queue
from gateway.store.state_key import StateKey
from gateway.store.stores import Queue, StoreUnavailable
from gateway.system.home import Home

if TYPE_CHECKING:
    from gateway.store.postgres.account_documents import AccountState

AccountFolders = Callable[[str], StateFolder]
"""Where a channel (or all MCP servers together) keeps what it keeps for itself."""


async def checked_account_state(settings: Settings, home: Home, queue: Queue) -> AccountState | None:
    """
    Return the account state of an open queue's database, unopened; None: it is in the home.

    Read-only, so it may run before the lease. Raises StoreUnavailable, or ConfigInvalid for the state key.
    """
    state = account_state_of(queue, StateKey(settings.state_key, home.state_key))
    if state is not None:
        await _waited_for(state, state.check)
    return state


async def open_account_state(state: AccountState) -> None:
    """Open it; the first process says which key encrypts it. Raises as `checked_account_state`."""
    await _waited_for(state, state.open)


async def check_accounts(state: AccountState, addresses: Mapping[str, str], *, note: bool) -> None:
    """Check that stored accounts belong to these addresses. Raises StoreUnavailable, ConfigInvalid."""
    await _waited_for(state, partial(state.check_accounts, addresses, note=note))


async def _waited_for(state: AccountState, call: Callable[[], None]) -> None:
    try:
        with open_postgres():
            await anyio.to_thread.run_sync(call)
    except StateUnreachable as error:
        raise StoreUnavailable(str(error), path=state.where, operation="open") from error


def folders_of(home: Home, state: AccountState | None) -> AccountFolders:
    """The folders of channels, in the database or in the home."""

    def folder(name: str) -> StateFolder:
        local = home.state(name)
        return DiskFolder(local) if state is None else state.folder(name, local)

    return folder


def closing(state: AccountState) -> Callable[[], Awaitable[None]]:
    """Close the database connections when the gateway has ended."""

    async def close() -> None:
        await anyio.to_thread.run_sync(state.close)

    return close


@asynccontextmanager
async def account_folders(settings: Settings, home: Home, clock: Clock) -> AsyncIterator[AccountFolders]:
    """The folders of channels, for a command; raises as `checked_account_state`."""
    if settings.store_url is None:
        yield folders_of(home, None)
        return
    queue = await opened_queue(home.database, settings.store_url, clock=clock)
    try:
        state = await checked_account_state(settings, home, queue)
        try:
            if state is not None:
                await open_account_state(state)
            yield folders_of(home, state)
        finally:
            if state is not None:
                state.close()
    finally:
        with anyio.CancelScope(shield=True):
            await queue.aclose()
