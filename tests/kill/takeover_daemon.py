"""``squidbot run`` with a short lease; it stops itself in the middle of a send, where a test wants that."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from agent_core.state_folder import StateAway
from gateway.app import Overrides
from gateway.app.daemon import run_daemon
from gateway.errors import GatewayError
from gateway.queue.lease import LeaseTimes
from gateway.settings import load_settings
from gateway.system.home import Home, open_home

__all__ = ["FREEZE", "LEASE", "UNFENCED"]

FREEZE = "SQUIDBOT_TEST_FREEZE"
"""A file: while it is there, the next room key that is given away stops the process; then it says what came of it."""
UNFENCED = "SQUIDBOT_TEST_UNFENCED"
"""The control: what is written then needs neither the lease nor the newest generation."""
LEASE = LeaseTimes(ttl_s=8.0, renewed_s=1.0, retried_s=0.5, lost_s=5.0, ended_s=6.5)


def _gives_a_key() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "wrapped":
            return True
        frame = frame.f_back
    return False


def stop_in_the_middle(trigger: Path) -> None:
    from gateway.queue.postgres.account_state import DatabaseFolder

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
        except StateAway as error:
            said.write_text(f"refused: {error}")
            raise
        said.write_text("written")

    DatabaseFolder.save = stopping


def main() -> int:
    """Run on the home folder that is named last."""
    root = Path(sys.argv[-1])
    if FREEZE in os.environ:
        stop_in_the_middle(Path(os.environ[FREEZE]))
    try:
        return run_daemon(load_settings(Home(root).config_file), open_home(root), Overrides(lease=LEASE))
    except GatewayError as error:
        sys.stderr.write(f"squidbot: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
