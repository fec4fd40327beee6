"""``squidbot run`` with a clock that is ahead by `SHIFT_VARIABLE` seconds: tomorrow need not be waited for."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from pathlib import Path

from gateway.app import Overrides
from gateway.app.daemon import run_daemon
from gateway.settings import load_settings
from gateway.system.clock import SystemClock
from gateway.system.home import Home, open_home

SHIFT_VARIABLE = "SQUIDBOT_TEST_CLOCK_AHEAD_S"


class ShiftedClock(SystemClock):
    """The machine's clock, and so much later."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead = timedelta(seconds=ahead_s)

    def now(self) -> datetime:
        """The time there."""
        return super().now() + self._ahead


def main() -> int:
    """Run on the home folder that is named last."""
    root = Path(sys.argv[-1])
    clock = ShiftedClock(float(os.environ.get(SHIFT_VARIABLE, "0")))
    return run_daemon(load_settings(Home(root).config_file), open_home(root), Overrides(clock=clock))


if __name__ == "__main__":
    sys.exit(main())
