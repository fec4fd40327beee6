"""
The loopback server in a folder, for tests that kill the bot's process and ask another one what happened.

Three append-only files of JSON lines, each line written at once, so that SIGKILL at any moment leaves them
whole: ``said.jsonl`` (by the test), ``acknowledged.jsonl`` and ``tries.jsonl`` (by the bot's process; every
delivery that reached the server, also repeated ones). What the people see is worked out from the tries by
the same rule as in memory. Both processes open their own `FileLoopbackServer` on the same folder.
The knobs are each process's own. New lines are noticed by looking every few milliseconds: fine for tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio

from channels.base import Redelivery
from tests.doubles.loopback.server import Delivered, LoopbackServer, Said

_CHECK_EVERY_S = 0.01


class _Lines:
    """An append-only file of lines, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def append(self, line: str) -> None:
        """Add one line with a single write."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)

    def new(self) -> list[bytes]:
        """The lines since the last call; an unfinished one waits for the next call."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()


class FileLoopbackServer(LoopbackServer):
    """
    A `LoopbackServer` whose state is a folder that several processes share.

    One process speaks for the people, one runs the bot. ``echo`` and `rewind` are not for this one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        redelivery: Redelivery = Redelivery.SAME_KEY,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(redelivery=redelivery, now=now)
        folder.mkdir(parents=True, exist_ok=True)
        self._said_lines = _Lines(folder / "said.jsonl")
        self._acknowledged_lines = _Lines(folder / "acknowledged.jsonl")
        self._try_lines = _Lines(folder / "tries.jsonl")

    def refresh(self) -> None:
        """Read what the other process has written: ``said``, ``tries``, ``delivered``, ``acknowledged``."""
        self._refresh()

    def _refresh(self) -> None:
        self.said.extend(Said.model_validate_json(line) for line in self._said_lines.new())
        for line in self._acknowledged_lines.new():
            self.acknowledged = max(self.acknowledged, int(json.loads(line)))
        for line in self._try_lines.new():
            self._show(Delivered.model_validate_json(line))

    async def _change(self) -> None:
        await anyio.sleep(_CHECK_EVERY_S)

    def _keep_said(self, said: Said) -> None:
        self._said_lines.append(said.model_dump_json())
        self._refresh()

    def _keep_acknowledged(self, sequence: int) -> None:
        self._acknowledged_lines.append(json.dumps(sequence))
        self._refresh()

    def _keep_try(self, message: Delivered) -> str:
        self._try_lines.append(message.model_dump_json())
        self._refresh()
        return self._first_by_key[message.key].provider_id
