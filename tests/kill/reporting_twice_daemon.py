"""``squidbot run`` with a defect: the message of a background job and the end of the job are two commits."""

from __future__ import annotations

import sys
from dataclasses import replace

import anyio

from agent_core.models import Purpose
from gateway.cli import main
from gateway.turns.commit import TurnCommit

if __name__ == "__main__":
    _complete = TurnCommit.complete

    async def complete(self, turn, completion, meter=None):
        if completion.purpose is Purpose.BACKGROUND and completion.outbound:
            await self.store.outbox.post(completion.outbound)
            await anyio.sleep(30.0)  # longer than a slow machine needs to send it
            completion = replace(completion, outbound=[])
        return await _complete(self, turn, completion, meter)

    TurnCommit.complete = complete
    sys.exit(main())
