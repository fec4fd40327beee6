"""The process that forks those that die: imports are paid for once, and a life costs a fork."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.kill.tally import TALLY

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

REPOSITORY = Path(__file__).parents[2]


class Nursery:
    """
    Has lives made by a module that reads what a life is like from a line, and answers with how it has ended.

    A test that is broken off in the middle of a life takes the process with it. Otherwise the next test would
    read the answer of that life as its own, and so would all that follow.
    """

    def __init__(self, module: str = "tests.kill.gateway_child", tally: str = "") -> None:
        self._module, self._tally = module, tally
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start its process, if there is none. The process ends with the thread that calls this (PR_SET_PDEATHSIG)."""
        self._process = self._process or self._started()

    def live(self, life: DataclassInstance) -> int:
        """One life; returns how it ended (negative: by a signal)."""
        self.begin()
        process = self._process
        assert process is not None
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(asdict(life)) + "\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
        except BaseException:
            self.close()
            raise
        if self._tally:
            TALLY[self._tally] += code == -signal.SIGKILL
        return code

    def _started(self) -> subprocess.Popen[str]:
        known = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy"), *filter(None, [known])])
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [sys.executable, "-m", self._module],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": path},
            **pipes,
        )

    def close(self) -> None:
        """End it, and what it has forked with it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
