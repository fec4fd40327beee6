"""``squidbot run`` with a defect: news, in messages or check-ins, and what was seen or told are two commits, far apart."""

from __future__ import annotations

import sys

import anyio

from channels.heartbeat.channel import NEWS
from gateway.cli import main
from gateway.store.sql.inbox_store import InboxStore

if __name__ == "__main__":
    _accept = InboxStore.accept

    async def accept(self, channel, account, pendings, positions, *more):
        if pendings and any(name.startswith(("watch:", NEWS)) for name in positions):
            await _accept(self, channel, account, pendings, {})
            await anyio.sleep(60.0)  # longer than a slow machine needs to send it
            pendings = []
        return await _accept(self, channel, account, pendings, positions, *more)

    InboxStore.accept = accept
    sys.exit(main())
