"""
Where a process dies: named moments, and wrappers that pass one before and after every call of a port.

A moment is written ``name`` or ``name#n`` for the nth time it is passed. SIGKILL comes from the process
itself, so it is exact: nothing after the moment has happened.
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage.history_lines import stamp, to_line


def append_line(path: Path, line: str) -> None:
    """One line with one write, so that a kill never tears it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


class Striker:
    """
    Kills this process at one moment.

    Args:
        where: The moment; empty: never.
        trace: A file that gets the name of every moment that is passed.
    """

    def __init__(self, where: str = "", trace: Path | None = None) -> None:
        self.name, _, count = where.partition("#")
        self._left = int(count or 1)
        self._trace = trace
        self._seen: set[str] = set()

    def __call__(self, passed: str) -> None:
        if self._trace is not None and passed not in self._seen:
            self._seen.add(passed)
            append_line(self._trace, passed)
        if passed == self.name and self.strikes():
            self.kill()

    def strikes(self) -> bool:
        """Count one passing of the moment; whether it is the one."""
        self._left -= 1
        return self._left == 0

    @staticmethod
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class StrikingPort:
    """Every async method of ``inner``, with the moments ``<prefix>.<method>.before`` and ``.after``."""

    def __init__(self, inner: Any, point: Callable[[str], None], prefix: str) -> None:
        self._inner = inner
        self._point = point
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(method):
            return method
        before, after = f"{self._prefix}.{name}.before", f"{self._prefix}.{name}.after"

        async def struck(*arguments: Any, **named: Any) -> Any:
            self._point(before)
            result = await method(*arguments, **named)
            self._point(after)
            return result

        return struck


class StrikingQueue:
    """The stores of a queue, each a `StrikingPort` with its own name."""

    def __init__(self, inner: Any, point: Callable[[str], None]) -> None:
        self._inner = StrikingPort(inner, point, "queue")
        self._ports = {
            name: StrikingPort(port, point, name)
            for name, port in vars(inner).items()
            if not name.startswith("_")
        }

    def __getattr__(self, name: str) -> Any:
        return self._ports.get(name) or getattr(self._inner, name)


class StrikingMemory(StrikingPort):
    """The memory, with one moment more: ``jsonl.torn``, in the middle of a line of a history."""

    def __init__(self, inner: Any, striker: Striker) -> None:
        super().__init__(inner, striker, "memory")
        self._striker = striker

    async def append_message(self, session_id: str, *messages: Message, durable: bool = False) -> None:
        if self._striker.name == "jsonl.torn" and messages and self._striker.strikes():
            path = self._inner.layout.history(SessionKey.parse(session_id))
            path.parent.mkdir(exist_ok=True)
            whole = b"".join(to_line(stamp(each, each.timestamp), 0) for each in messages)
            with path.open("ab") as file:
                file.write(whole[: len(whole) * 2 // 3])
            self._striker.kill()
        await self.__getattr__("append_message")(session_id, *messages, durable=durable)
