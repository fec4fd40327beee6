"""
How far a message is, shown on the message itself where a channel can (`channels.base.Staging`).

A hint is never waited for: `Stages.tell` puts it into a line and returns. Each channel has a few lines, and
all hints of one session go through the same one, so that those of one message come in order. A line that is
full takes nothing more, and a hint that takes too long is given up; both are counted, and neither is told to
anybody, because the answer itself says more than its mark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from zlib import crc32

import anyio
import structlog

from agent_core.messages import InboundMessage
from channels.base import Channel, Stage, Staging
from gateway.observability import metrics

__all__ = ["Stages"]

_LINES = 4
_WAITING = 64
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Hint:
    channel: Staging
    message: InboundMessage
    stage: Stage


@dataclass(slots=True)
class _Line:
    waiting: deque[_Hint] = field(default_factory=deque)
    news: anyio.Event = field(default_factory=anyio.Event)


class Stages:
    """
    Tells channels how far their messages are.

    Args:
        channels: All channels by name; those without `Capabilities.stages` are told nothing.
        limit_s: How long a channel may take for one hint.
        waiting: How many hints may wait in one line.
    """

    def __init__(
        self, channels: Mapping[str, Channel], *, limit_s: float = 10.0, waiting: int = _WAITING
    ) -> None:
        self._channels: dict[str, Staging] = {
            name: channel
            for name, channel in channels.items()
            if channel.capabilities.stages and isinstance(channel, Staging)
        }
        self._limit_s = limit_s
        self._most = waiting
        self._lines = {(name, number): _Line() for name in self._channels for number in range(_LINES)}

    def tell(self, messages: Iterable[InboundMessage], stage: Stage) -> None:
        """These messages have come so far. Returns at once and never raises; ticks are nobody's messages."""
        for message in messages:
            channel = self._channels.get(message.channel)
            if channel is None or message.kind != "message":
                continue
            line = self._lines[message.channel, crc32(str(message.session).encode()) % _LINES]
            if len(line.waiting) >= self._most:
                metrics.STAGES.labels(message.channel, "dropped").inc()
                continue
            line.waiting.append(_Hint(channel, message, stage))
            line.news.set()

    async def run(self) -> None:
        """Show what is told, until cancelled. Raises nothing but cancellation."""
        async with anyio.create_task_group() as lines:
            for line in self._lines.values():
                lines.start_soon(self._serve, line)

    async def _serve(self, line: _Line) -> None:
        while True:
            line.news = anyio.Event()
            while line.waiting:
                await self._show(line.waiting.popleft())
            await line.news.wait()

    async def _show(self, hint: _Hint) -> None:
        message = hint.message
        outcome = "late"
        try:
            with anyio.move_on_after(self._limit_s):
                await hint.channel.stage(message.session, message.context, hint.stage)
                outcome = "shown"
        except Exception as error:  # noqa: BLE001 - a hint never costs anything
            outcome = "failed"
            _log.info("stage.failed", channel=message.channel, stage=hint.stage, error=type(error).__name__)
        metrics.STAGES.labels(message.channel, outcome).inc()
