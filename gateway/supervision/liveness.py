"""
The daemon's signs of life: to the service manager (sd_notify), and to the process watchdog. A sign says two
things at once, that the event loop turns and that turns are being worked on (``turn_watchdog.py``). When the
second fails, signs stay away on purpose, and whoever listens ends the process and starts it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import anyio

from gateway.supervision.turn_watchdog import ProcessWatchdog
from gateway.system.sd_notify import Notifier

WATCHDOG_VARIABLE = "SQUIDBOT_WATCHDOG_SECONDS"
"""Where no service manager watches, but somebody starts the process again: containers. The image sets it."""

_STATUS_EVERY_S = 10.0


def environment_watchdog(notifier: Notifier, environ: Mapping[str, str] = os.environ) -> ProcessWatchdog:
    """Return the environment's process watchdog; None with a service manager or an invalid number."""
    asked = environ.get(WATCHDOG_VARIABLE, "")
    if notifier.watchdog_interval_s is not None or not asked.isascii() or not asked.isdigit() or asked == "0":
        return ProcessWatchdog(None)
    return ProcessWatchdog(max(float(asked), 30.0))


async def report_liveness(
    notifier: Notifier,
    *,
    started: anyio.Event,
    line: Callable[[], str],
    stuck: Callable[[], str | None],
    resort: ProcessWatchdog,
) -> None:
    """
    Report ready, status and signs of life to the service manager until cancelled.

    ``started`` is set when up or standing by; ``stuck`` says why turns stall; ``resort`` ends the process.
    """
    await started.wait()
    notifier.ready(line())
    watchdog_s = notifier.watchdog_interval_s
    try:
        while True:
            why = stuck()
            notifier.status(line() if why is None else f"stuck: {why}")
            if why is None:
                resort.note_progress()
                if watchdog_s is not None:
                    notifier.watchdog()
            await anyio.sleep(min(watchdog_s or _STATUS_EVERY_S, _STATUS_EVERY_S))
    finally:
        resort.aclose()
