"""
The one folder that holds all state: where it is, what is in it, and whether it can be used.

    HOME/squidbot.yaml        the configuration
    HOME/gateway.db           the durable queue
    HOME/search.db            index of the histories: a cache
    HOME/sessions/            histories and their meta files
    HOME/memory/              summaries and memory documents of sessions, rooms and people
    HOME/workspace/           MEMORY.md, HEARTBEAT.md, skills
    HOME/state/<channel>/     what a channel keeps for itself (keys, tokens)
    HOME/state/files/         changes of files by tools, with the earlier versions
    HOME/attachments/         files of messages, by their content
    HOME/logs/                log files, if wanted
    HOME/run/                 lock, control socket

Folders are made with mode 0700 and files with 0600. A home folder that exists already keeps its mode, because
it may be somebody's shared folder named by mistake; it is only complained about.

Before Python 3.14 `pathlib` interns each part of each path (python/cpython#119518), so a daemon would grow
with every conversation; that is switched off here.
"""

from __future__ import annotations

import errno
import os
import pwd
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from gateway.errors import StateUnusable
from gateway.system.ownership import SERVICES, Host

_FOLDERS = ("sessions", "memory", "workspace", "state", "attachments", "run")
_PROBE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Home:
    """The home folder. Making this value touches nothing."""

    root: Path

    @property
    def config_file(self) -> Path:
        """The configuration, unless another one is named."""
        return self.root / "squidbot.yaml"

    @property
    def database(self) -> Path:
        """The durable queue."""
        return self.root / "gateway.db"

    @property
    def high_water_mark(self) -> Path:
        """Return the path of the queue's high-water mark, see `gateway.store.rollback_guard`."""
        return self.root / "state" / "gateway-db.json"

    @property
    def lease_holders(self) -> Path:
        """The names under which this home's processes hold leases, see `gateway.store.lease`."""
        return self.root / "state" / "lease-holders.json"

    @property
    def state_key(self) -> Path:
        """Encrypts logins and keys in a shared database, see `gateway.store.state_key`."""
        return self.root / "state" / "state-key"

    @property
    def last_good(self) -> Path:
        """The configuration with which the daemon last started, see `gateway.settings.last_good`."""
        return self.root / "state" / "last-good.yaml"

    @property
    def run(self) -> Path:
        """Files that exist only while a daemon runs."""
        return self.root / "run"

    @property
    def lock_file(self) -> Path:
        """The lock of the one process that works here."""
        return self.run / "lock"

    @property
    def control_socket(self) -> Path:
        """The socket of the running daemon."""
        return self.run / "control.sock"

    @property
    def attachments(self) -> Path:
        """Files of messages."""
        return self.root / "attachments"

    @property
    def logs(self) -> Path:
        """Log files."""
        return self.root / "logs"

    def state(self, channel: str) -> Path:
        """The state folder of a channel; not made here."""
        return self.root / "state" / channel

    def path(self, text: str | Path) -> Path:
        """A path of the configuration: relative ones start at the home folder, ``~`` is the person's own."""
        return self.root / Path(text).expanduser()


def find_home(argument: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The home folder: the argument, ``$SQUIDBOT_HOME`` or ``~/.squidbot``; not made here."""
    chosen = argument or environ.get("SQUIDBOT_HOME") or "~/.squidbot"
    try:
        return Path(os.path.abspath(Path(chosen).expanduser()))  # noqa: PTH100 - keeps links as people wrote them
    except RuntimeError as error:
        raise StateUnusable(
            "this user has no home folder of its own: set SQUIDBOT_HOME or give --home DIR"
        ) from error


def named_config(argument: Path | None = None) -> Path | None:
    """The configuration that somebody names: the argument or ``$SQUIDBOT_CONFIG``; None: that of the home."""
    named = os.environ.get("SQUIDBOT_CONFIG")
    return argument or (Path(named).expanduser() if named else None)


def open_home(root: Path, *, as_guest: bool = False) -> Home:
    """
    Create missing folders and prove that the home is writable. Raises StateUnusable.

    ``as_guest`` lets root into a service's home, whose user exists only while it runs; the caller holds
    `gateway.system.lock`, which hands root's files over.
    """
    home = Home(root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(root, as_guest=as_guest)
        for name in _FOLDERS:
            (root / name).mkdir(mode=0o700, exist_ok=True)
        home.run.chmod(0o700)  # the control socket relies on it
        with tempfile.TemporaryFile(dir=home.run) as probe:
            probe.write(b"\0" * _PROBE_BYTES)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise StateUnusable(_explain(root, error), home=str(root)) from error
    return home


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A path of a socket short enough for the kernel (107 bytes), valid while inside."""
    if len(os.fsencode(path)) <= 107:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _check_owner(root: Path, *, as_guest: bool) -> None:
    host = Host(root)
    # As root everything could be written, and then the daemon's own user could not read it any more.
    if not host.is_foreign_root:
        return
    if not root.is_relative_to(SERVICES):
        name = user_name(root.stat().st_uid)
        raise StateUnusable(
            f"{root} belongs to the user {name}, and files made by root would lock that user out; "
            f"run squidbot as {name}, for example with: sudo -u {name} squidbot …",
            home=str(root),
        )
    if not as_guest:
        raise StateUnusable(
            f"{root} belongs to a service of this machine, so let that run: systemctl start squidbot",
            home=str(root),
        )
    host.refuse_links()


def user_name(uid: int) -> str:
    """The name of a user of this machine; of one without a name the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _explain(root: Path, error: OSError) -> str:
    where = f"the home folder {root}"
    match error.errno:
        case errno.EROFS:
            return f"{where} is on a read-only file system; name another one with --home or SQUIDBOT_HOME"
        case errno.ENOSPC | errno.EDQUOT:
            return f"{where} is on a full disk (or a quota is used up); make room and start again"
        case errno.EACCES | errno.EPERM:
            me = user_name(os.geteuid())
            there = error.filename or root
            return f"the user {me} may not use {there}; run: chown -R {me} {root}"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{where} cannot be made: {error.filename or root} is a file"
        case _:
            return f"{where} cannot be used: {error.strerror or error}"


class _Sys(ModuleType):
    """`sys`, as `pathlib` sees it from then on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)

    @staticmethod
    def intern(name: str) -> str:
        """The name itself; that equal ones are one object is a saving and no promise."""
        return name


def intern_no_path_names() -> bool:
    """Let `pathlib` make paths of ordinary strings. Returns whether there was anything to change."""
    inside = vars(sys.modules[PurePath.__module__])
    if sys.version_info >= (3, 14) or inside.get("sys") is not sys:
        return False
    inside["sys"] = _Sys("sys")
    return True
