"""One look at a running gateway: what `/status`, `squidbot status` and the service manager are told."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gateway.version import version_of

if TYPE_CHECKING:
    from gateway.app import Built

__all__ = ["one_line", "status_report"]


async def status_report(built: Built, started_at: datetime) -> dict[str, Any]:
    """
    The state of everything, as JSON can hold it: counts, states and ages, no text that people wrote.

    Raises:
        StoreUnavailable: The queue cannot be read.
    """
    clock = built.gateway.parts.clock
    stats = await built.store.stats()
    return {
        "version": version_of("squidbot-gateway"),
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "started_at": started_at.isoformat(),
        "uptime_s": round((clock.now() - started_at).total_seconds(), 1),
        "ready": built.supervisor.all_up,
        "channels": {status.name: status.as_dict() for status in built.supervisor.statuses()},
        "work": {
            "inbox": dict(stats.inbox),
            "outbox": dict(stats.outbox),
            "oldest_unanswered_s": stats.oldest_unanswered_s,
            "oldest_unsent_s": stats.oldest_unsent_s,
            "running": [str(key) for key in built.gateway.parts.dispatcher.running()],
            "history_lines_to_file": stats.journal_lines,
        },
        "models": {name: pool.state() for name, pool in built.models.pools.items()},
        "memory_mb": _resident_mb(),
    }


def one_line(built: Built) -> str:
    """The channels in one line, for the service manager's status."""
    return ", ".join(f"{status.name} {status.state.value}" for status in built.supervisor.statuses())


def _resident_mb() -> float | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
