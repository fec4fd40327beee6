"""
Gives up the rights of a child process before it loads third-party code, by the confinement that commands have
(`confined_child.confine`). After `confine` the process reads its interpreter, its libraries and what name
resolution and TLS need, and nothing else; it writes nothing, connects to no Unix socket (the daemon's control
socket is one) and traces nobody. What it may keep is the network. `die_with_parent` makes the kernel end it
with the **thread** that started it, so a daemon starts it from its main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from agent_core.children import confined_child
from agent_core.children.order import landlock_version
from agent_core.children.rights import rights_of_version, rules_for
from agent_core.children.seccomp import ARCHITECTURES, filter_program

_SET_PDEATHSIG = 1
_SYSTEM_PATHS = (
    *("/etc/ssl", "/etc/pki", "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/gai.conf"),
    *("/dev/zero", "/proc/self", "/proc/stat"),
)
"""Further than every program may read."""


def die_with_parent() -> None:
    """Make the kernel end this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def limit_resources(*, memory_bytes: int) -> None:
    """Write no core file, limit the memory, and be the first to end when the machine has none left."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    for kind, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_DATA, memory_bytes)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (limit, limit))


def library_paths(*packages: str) -> list[str]:
    """The folders of the interpreter, its libraries, and these packages."""
    import importlib.util  # noqa: PLC0415 - for this moment only

    found = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent)]
    found += [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            found.append(str(Path(spec.origin).parent))
    variables = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "GOOGLE_APPLICATION_CREDENTIALS")
    return found + [os.environ[name] for name in variables if os.environ.get(name)]


def confine(readable: Iterable[str], *, network: bool = True) -> dict[str, int]:
    """
    Give up everything but reading ``readable`` and, with ``network``, connecting; cannot be undone.

    Returns what the kernel gave: ``landlock`` is its version and ``seccomp`` 1, or 0 where it has none.
    Raises OSError if it has one and refuses it.
    """
    machine, version = platform.machine(), landlock_version()
    if machine not in ARCHITECTURES or sys.maxsize < 2**32:
        return {"landlock": 0, "seccomp": 0}
    rights = rights_of_version(version)
    paths = [os.path.realpath(path) for path in (*_SYSTEM_PATHS, *readable)]
    confined_child.confine(
        {
            "machine": machine,
            "rules": rules_for(version, readable=paths, writable=()) if version else [],
            "handled": (rights.files, 0, rights.scopes),
            "handled_size": rights.size,
            "filter": filter_program(machine, version, sockets="network" if network else "none"),
        }
    )
    return {"landlock": version, "seccomp": 1}
