"""
What a program in the sandbox gets: limits, folders, environment. Pure. The system is there for reading,
without what is below /etc beside a few files, without /proc but for four files of the machine, and without
/dev but for what gives nothing away. There is no /tmp: a program has a folder of its own, which is removed
after it.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

SYSTEM: Sequence[str] = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"),
    *("/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs"),
    *("/etc/ca-certificates", "/etc/crypto-policies", "/etc/ld.so.cache", "/etc/ld.so.conf"),
    *("/etc/ld.so.conf.d", "/etc/localtime", "/etc/timezone", "/etc/os-release", "/etc/debian_version"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols"),
    *("/etc/mime.types", "/etc/magic", "/etc/fonts", "/etc/terminfo", "/etc/inputrc", "/etc/bash.bashrc"),
    *("/etc/profile", "/etc/perl", "/etc/python3", "/etc/papersize", "/etc/locale.alias"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/filesystems", "/proc/sys/kernel/ngroups_max"),
    *("/sys/devices/system/cpu", "/dev/urandom", "/dev/random"),
)
"""What every program may read and run; what is not there is left out."""
DEVICES: Sequence[str] = ("/dev/null", "/dev/zero", "/dev/full")
"""What every program may write to as well."""
_HANDED_OVER = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_EXECUTE, _WRITE, _READ, _READ_FOLDER = 1, 2, 4, 8
_DEVICE_NODES = (1 << 6) | (1 << 11)
_IOCTL = 1 << 15
_RIGHTS = (0, 13, 14, 15, 15, 16)
"""How many rights on files Landlock knows, by version; the last one for all later ones."""
_ADDRESS_SPACE = 4
"""Programs reserve more addresses than they use; so many times the memory."""
_PENDING_SIGNALS = 1024
"""Timers count as well; the user has so many thousand in all, and the daemon is the same user."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits of one run; for memory and disk, 0 bytes means no limit."""

    seconds: float = 60.0
    still_seconds: float = 0.0
    """Of which no process has used or wanted a processor for so long is ended; 0 is no limit."""
    memory_bytes: int = 512_000_000
    processes: int = 48
    disk_bytes: int = 500_000_000
    files: int = 50_000
    head_bytes: int = 7_000
    tail_bytes: int = 7_000
    output_bytes: int = 5_000_000
    """A program that says more is ended."""
    nice: int = 19
    """How far it gives way to others, see `agent_core.children.process_tree`."""


@dataclass(frozen=True, slots=True)
class Rights:
    """The access rights that one Landlock version handles: files, TCP, and the scopes of signals."""

    files: int
    network: int
    scopes: int
    size: int
    """Bytes of the attributes that this version knows."""


def rights_of_version(version: int) -> Rights:
    """All that a version can refuse, of what there was up to version 6."""
    files = (1 << _RIGHTS[min(version, len(_RIGHTS) - 1)]) - 1
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    return Rights(files, 3 if version >= 4 else 0, 3 if version >= 6 else 0, size)


def rules_for(
    version: int, *, readable: Iterable[str], writable: Iterable[str], listed: Iterable[str] = ()
) -> list[tuple[str, int]]:
    """Paths and the rights below each; of what is below ``listed`` only the names can be read."""
    every = rights_of_version(version).files
    read = _EXECUTE | _READ | _READ_FOLDER
    write = every & ~_DEVICE_NODES & ~_IOCTL
    found = dict.fromkeys(listed, _READ_FOLDER) | dict.fromkeys((*SYSTEM, *readable), read)
    found.update(dict.fromkeys(DEVICES, _READ | _WRITE))
    found.update(dict.fromkeys(writable, write))
    return list(found.items())


def rlimits_of(limits: Ceilings) -> list[tuple[int, int]]:
    """
    The limits of each process; those of the whole tree are watched.

    That of processes depends on how many the user has, see `agent_core.children.confined_child`.
    """
    found = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(limits.seconds) + 1),
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
    ]
    if limits.memory_bytes:
        found.append((resource.RLIMIT_DATA, limits.memory_bytes))
        found.append((resource.RLIMIT_AS, limits.memory_bytes * _ADDRESS_SPACE))
    if limits.disk_bytes:
        found.append((resource.RLIMIT_FSIZE, limits.disk_bytes))
    return found


def environment_for(
    daemon: Mapping[str, str], given: Mapping[str, str], *, home: str, private: str, proxy: str = ""
) -> dict[str, str]:
    """
    Nothing of the daemon's but its language and time zone, and what is configured; the ``proxy``.

    Without the settings of git for the machine, which may hold secrets: git gives up if it may not read them.
    """
    handed = {name: daemon[name] for name in _HANDED_OVER if name in daemon}
    own = {"PATH": _PATH, "LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_CONFIG_NOSYSTEM": "1"}
    if proxy:
        own |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy)
        own |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1")
    return own | handed | {"HOME": home, "TMPDIR": private} | dict(given)


def folder_problem(path: PurePath, private: PurePath, shared: PurePath) -> str:
    """
    Return why a folder must not be opened to programs; empty if it may be.

    ``private`` is the home folder, of which programs see only ``shared``. All paths must be resolved.
    """
    if path == shared or path.is_relative_to(shared):
        return ""
    if path.is_relative_to(private):
        return f"{path} is in squidbot's own folder"
    if private.is_relative_to(path):
        return f"{path} holds squidbot's own folder"
    return ""
