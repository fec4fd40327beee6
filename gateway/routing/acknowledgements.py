"""
Acknowledgements: shows on a message how far it is, where a channel supports that. Nobody waits: each channel
has a `SessionRunner` that keeps their order, drops new hints when it is full and cancels slow ones
(`channels.base.SupportsAcknowledgements`). `StaleAcknowledgements` clears those of withdrawn questions, also
after a crash, by checking the inbox regularly, once per question and process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import anyio
import structlog

from agent_core.agent.session_runner import RunnerFull, RunnerStopped, SessionRunner
from agent_core.messages import InboundMessage, MessageContext
from channels.base import AckState, Channel, SupportsAcknowledgements
from gateway.observability import metrics
from gateway.store.stores import Queue, StoreUnavailable

_EVERY_S = 30.0
_AT_ONCE = 4
_WAITING = 256
_LIMIT_S = 10.0
_log = structlog.get_logger(__name__)


class StaleAcknowledgements:
    """Reports questions withdrawn after work began to ``channels`` that show stages."""

    def __init__(
        self,
        store: Queue,
        acknowledgements: Acknowledgements,
        channels: Mapping[str, Channel],
    ) -> None:
        self._store = store
        self._acknowledgements = acknowledgements
        self._needed = any(
            one.capabilities.acknowledgements
            and one.capabilities.previews
            and isinstance(one, SupportsAcknowledgements)
            for one in channels.values()
        )
        self._told: set[int] = set()

    async def run(self) -> None:
        """Look and report until cancelled; returns at once where no channel has anything to tidy up."""
        while self._needed:
            try:
                await self.clear_stale()
            except StoreUnavailable as error:
                _log.info("leftovers.unknown", error=str(error))
            await anyio.sleep(_EVERY_S)

    async def clear_stale(self) -> None:
        """Report once. Raises `StoreUnavailable`."""
        found = await self._store.inbox.recently_withdrawn(within_s=86_400.0)
        for row in found:
            if row.id not in self._told:
                # What is kept of it is where and under which id it was said.
                kept = MessageContext(left_over=row.message.native_id)
                self._acknowledgements.report([row.message.with_context(kept)], AckState.FAILED)
        self._told = {row.id for row in found}


class Acknowledgements:
    """Reports progress to channels with acknowledgements, for at most `_LIMIT_S` per hint."""

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels: dict[str, tuple[SupportsAcknowledgements, SessionRunner]] = {
            name: (channel, SessionRunner(concurrency=_AT_ONCE, max_waiting=_WAITING))
            for name, channel in channels.items()
            if channel.capabilities.acknowledgements and isinstance(channel, SupportsAcknowledgements)
        }

    def report(self, messages: Iterable[InboundMessage], stage: AckState) -> None:
        """Report how far these messages are. Returns at once and never raises; ticks are ignored."""
        for message in messages:
            channel, runner = self._channels.get(message.channel, (None, None))
            if channel is None or runner is None or message.kind != "message":
                continue
            try:
                runner.submit(message.session, partial(_show, channel, message, stage))
            except (RunnerFull, RunnerStopped):
                metrics.ACKS.labels(message.channel, "dropped").inc()

    async def run(self) -> None:
        """Pass on reports until cancelled. Raises nothing but cancellation."""
        async with anyio.create_task_group() as tasks:
            for _channel, runner in self._channels.values():
                tasks.start_soon(runner.run)


async def _show(channel: SupportsAcknowledgements, message: InboundMessage, stage: AckState) -> None:
    outcome = "late"
    try:
        with anyio.move_on_after(_LIMIT_S):
            await channel.acknowledge(message.session, message.context, stage)
            outcome = "shown"
    except Exception as error:  # noqa: BLE001 - a hint never costs anything
        outcome = "failed"
        _log.info("ack.failed", channel=message.channel, stage=stage, error=type(error).__name__)
    metrics.ACKS.labels(message.channel, outcome).inc()
