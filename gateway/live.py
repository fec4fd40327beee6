"""What only a running gateway knows of itself: its channels, what runs, its models, its size."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.app import Built

__all__ = ["live", "one_line"]


def live(built: Built, started_at: datetime) -> dict[str, Any]:
    """States, counts and ages as JSON can hold them; no texts, no people."""
    parts = built.gateway.parts
    return {
        "pid": os.getpid(),
        "started_at": started_at.isoformat(),
        "uptime_s": round((parts.clock.now() - started_at).total_seconds(), 1),
        "ready": parts.supervisor.all_up,
        "channels": {status.name: status.as_dict() for status in parts.supervisor.statuses()},
        "turns_running": len(parts.dispatcher.running()),
        "models": {
            name: [asdict(member) for member in pool.state()] for name, pool in built.models.pools.items()
        },
        "memory_mb": _resident_mb(),
    }


def one_line(built: Built) -> str:
    """The channels in one line, for the service manager."""
    return ", ".join(f"{status.name} {status.state.value}" for status in built.supervisor.statuses())


def _resident_mb() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
