"""
``squidbot run`` with a defect in it: a turn that hangs, although the event loop turns and the disk works.

    python stuck_daemon.py HOME

While a file ``hang`` lies in the home folder the next turn takes it away and never comes back; no limit covers
that, as with a defect that nobody has thought of. Two seconds count as stuck here instead of many minutes.
Everything else is the daemon as it is. It is copied into a machine that has squidbot and no tests, so it imports nothing
of them.
"""

from __future__ import annotations

import sys
from copy import copy
from pathlib import Path
from typing import Any

import anyio

from agent_core.messages import SessionKey
from gateway.app import Overrides
from gateway.app.daemon import run_daemon
from gateway.settings import load_settings
from gateway.store.stores import Queue, TurnStore
from gateway.system.home import open_home

ALLOWED_S = 2.0


class _Hanging:
    def __init__(self, store: TurnStore, sign: Path) -> None:
        self._store = store
        self._sign = sign

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, session: SessionKey, **named: Any) -> Any:
        """Claim a turn, or hang."""
        if self._sign.exists():
            self._sign.unlink()
            await anyio.sleep_forever()
        return await self._store.claim(session, **named)


def main() -> int:
    """Run on the home folder that is named."""
    root = Path(sys.argv[1])

    def wrapped(queue: Queue) -> Queue:
        changed: Any = copy(queue)
        changed.turns = _Hanging(queue.turns, root / "hang")
        return changed  # type: ignore[no-any-return]

    overrides = Overrides(wrap_queue=wrapped, turn_allowed_s=ALLOWED_S)
    settings = load_settings(root / "squidbot.yaml", missing_ok=True)
    return run_daemon(settings, open_home(root), overrides)


if __name__ == "__main__":
    sys.exit(main())
