"""
The one way out of a network of its own: a listening socket in there, which the daemon serves from outside.

A socket stays in the network that it was made in, whoever holds it. So the first program in the sandbox makes
one on the loopback interface, hands it out by a descriptor that it was given, and becomes the command; there
is no other process in between, and nothing else leads out. A runner that is in the network of its own itself
makes the listener, see `agent_core.children.confined_child`.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence

import anyio

HANDLE = 61
"""The descriptor by which the listener goes out."""
PORT = 3128
PROXY = f"http://127.0.0.1:{PORT}"
"""Where a program in the sandbox finds it."""
Serve = Callable[[socket.socket], Awaitable[None]]
"""Serves a listener until it is cancelled."""

_CODE = f"""
import _signal, _socket, posix, sys
made = _socket.socket(2, 1)
made.bind(("127.0.0.1", {PORT}))
made.listen(64)
out = _socket.socket(fileno={HANDLE})
out.sendmsg([b"x"], [(1, 1, made.fileno().to_bytes(4, sys.byteorder))])
out.close()
made.close()
for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
    _signal.signal(number, _signal.SIG_DFL)
posix.execv(sys.argv[1], sys.argv[1:])
"""


def listening(python: str, words: Sequence[str]) -> list[str]:
    """The words that make the listener and become ``words``, whose first one is a whole path."""
    return [python, "-I", "-S", "-c", _CODE, *words]


async def serve_listener(given: socket.socket, serve: Serve) -> None:
    """Serve the received loopback listener until cancelled or the sandbox ends without one."""
    await anyio.wait_readable(given)
    try:
        _, handles, _, _ = socket.recv_fds(given, 1, 1)
    except OSError:
        return
    for handle in handles[:1]:
        await serve_handle(handle, serve)


async def serve_handle(handle: int, serve: Serve) -> None:
    """Serve what came by this descriptor, which is closed in the end, if it listens on loopback."""
    with socket.socket(fileno=handle) as listener:
        listener.setblocking(False)
        kind = listener.family, listener.type
        if kind != (socket.AF_INET, socket.SOCK_STREAM) or listener.getsockname()[0] != "127.0.0.1":
            return
        if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            await serve(listener)
