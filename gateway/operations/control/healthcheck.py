"""
``python -m gateway.operations.control.healthcheck [--ready]``: asks whether the daemon of this home folder is
alive, for a container's HEALTHCHECK. It asks the control socket, so it needs no port, loads nothing but the
standard library, and costs a tenth of a second each time. Alive means that the event loop turns and turns are
worked on; a channel whose server is away does not make a daemon unhealthy, because a restart would not bring
the server back. ``--ready`` asks for that as well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gateway.operations.control.control_client import exchange
from gateway.system.home import Home, find_home

_LIMIT_S = 8.0
_OK = 200


def main(arguments: Sequence[str]) -> int:
    """Ask, print one line, and return the exit code: 0 alive, 1 not, 2 wrong usage."""
    if list(arguments) not in ([], ["--ready"]):
        sys.stderr.write("usage: python -m gateway.operations.control.healthcheck [--ready]\n")
        return 2
    path = "/readyz" if arguments else "/livez"
    try:
        status, body = exchange(Home(find_home()).control_socket, f"GET {path}", limit_s=_LIMIT_S)
    except (OSError, ValueError) as error:
        sys.stdout.write(f"no answer: {str(error) or type(error).__name__}\n")
        return 1
    if status == _OK:
        sys.stdout.write("ready\n" if arguments else "alive\n")
        return 0
    waiting = body.get("waiting") or {}
    why = "; ".join(f"{name}: {one.get('detail') or one.get('state')}" for name, one in waiting.items())
    sys.stdout.write(f"not {'ready' if arguments else 'alive'}: {why or body.get('detail', '')}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
