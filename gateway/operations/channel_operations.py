"""The operation on channels of any kind; those of one kind are its plugin's."""

from __future__ import annotations

from typing import Any

from agent_core.operation import operation
from gateway.operations.operation_context import OperationContext

RETRY = "channel_retry"


@operation("channel retry", writes=True)
async def retry_channel(context: OperationContext, channel: str) -> dict[str, Any]:
    """Reconnect a channel that waits after a failure, for example after a new login."""
    if context.retry is None or channel not in context.channels:
        raise context.missing(f"channel {channel!r}")
    context.retry(channel)
    return {"channel": channel}
