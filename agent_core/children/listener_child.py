"""
The runner's side of `agent_core.children.listener` where the runner is in a network of its own, as in a unit:
it makes the listener there and gives it to the daemon.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
else:
    import posix as os  # see agent_core.children.confined_child

_MOST_WAITING = 64


def give_listener(port: int, daemon_network: str) -> None:
    """Listen on loopback and pass the socket through stdin. Raises OSError, RuntimeError in our network."""
    if os.readlink("/proc/self/ns/net") == daemon_network:
        raise RuntimeError("it has no network of its own")
    import _socket  # noqa: PLC0415 - takes longer than all else, and is rarely wanted

    made = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    made.bind(("127.0.0.1", port))
    made.listen(_MOST_WAITING)
    out = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, os.dup(0))
    handle = made.fileno().to_bytes(4, "little")
    out.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handle)])
    out.close()
    made.close()
