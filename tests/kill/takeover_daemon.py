"""
``squidbot run`` with a short lease; where a test wants that, it stops itself in the middle of a send, or has a
clock that is ahead by ``SHIFT_VARIABLE`` seconds.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from agent_core.state_folder import StateUnreachable
from gateway import cli
from gateway.app import Overrides, daemon
from gateway.store.lease import LeaseTimes
from tests.kill.late_daemon import SHIFT_VARIABLE, ShiftedClock

FREEZE = "SQUIDBOT_TEST_FREEZE"
"""A file: while it is there, the next room key that is given away stops the process; then it says what came of it."""
UNFENCED = "SQUIDBOT_TEST_UNFENCED"
"""The control: what is written then needs neither the lease nor the newest generation."""
KEEPS_KEYS = "SQUIDBOT_TEST_KEEPS_KEYS"
"""The control: changes of keys are in the file of this machine only."""
LEASE_VARIABLE = "SQUIDBOT_TEST_LEASE_S"
"""Seconds, or `DEFAULT`; a machine on which much else runs needs a longer one."""
DEFAULT = "default"
WAITS = "SQUIDBOT_TEST_WAITS"
"""The control: the event loop waits for the database as long as that takes."""


def _times(told: str) -> LeaseTimes:
    if told == DEFAULT:
        return LeaseTimes()
    ttl_s = float(told)
    return LeaseTimes(
        ttl_s=ttl_s,
        renewed_s=ttl_s / 8,
        retried_s=ttl_s / 16,
        lost_s=ttl_s * 0.625,
        ended_s=ttl_s * 0.8125,
    )


LEASE = _times(os.environ.get(LEASE_VARIABLE, "8"))


def _gives_a_key() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "wrap_key":
            return True
        frame = frame.f_back
    return False


def stop_in_the_middle(trigger: Path) -> None:
    from gateway.store.postgres.account_documents import DatabaseFolder

    save = DatabaseFolder.save

    def stopping(self, file, generation, changed, *, whole):
        if not trigger.exists() or not _gives_a_key():
            save(self, file, generation, changed, whole=whole)
            return
        trigger.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
        said = trigger.with_suffix(".said")
        try:
            if os.environ.get(UNFENCED):
                self._state._reach._needs = None
                generation = self.generation(file)
            save(self, file, generation, changed, whole=whole)
        except StateUnreachable as error:
            said.write_text(f"refused: {error}")
            raise
        said.write_text("written")

    DatabaseFolder.save = stopping


def keep_keys() -> None:
    from gateway.store.postgres.account_documents import DatabaseFolder

    save = DatabaseFolder.save

    def saving(self, file, generation, changed, *, whole):
        if whole:
            save(self, file, generation, changed, whole=whole)

    DatabaseFolder.save = saving


def main(**overrides: Any) -> None:
    """The command line, with that in the daemon."""
    if FREEZE in os.environ:
        stop_in_the_middle(Path(os.environ[FREEZE]))
    if KEEPS_KEYS in os.environ:
        keep_keys()
    if WAITS in os.environ:
        from gateway.store.postgres import bounded_wait

        bounded_wait.on_event_loop = lambda: False
    clock = ShiftedClock(float(os.environ.get(SHIFT_VARIABLE, "0")))
    daemon.run_daemon = partial(daemon.run_daemon, overrides=Overrides(lease=LEASE, clock=clock, **overrides))
    cli.main()


if __name__ == "__main__":
    main()
