"""A server process under a keeper: start, watch, freeze, kill.

Nothing here knows which server it is. Every server writes to one log file, whose end is part of every
error. See `keeper.py` for why there is a process in between.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from devservers.errors import StartFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Where progress reports go, one sentence at a time.
Say: TypeAlias = Callable[[str], None]

KEEPER = Path(__file__).with_name("keeper.py")
KEEPER_LIMIT_S = 60.0
PROGRESS_EVERY_S = 5.0
#: Variables that would lead a tool's Python into somebody else's packages.
UNWANTED = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONWARNINGS",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give our environment variables without those that redirect Python."""
    kept = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    return kept | dict(extra or {})


def silent(_: str) -> None:
    """Swallow a progress report: the default for `say`."""


class Child:
    """One running server: a process group that dies with us at the latest."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        remove_if_orphaned: Path | None = None,
    ) -> None:
        """Start the command; its output goes to the end of `log`."""
        options = ["--remove", str(remove_if_orphaned)] if remove_if_orphaned else []
        self.log = log
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), *options, "--", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=cwd,
                env=clean_environment(),
                start_new_session=True,
            )
        self.pid = self._read_pid()

    @property
    def alive(self) -> bool:
        """Whether the server process still runs (a frozen one does)."""
        return self._keeper.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group, if it is still there."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the whole group at once and wait until it is gone."""
        self.signal(signal.SIGKILL)
        try:
            self._keeper.wait(20)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._close()

    def log_tail(self, lines: int = 30) -> str:
        """Quote the end of the log, for an error message."""
        return f"The end of {self.log}:\n{tail(self.log, lines)}"

    def _read_pid(self) -> int:
        assert self._keeper.stdout is not None
        ready, _, _ = select.select([self._keeper.stdout], [], [], KEEPER_LIMIT_S)
        line = self._keeper.stdout.readline() if ready else b""
        if line.strip():
            return int(line)
        self._keeper.kill()
        self._keeper.wait()
        self._close()
        raise StartFailed(f"could not start a server process. {self.log_tail()}")

    def _close(self) -> None:
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()


def tail(path: Path, lines: int = 30) -> str:
    """Give the last lines of a text file, or nothing when it cannot be read."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def wait_until_ready(
    check: Callable[[], bool],
    *,
    name: str,
    child: Child,
    limit_s: float = 60.0,
    say: Say | None = None,
) -> None:
    """Wait until `check` holds; raise with the log's end when the server dies or takes too long."""
    started = time.monotonic()
    reported = started
    pause = 0.02
    while not check():
        now = time.monotonic()
        _raise_if_dead(child, name)
        if now - started > limit_s:
            raise StartFailed(f"{name} was not ready after {limit_s:.0f} s. {child.log_tail()}")
        if say is not None and now - reported > PROGRESS_EVERY_S:
            reported = now
            say(f"{name} is starting ({now - started:.0f} s)")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)
    _raise_if_dead(child, name)  # else somebody else's server has answered


def _raise_if_dead(child: Child, name: str) -> None:
    if not child.alive:
        raise StartFailed(f"{name} ended while starting. {child.log_tail()}")
