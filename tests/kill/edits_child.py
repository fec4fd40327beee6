"""
The process that is killed: a store that takes what was said to others, and edits that make a question of it.

``python -m tests.kill.edits_child FOLDER CALL SECONDS`` dies so long after the beginning of its so-manieth call.
With another argument the edits are no amendments (the negative control).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import anyio

from agent_core.messages import BY_EDIT, Amendment
from gateway.store.sqlite.sqlite_queue import SqliteQueue
from gateway.store.wakeups import Wakeups
from tests.clock import ManualClock
from tests.contract.queue_data import BOT, ROOM, pending, reply

ALICE = "@alice:hs.test"
EDITS = ("first", "second", "third")
_Value = TypeVar("_Value")


class Life:
    """One life of the process, which dies within one of its calls."""

    def __init__(self, die_in: int, after_s: float) -> None:
        self.calls, self.die_in, self.after_s = 0, die_in, after_s

    async def call(self, work: Awaitable[_Value]) -> _Value:
        self.calls += 1
        if self.calls == self.die_in:
            threading.Timer(self.after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        result = await work
        if self.calls == self.die_in:
            await anyio.sleep_forever()
        return result


async def live(folder: Path, life: Life) -> None:
    """Take each batch that is not taken yet, begin to answer it, and at last answer everything."""
    async with await SqliteQueue.open(folder / "gateway.db", clock=ManualClock(), wakeups=Wakeups()) as store:
        await store.maintenance.recover()
        taken = int(await store.inbox.position("matrix", BOT, "next") or 0)
        for number in range(taken, len(EDITS) + 1):
            batch, changes = [pending("$1", text="to others", ignore="not_addressed")], list[Amendment]()
            if number:
                text = EDITS[number - 1]
                batch = [pending(f"$1{BY_EDIT}", text=text)]
                changes = (
                    []
                    if len(sys.argv) > 4
                    else [Amendment(kind="replace", native_id="$1", sender=ALICE, text=text)]
                )
            positions = {"next": str(number + 1)}
            await life.call(store.inbox.accept("matrix", BOT, batch, positions, changes))
            if number < len(EDITS):
                await life.call(store.turns.claim(ROOM))
        while True:
            turn = await life.call(store.turns.claim(ROOM))
            if turn is None:
                return
            await life.call(store.turns.complete(turn, reply(turn.head.message.text)))


if __name__ == "__main__":
    anyio.run(live, Path(sys.argv[1]), Life(int(sys.argv[2]), float(sys.argv[3])))
