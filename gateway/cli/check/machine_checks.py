"""Checks the machine: permissions, disk, port, and whether squidbot starts after a reboot."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.cli.check.check_report import Finding, FindingLevel
from gateway.system.home import Home, user_name
from gateway.system.ownership import SERVICES

_GONE_AT_A_REBOOT = frozenset({"tmpfs", "ramfs", "overlay"})
_OF_A_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
_MAX_NAMED = 5


def ownership(home: Home, secrets: Iterable[Path], *, services: Path = SERVICES) -> Iterator[Finding]:
    """
    Check access to the home folder, the configuration's secrets and the files in the home.

    Below ``services`` each folder belongs to the temporary user of its service, and root runs the check.
    """
    me = os.geteuid()
    state = home.root.stat()
    mode = stat.S_IMODE(state.st_mode)
    of_a_service = me == 0 and home.root.is_relative_to(services)
    if state.st_uid != me and not of_a_service:
        yield Finding(
            "permissions",
            FindingLevel.WARNING,
            f"{home.root} belongs to the user {user_name(state.st_uid)}, but you are {user_name(me)}",
            f"run squidbot as {user_name(state.st_uid)}, or: chown -R {user_name(me)} {home.root}",
        )
    if mode & 0o077:
        verb = "change" if mode & 0o022 else "look into"
        yield Finding(
            "permissions",
            FindingLevel.WARNING,
            f"other users of this machine can {verb} {home.root} (mode {mode:o})",
            f"chmod 700 {home.root}",
        )
    inside = [
        home.database,
        *sorted((home.root / "secrets").glob("*")),
        *sorted((home.root / "state").rglob("*")),
    ]
    loose = [path for path in dict.fromkeys([*secrets, *inside]) if _is_loose(path)]
    if loose:
        named = ", ".join(map(str, loose[:_MAX_NAMED])) + (" and more" if len(loose) > _MAX_NAMED else "")
        yield Finding(
            "permissions",
            FindingLevel.WARNING,
            f"other users of this machine can read {named}",
            f"chmod 600 {' '.join(map(str, loose[:_MAX_NAMED]))}",
        )
    foreign = [path for path in inside if _owner(path) not in (None, state.st_uid)]
    if foreign:
        yield Finding(
            "permissions",
            FindingLevel.FAILED,
            f"{foreign[0]} belongs to {user_name(_owner(foreign[0]) or 0)}, so squidbot cannot write it",
            f"chown -R {user_name(state.st_uid)} {home.root}",
        )


def disk(home: Home, *, mounts: str | None = None) -> Iterator[Finding]:
    """Check space and kind of the disk below the home. ``mounts`` stands for /proc/self/mounts."""
    found = os.statvfs(home.root)
    free = found.f_bavail * found.f_frsize
    trouble = False
    if found.f_flag & os.ST_RDONLY:
        trouble = True
        yield Finding(
            "disk",
            FindingLevel.FAILED,
            f"{home.root} is on a disk that is mounted read-only",
            "look in the system's log: a failing disk is often mounted read-only",
        )
    if free < 200_000_000:
        trouble = True
        yield Finding(
            "disk",
            FindingLevel.WARNING,
            f"only {free // 1_000_000} MB are free on the disk of {home.root}",
            "free some space; until then, messages wait at their servers",
        )
    if found.f_files and found.f_favail < 5000:
        trouble = True
        yield Finding(
            "disk",
            FindingLevel.WARNING,
            f"only {found.f_favail} more files fit on the disk of {home.root}",
            "remove many small files there",
        )
    kind = file_system_of(home.root, mounts)
    if kind in _GONE_AT_A_REBOOT:
        trouble = True
        what = "the memory of this machine" if kind != "overlay" else "the container itself"
        yield Finding(
            "disk",
            FindingLevel.WARNING,
            f"{home.root} is in {what} ({kind}) and is lost with it",
            "move the home to a disk or a volume, or name another one with --home",
        )
    elif kind in _OF_A_NETWORK:
        trouble = True
        yield Finding(
            "disk",
            FindingLevel.WARNING,
            f"{home.root} is on a network file system ({kind}), where SQLite's locks cannot be relied on",
            "move the home to a local disk",
        )
    if not trouble:
        yield Finding("disk", FindingLevel.OK, f"{free // 1_000_000} MB and {found.f_favail} files are free")


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """The kind of file system that a path is on, as the kernel calls it; empty if it cannot be said."""
    try:
        text = (
            Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
            if mounts is None
            else mounts
        )
    except OSError:
        return ""
    real, best, kind = str(path.resolve()), "", ""
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        place = words[1].replace("\\040", " ")
        below = real == place or real.startswith(place.rstrip("/") + "/")
        if below and len(place) >= len(best):
            best, kind = place, words[2]
    return kind


def port(host: str, number: int) -> Finding:
    """Check whether the port for health and metrics is free, while no daemon of ours has it."""
    where = f"{host}:{number}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, number))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            told = f"another program listens on {where} already"
            remedy = f"`ss -tlnp 'sport = :{number}'` names it; stop it, or change gateway.http.listen"
        elif error.errno == errno.EACCES:
            told, remedy = (
                f"this user is not allowed to listen on {where}",
                "choose a port above 1023 for gateway.http.listen",
            )
        else:
            told = f"{where} cannot be listened on: {error.strerror or error}"
            remedy = "gateway.http.listen must name an address of this machine, such as 127.0.0.1"
        return Finding("port", FindingLevel.FAILED, told, remedy)
    return Finding("port", FindingLevel.OK, f"{where} is free")


def unit(*, root: Path = Path("/"), user_home: Path | None = None) -> Finding:
    """Check that systemd starts squidbot after a reboot; ``root`` and ``user_home`` are for tests."""
    if not (root / "run/systemd/system").is_dir():
        return Finding("unit", FindingLevel.SKIPPED, "this machine (or container) is not run by systemd")
    mine = (user_home or Path("~").expanduser()) / ".config/systemd/user"
    folders = [root / "etc/systemd/system", root / "usr/lib/systemd/system", mine, root / "etc/systemd/user"]
    found = [path for folder in folders for path in sorted(folder.glob("squidbot*.service")) if path.exists()]
    if not found:
        return Finding(
            "unit",
            FindingLevel.WARNING,
            "no systemd unit is installed, so squidbot does not start after a reboot",
            "deploy/systemd has one for the system and one for a single user",
        )
    enabled = [path for folder in folders for path in folder.glob("*.wants/squidbot*.service")]
    if enabled:
        return Finding("unit", FindingLevel.OK, f"{found[0]} is installed and enabled")
    user = " --user" if mine in found[0].parents else ""
    return Finding(
        "unit",
        FindingLevel.WARNING,
        f"{found[0]} is installed but not enabled, so squidbot does not start after a reboot",
        f"systemctl{user} enable --now {found[0].name}",
    )


def _is_loose(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(stat.S_IMODE(found.st_mode) & 0o077)


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None
