"""When a history is on the disk, and when it only looks so."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agent_core.errors import StorageUnavailable
from agent_core.messages import SessionKey
from agent_core.models import Message
from agent_core.storage import JsonlMemory
from tests.clock import ManualClock

KEY = SessionKey("matrix", "!room:hs.test")
S = str(KEY)


def said(number: int) -> Message:
    return Message(role="user", content=f"m{number}", id=str(number))


class Disk:
    """
    What would be left after a power cut, as Linux does it.

    A sync that fails drops what it could not write: the next one has nothing more to do for those bytes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.held = b""
        self.fails = False
        self.syncs = 0
        self._lost_from: int | None = None

    def sync(self, handle: int) -> None:
        self.syncs += 1
        content = self._path.read_bytes()
        if self.fails:
            # What was written since is clean now, though it is nowhere. The date tells of later writes.
            self._lost_from = len(self.held)
            os.utime(self._path, ns=(1, 1))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._path.stat().st_mtime_ns == 1:
            content = content[: self._lost_from]
        self.held = content


def memory_on(tmp_path: Path) -> tuple[JsonlMemory, Disk]:
    disk = Disk(tmp_path / "sessions" / f"{KEY.file_name}.jsonl")
    return JsonlMemory(tmp_path, clock=ManualClock(), sync=disk.sync), disk


async def test_a_durable_append_is_one_visit_with_everything_before_it(tmp_path: Path) -> None:
    """One sync makes these lines and the earlier ones durable; without it nothing is promised, nor paid."""
    memory, disk = memory_on(tmp_path)
    await memory.append_message(S, said(0))
    assert disk.syncs == 0
    await memory.append_message(S, said(1), said(2), durable=True)
    assert disk.syncs == 1
    assert disk.held == memory.layout.history(KEY).read_bytes()
    assert disk.held.count(b"\n") == 3
    await memory.append_message(S, said(2), durable=True)  # known already, and promised all the same
    await memory.append_message(S, durable=True)
    assert disk.syncs == 3


async def test_a_sync_that_failed_is_not_made_up_for_by_one_that_has_nothing_to_do(tmp_path: Path) -> None:
    """After an EIO the same bytes are written again, in place, before anybody is told that they are there."""
    memory, disk = memory_on(tmp_path)
    await memory.append_message(S, said(0), durable=True)
    disk.fails = True
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await memory.append_message(S, said(1), durable=True)
    before = memory.layout.history(KEY).read_bytes()
    disk.fails = False
    await memory.append_message(S, said(1), durable=True)
    assert memory.layout.history(KEY).read_bytes() == before == disk.held
    assert before.count(b'"m1"') == 1


def test_the_disk_of_this_test_forgets(tmp_path: Path) -> None:
    """Negative control: who only syncs again is told that all is well, and has lost the line."""
    disk = Disk(tmp_path / "file")
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(handle, b"line\n")
    disk.fails = True
    with pytest.raises(OSError):
        disk.sync(handle)
    disk.fails = False
    disk.sync(handle)
    os.close(handle)
    assert disk.held == b""
