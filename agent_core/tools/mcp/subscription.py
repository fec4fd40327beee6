"""
Subscribes to changes at servers of the newest protocol (2026-07-28), which notify only subscribers. A
subscription lasts as long as its connection. Notifications without a subscription are lost, so after one has
ended, the server counts as changed.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import structlog
from mcp.client.session import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types import METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agent_core.backoff import Backoff, BackoffPolicy

_BEGIN_LIMIT_S = 10.0
_RETRY = BackoffPolicy(first_s=5.0, cap_s=300.0)
_log = structlog.get_logger(__name__)


@asynccontextmanager
async def subscribe(session: ClientSession, changed: Callable[[], None]) -> AsyncIterator[None]:
    """Meanwhile ``changed`` is called when what the server offers has changed. Nothing it says raises."""
    if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        yield  # a server of the older protocol tells unasked
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_events, session, changed)
        yield
        tasks.cancel_scope.cancel()


async def _read_events(session: ClientSession, changed: Callable[[], None]) -> None:
    backoff = Backoff(_RETRY)
    while True:
        began_at: float | None = None
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + _BEGIN_LIMIT_S) as limit:
                async with listen(
                    session,
                    tools_list_changed=True,
                    prompts_list_changed=True,
                    resources_list_changed=True,
                ) as subscription:
                    limit.deadline, began_at = math.inf, anyio.current_time()
                    if not subscription.honored.model_dump(exclude_none=True):
                        return  # it never tells of a change
                    if backoff.failures:
                        changed()
                    async for _ in subscription:
                        changed()
        except MCPError as error:
            if error.error.code == METHOD_NOT_FOUND:
                return
            _log.debug("mcp.subscription_ended", reason=error.error.message[:200])
        except (SubscriptionLost, TimeoutError, ValidationError):
            _log.debug("mcp.subscription_ended", reason="lost")
        up_s = 0.0 if began_at is None else anyio.current_time() - began_at
        await anyio.sleep(backoff.note_failure(random=random.random(), up_s=up_s))
