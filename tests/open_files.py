"""Which files this process has open, to see what was not let go of."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def opened(path: Path) -> list[str]:
    """The open descriptors that stand for ``path`` or, if it is a folder, for something in it."""
    found = []
    for handle in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{handle}")
            if Path(target).is_relative_to(path):
                found.append(target)
    return found
