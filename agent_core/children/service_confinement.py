"""
Gives up the rights of a child process before it loads third-party code: by Landlock and seccomp, where the
kernel has them, without a library. After `confine` the process reads its interpreter, its libraries and what
name resolution and TLS need, and nothing else; it writes nothing, connects to no Unix socket (the daemon's
control socket is one) and traces nobody. What it keeps is the network. `die_with_parent` makes the kernel end
it with the **thread** that started it, so a daemon starts it from its main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR, _WRITE_FILE = 1, 4, 8, 2
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1}
_SCOPED_BY_ABI = 6
_SCOPES = 3
"""Abstract sockets and signals stay inside."""
_NO_NEW_PRIVS, _SET_SECCOMP, _SET_PDEATHSIG = 38, 22, 1
_SYSCALLS = {
    # audit architecture, socket, and what is refused: ptrace, process_vm_*, keyrings, bpf, io_uring
    "x86_64": (0xC000003E, 41, (101, 310, 311, 248, 249, 250, 321, 425, 426, 427)),
    "aarch64": (0xC00000B7, 198, (117, 270, 271, 217, 218, 219, 280, 425, 426, 427)),
}
_X32_CALLS = 0x40000000
_SYSTEM_PATHS = (
    *("/usr", "/lib", "/lib64", "/bin", "/nix/store"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/crypto-policies"),
    *("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
    *("/etc/services", "/etc/protocols", "/etc/localtime", "/etc/ld.so.cache", "/etc/mime.types"),
    *("/etc/passwd", "/etc/group", "/etc/os-release", "/dev/urandom", "/dev/random", "/dev/zero"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system/cpu"),
)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Make the kernel end this process when the thread that started it ends."""
    _libc().prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


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
    """
    libc = _libc()
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return {"landlock": 0, "seccomp": 0}
    return {
        "landlock": _landlock(libc, [*_SYSTEM_PATHS, *readable]),
        "seccomp": _seccomp(libc, network=network),
    }


def _landlock(libc: ctypes.CDLL, readable: Iterable[str]) -> int:
    abi = int(libc.syscall(_CREATE_RULESET, None, 0, 1))
    if abi < 1:
        return 0
    handled = _RIGHTS_BY_ABI[min(abi, 3)]
    attributes = struct.pack("=QQQ", handled, 0, _SCOPES if abi >= _SCOPED_BY_ABI else 0)
    size = 24 if abi >= _SCOPED_BY_ABI else 8
    ruleset = int(libc.syscall(_CREATE_RULESET, attributes, size, 0))
    if ruleset < 0:
        return 0
    try:
        for path in dict.fromkeys(os.path.realpath(one) for one in readable):
            _allow(libc, ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        _allow(libc, ruleset, "/dev/null", _READ_FILE | _WRITE_FILE)
        return abi if libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0 else 0
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not Path(path).is_dir():
            rights &= _ON_FILES
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, opened), 0)
    finally:
        os.close(opened)


def _seccomp(libc: ctypes.CDLL, *, network: bool) -> int:
    known = _SYSCALLS.get(platform.machine())
    if known is None or sys.maxsize < 2**32:
        return 0
    architecture, socket, refused = known
    allow, deny = 0x7FFF0000, 0x00050000 | 1  # EPERM
    load, equal, above, give = 0x20, 0x15, 0x35, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, deny), (load, 0, 0, 0)]
    program += [(above, 0, 1, _X32_CALLS), (give, 0, 0, deny)]
    for number in refused:
        program += [(equal, 0, 1, number), (give, 0, 0, deny)]
    if not network:
        program += [(equal, 0, 1, socket), (give, 0, 0, deny)]
    # socket(AF_UNIX, …): the first argument stands at offset 16
    program += [
        (equal, 0, 3, socket),
        (load, 0, 0, 16),
        (equal, 0, 1, 1),
        (give, 0, 0, deny),
        (give, 0, 0, allow),
    ]
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    whole = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    return int(libc.prctl(_SET_SECCOMP, 2, whole, 0, 0) == 0)
