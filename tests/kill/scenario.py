"""A world around a gateway that dies: people who talk, the gateway's lives, and what is left at the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from agent_core.messages import SessionKey
from agent_core.models import MemoryScope, ScopeKind
from agent_core.storage.jsonl import JsonlMemory
from channels.base import Redelivery
from channels.loopback import FileLoopbackServer
from gateway.clock import SystemClock
from gateway.work.sqlite import SqliteWorkStore
from gateway.work.states import OutboxState
from tests.kill.gateway_child import GROUPS, Run
from tests.kill.oracle import Evidence, Saying

__all__ = ["Nursery", "World"]

REPOSITORY = Path(__file__).parents[2]
_LIFE_LIMIT_S = 60.0


class Nursery:
    """The process that forks gateways."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "deploy")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kill.gateway_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": path},
        )

    def live(self, run: Run, *, kill_after_s: float | None = None) -> int:
        """One life of a gateway; returns how it ended (negative: by a signal)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(run)) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        with _Ending(pid, _LIFE_LIMIT_S if kill_after_s is None else kill_after_s):
            return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()  # what it forked dies with it
        self._process.wait()


class _Ending:
    """Kills a process after a while, unless it is done before."""

    def __init__(self, pid: int, after_s: float) -> None:
        self._timer = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                "import os,select,sys;"
                "select.select([0],[],[],float(sys.argv[2])) == ([],[],[]) and os.kill(int(sys.argv[1]),9)",
                str(pid),
                str(after_s),
            ],
            stdin=subprocess.PIPE,
        )
