"""
`takeover_daemon` with a model that makes the calls it is told (`worker.py`), and a moment behind each message that the tool
`send_message` has posted. As the control each message is a new one, whatever was posted before the process died.
"""

from __future__ import annotations

import os
import random
import time

import anyio

from gateway.proactive.messenger import Messenger
from tests.kill.takeover_daemon import main
from tests.kill.worker import WorkingModel

FORGETS = "SQUIDBOT_TEST_FORGETS"
LINGERS_S = "SQUIDBOT_TEST_LINGERS_S"
"""It takes up to so long from a message that was posted to the end of its step."""
_send = Messenger.send


async def send(self, here, turn, *more, **named):
    if os.environ.get(FORGETS):
        turn = f"{turn} {time.time_ns()}"
    told = await _send(self, here, turn, *more, **named)
    await anyio.sleep(random.uniform(0.5, 1) * float(os.environ.get(LINGERS_S, "1")))
    return told


if __name__ == "__main__":
    Messenger.send = send
    main(models={"echo": WorkingModel(lambda _: None, lambda: random.uniform(0, 0.3))})
