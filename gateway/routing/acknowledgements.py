"""
What a channel still shows of an answer that will never come, because its question was taken back.

Whoever works on a turn tells the channel when it is cut off (`Ends.stopped`). That is not enough: the process
can die between the stop and the tidying, and a question can be taken back while its turn waits for a restart.
The inbox knows both, so it is looked at now and then, and each such question is told to its channel once in
the life of a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import anyio
import structlog

from channels.base import Channel, Clock, Stage, Staging
from gateway.queue.ports import StoreUnavailable, WorkStore
from gateway.queue.states import InboxState
from gateway.routing.ack_states import Stages

__all__ = ["Leftovers"]

_EVERY_S = 30.0
_MOST = 200
_AGE = timedelta(days=1)
_log = structlog.get_logger(__name__)


class Leftovers:
    """
    Tells channels of questions that were taken back after work on them had begun.

    Args:
        store: Knows them.
        stages: Tells.
        channels: All channels by name; without one that shows stages nothing is ever looked at.
        clock: What is older than a day is left alone.
    """

    def __init__(
        self, store: WorkStore, stages: Stages, channels: Mapping[str, Channel], clock: Clock
    ) -> None:
        self._store = store
        self._stages = stages
        self._needed = any(
            one.capabilities.stages and one.capabilities.previews and isinstance(one, Staging)
            for one in channels.values()
        )
        self._clock = clock
        self._told: set[int] = set()

    async def run(self) -> None:
        """Look and tell until cancelled; returns at once where no channel has anything to tidy up."""
        while self._needed:
            try:
                await self.look()
            except StoreUnavailable as error:
                _log.info("leftovers.unknown", error=str(error))
            await anyio.sleep(_EVERY_S)

    async def look(self) -> None:
        """
        Tell once.

        Raises:
            StoreUnavailable: Nothing can be known now.
        """
        rows = await self._store.inbox(states=[InboxState.IGNORED], limit=_MOST)
        oldest = self._clock.now() - _AGE
        begun = [row for row in rows if row.turn is not None and row.accepted_at >= oldest]
        for row in begun:
            if row.id not in self._told:
                # What is kept of it is where and under which id it was said.
                kept = {"event_id": row.message.native_id, "left_over": True}
                self._stages.tell([row.message.model_copy(update={"context": kept})], Stage.FAILED)
        self._told = {row.id for row in begun}
