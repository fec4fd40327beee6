"""One look at a running gateway: its channels, its queue, what runs, its models, its size."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.system.version import version, version_of

if TYPE_CHECKING:
    from gateway.supervision.gateway import Built

__all__ = ["one_line", "status_report"]


async def status_report(built: Built, started_at: datetime) -> dict[str, Any]:
    """
    States, counts and ages as JSON can hold them; no texts, no people.

    Raises:
        StoreUnavailable: The queue cannot be read.
    """
    parts = built.gateway.parts
    stats = await built.store.stats()
    return {
        "version": version(),
        "pid": os.getpid(),
        "started_at": started_at.isoformat(),
        "uptime_s": round((parts.clock.now() - started_at).total_seconds(), 1),
        "ready": parts.supervisor.all_up,
        "channels": {status.name: status.as_dict() for status in parts.supervisor.statuses()},
        "work": {**stats.as_work(), "turns_running": len(parts.dispatcher.running())},
        "models": {
            name: [asdict(member) for member in pool.state()] for name, pool in built.models.pools.items()
        },
        **built.upkeep.state(),
        **await built.unasked.state(),
        "budget": await built.budget.state(),
        "sessions": len(await built.memory.sessions()),
        "stuck_because": built.pulse.reason(),
        "python": platform.python_version(),
        "versions": {
            "python": platform.python_version(),
            "nio": version_of("matrix-nio"),
            "aioimaplib": version_of("aioimaplib"),
            "litellm": version_of("litellm"),
        },
        "memory_mb": _resident_mb(),
    }


def one_line(built: Built) -> str:
    """The channels, and how many turns are in hand, in one line, for the service manager."""
    states = ", ".join(f"{status.name} {status.state.value}" for status in built.supervisor.statuses())
    running = len(built.gateway.parts.dispatcher.running())
    return f"{states}; {running} in hand" if running else states


def _resident_mb() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
