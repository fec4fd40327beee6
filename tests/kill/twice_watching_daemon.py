"""``squidbot run`` with a defect: the news of a watch and what was seen are two commits, far apart."""

from __future__ import annotations

import sys

import anyio

from gateway.cli import main
from gateway.store.sql.inbox_store import InboxStore

if __name__ == "__main__":
    _accept = InboxStore.accept

    async def accept(self, channel, account, pendings, positions, *more):
        if pendings and any(name.startswith("watch:") for name in positions):
            await _accept(self, channel, account, pendings, {})
            await anyio.sleep(60.0)  # longer than a slow machine needs to send it
            pendings = []
        return await _accept(self, channel, account, pendings, positions, *more)

    InboxStore.accept = accept
    sys.exit(main())
