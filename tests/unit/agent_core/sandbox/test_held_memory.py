"""Memory that a command holds and has not mapped: it counts, and more than the limit is the end."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest

from agent_core.sandbox.process import landlock_version

from .conftest import proved, sandbox_in
from .test_limits import SMALL, python

pytestmark = [
    pytest.mark.skipif(
        landlock_version() < 1 or platform.machine() not in ("x86_64", "aarch64"),
        reason="this kernel has no Landlock, or the machine is not known",
    ),
]
UNMAPPED = """
import mmap, time
held = []
for _ in range({pieces}):
    held.append(mmap.mmap(-1, 10 << 20))
    held[-1][:] = bytes(10 << 20)
    held[-1].madvise(mmap.MADV_DONTNEED)
time.sleep({seconds})
print("held")
"""
HANDED_ON = """
import mmap, os, time
for _ in range({pieces}):
    piece = mmap.mmap(-1, 10 << 20)
    piece[:] = bytes(10 << 20)
    if os.fork() == 0:  # it has the mapping, and no page of it
        time.sleep({seconds})
        os._exit(0)
    piece.close()
time.sleep({seconds})
print("held")
"""
SOCKETS = """
import socket, time
held = []
for _ in range({pieces} * 20):
    pair = socket.socketpair()
    held.append(pair)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    pair[0].setblocking(False)
    try:
        while True: pair[0].send(bytes(32768))
    except BlockingIOError: pass
time.sleep({seconds})
print("held")
"""

WATCHES = """
import os, select, time
watching = [select.epoll() for _ in range({pieces} * 12)]
watched = [os.eventfd(0) for _ in range(200)]
for one in watching:
    for each in watched: one.register(each)
time.sleep({seconds})
print("held")
"""


@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
@pytest.mark.parametrize(
    "way", [UNMAPPED, HANDED_ON, SOCKETS, WATCHES], ids=["unmapped", "handed on", "in sockets", "watches"]
)
async def test_what_is_not_mapped_counts(home, way, backend):
    """T8. The control holds less of it, and ends as it wants."""
    limits = replace(SMALL, memory_bytes=150_000_000)
    sandbox = await proved(sandbox_in(home, backend=backend, limits=limits))
    outcome = await sandbox.run(python(way.format(pieces=20, seconds=60)), seconds=60)
    assert outcome.limit == "memory", outcome
    control = await sandbox.run(python(way.format(pieces=4, seconds=1)), seconds=60)
    assert (control.status, control.head) == (0, b"held\n"), control


async def test_a_socket_is_no_larger_than_it_counts(home):
    """It seems to be, for programs that insist."""
    sandbox = await proved(sandbox_in(home))
    code = """
    import socket
    one, other = socket.socketpair()
    before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    print(one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before)
    """
    assert (await sandbox.run(python(code), seconds=20)).head == b"True\n"
