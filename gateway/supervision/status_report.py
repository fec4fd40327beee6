"""Collects the status of a running gateway: its channels, its queue, what runs, its models, its size."""

from __future__ import annotations

import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_core.ports import Clock
from gateway.store.lease import LeaseKeeper, machine_facts
from gateway.store.stores import Queue
from gateway.supervision.supervisor import Supervisor
from gateway.supervision.turn_watchdog import TurnWatchdog
from gateway.system.version import version, version_of
from gateway.turns.dispatcher import SessionDispatcher


@dataclass(eq=False, kw_only=True)
class StatusReport:
    """
    Reads the parts of a gateway that report a state, since the start of the process.

    ``sections`` returns what the parts say that know nothing of channels and turns.
    """

    store: Queue
    dispatcher: SessionDispatcher
    supervisor: Supervisor
    watchdog: TurnWatchdog
    clock: Clock
    sections: Callable[[], Awaitable[Mapping[str, Any]]]
    lease: LeaseKeeper | None = None

    def __post_init__(self) -> None:
        self._started_at = self.clock.now()

    async def read(self) -> dict[str, Any]:
        """Return states, counts and ages as JSON, no texts or people. Raises StoreUnavailable."""
        stats = await self.store.maintenance.stats()
        process: dict[str, Any] = {
            "version": version(),
            "pid": os.getpid(),
            "started_at": self._started_at.isoformat(),
            "uptime_s": round((self.clock.now() - self._started_at).total_seconds(), 1),
            "memory_mb": _resident_mb(),
        }
        if self.lease is not None:
            process |= await machine_facts(self.store.maintenance, here=self.lease.holder)
            if not self.lease.is_held:  # what the parts know is not read before they begin
                return {**process, "standing_by": True, "channels": {}, "work": stats.as_work()}
        return {
            **process,
            "ready": self.supervisor.all_up,
            "channels": {status.name: status.as_dict() for status in self.supervisor.statuses()},
            "work": {**stats.as_work(), "turns_running": len(self.dispatcher.running())},
            **await self.sections(),
            "stuck_because": self.watchdog.reason(),
            "blocked": self.watchdog.is_blocked,
            "python": platform.python_version(),
            "versions": {
                "python": platform.python_version(),
                "nio": version_of("matrix-nio"),
                "aioimaplib": version_of("aioimaplib"),
                "litellm": version_of("litellm"),
            },
        }

    def one_line(self) -> str:
        """The channels, and how many turns are in flight, in one line, for the service manager."""
        if self.lease is not None and not self.lease.is_held:
            return "standing by"
        states = ", ".join(f"{status.name} {status.state.value}" for status in self.supervisor.statuses())
        running = len(self.dispatcher.running())
        return f"{states}; {running} in hand" if running else states


def _resident_mb() -> float | None:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
