"""What a figure was measured on, and how much of it others have used."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime


def machine() -> str:
    """The day, the machine and its load, in a few words."""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, load {os.getloadavg()[1]:.1f}"
    )


def share_of_a_core() -> float:
    """How much of 0.3 s this process gets: less than 90 % means that others are at work, and figures are high."""
    begun, cpu = time.perf_counter(), time.process_time()
    while (took_s := time.perf_counter() - begun) < 0.3:
        pass
    return (time.process_time() - cpu) / took_s
