"""``squidbot run`` with a defect: the voice message and the end of what it stands for are two commits."""

from __future__ import annotations

import sys

import anyio

from gateway.cli import main
from gateway.store.sql.outbox_store import OutboxStore


async def in_two(self, row, outbound, *, usage, purpose):
    [posted] = await self.post([outbound])
    await anyio.sleep(5.0)  # longer than a slow machine needs to send it
    return posted


if __name__ == "__main__":
    OutboxStore.pass_on = in_two
    sys.exit(main())
