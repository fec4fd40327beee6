"""
A real PostgreSQL on loopback, of its own and thrown away: made from the binaries that are installed.

The server does not work as root, so a run of root's starts it as ``postgres`` or ``nobody``. Its folder is
directly under the system's temporary folder, because a socket's path is short and because test folders are
closed to other users. It dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import psycopg

from devservers.environment import cache_folder
from devservers.errors import StartFailed, ToolsMissing
from devservers.ports import lease_ports
from devservers.process import Child, wait_until_ready
from gateway.store.postgres.postgres_queue import migrate

BINARIES = "SQUIDBOT_PG_BIN"
"""In the environment: the folder of the programs of another version than the newest that is installed."""
ADMIN = "postgres"
ROLE = "squidbot"
PASSWORD = "a-secret-of-the-tests"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "80",
    "shared_buffers": "32MB",
    "deadlock_timeout": "100ms",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %u@%d ",
}


@functools.cache
def _binaries() -> Path:
    if named := os.environ.get(BINARIES):
        return Path(named)
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]), reverse=True
    )
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise ToolsMissing("PostgreSQL is not installed here (Debian: apt install postgresql)")
    return (found[0] if found else Path(str(on_path))).parent


@functools.cache
def _other_user() -> tuple[int, int] | None:
    """Who the server works as; None: whoever we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return user.pw_uid, user.pw_gid
    raise ToolsMissing("PostgreSQL does not work as root, and there is no user postgres or nobody here")


def as_other(command: list[str]) -> list[str]:
    """The command as whoever may run a server."""
    user = _other_user()
    if user is None:
        return command
    return ["setpriv", f"--reuid={user[0]}", f"--regid={user[1]}", "--clear-groups", "--", *command]


class PostgresServer:
    """One server; also a context manager that ends it and removes its files."""

    def __init__(
        self, folder: Path, *, fsync: bool, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.folder = folder
        self._settings = settings
        self.data = folder / "data"
        self.child: Child | None = None
        self._fsync = fsync
        self._lease = lease_ports(1, cache_folder() / "ports")[0]
        self.port = self._lease.port

    @classmethod
    def start(cls, *, fsync: bool = False, settings: Mapping[str, str] = MappingProxyType({})) -> Self:
        """
        A new server with the role `ROLE`, which may make databases, and no database of its own.

        Args:
            fsync: Whether it syncs, as in life.
            settings: More of its settings.

        Raises:
            ToolsMissing: PostgreSQL is not here.
        """
        _binaries()
        server = cls(cls._new_folder(), fsync=fsync, settings=settings)
        try:
            server._initialize()
            server.begin()
            with server.admin() as db:
                db.execute(f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{PASSWORD}'")
        except BaseException:
            server.stop()
            raise
        return server

    @classmethod
    def replica_of(cls, primary: PostgresServer) -> Self:
        """A server that follows another one and takes no writes."""
        server = cls(cls._new_folder(), fsync=False)
        try:
            server._run(
                "pg_basebackup", "-D", str(server.data), "-R", "-X", "stream", "-c", "fast",
                "-d", primary.url("postgres", user=ADMIN),
            )  # fmt: skip
            server.begin()
        except BaseException:
            server.stop()
            raise
        return server

    @staticmethod
    def _new_folder() -> Path:
        folder = Path(tempfile.mkdtemp(prefix="squidbot-pg-"))
        user = _other_user()
        if user is not None:
            os.chown(folder, *user)
        return folder

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            as_other([str(_binaries() / program), *arguments]),
            capture_output=True, text=True, timeout=120, check=False, cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise StartFailed(f"{program} failed: {done.stderr.strip()}")

    def _initialize(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", str(self.data), "-N", "-U", ADMIN, "--auth=scram-sha-256",
            f"--pwfile={secret}", "-E", "UTF8", "--locale=C.UTF-8",
        )  # fmt: skip

    def begin(self) -> None:
        """Start the server process on the files that are there; after `kill` too."""
        settings = {
            **_SETTINGS,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if self._fsync else "off",
            **self._settings,
        }
        command = [str(_binaries() / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self.child = Child(
            as_other(command), log=self.folder / "log", cwd=self.folder, remove_if_orphaned=self.folder
        )
        wait_until_ready(self._answers, name="PostgreSQL", child=self.child)

    def _answers(self) -> bool:
        try:
            with self.admin(connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def kill(self) -> None:
        """End it at once, without a checkpoint: as after a crash the next start reads the log."""
        if self.child is None:
            return
        if self.child.alive:
            os.kill(self.child.pid, signal.SIGQUIT)  # the postmaster takes the other processes along
            with contextlib.suppress(ChildProcessError):
                deadline = time.monotonic() + 10
                while self.child.alive and time.monotonic() < deadline:
                    time.sleep(0.01)
        self.child.kill()
        self.child = None

    def restart(self) -> None:
        """As an administrator does: connections are ended, and it comes back with nothing to recover."""
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGINT)
        with contextlib.suppress(ChildProcessError):
            deadline = time.monotonic() + 30
            while self.child.alive and time.monotonic() < deadline:
                time.sleep(0.02)
        self.kill()
        self.begin()

    def promote(self) -> None:
        """Let a replica take writes."""
        with self.admin() as db:
            assert db.execute("SELECT pg_promote(true, 60)").fetchone() == (True,)

    def confirmed_by_replica(self) -> None:
        """From now on a commit waits for the replica, so that none is lost with this server."""
        with self.admin() as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            db.execute("SELECT pg_reload_conf()")

    def freeze(self, *, thaw: bool = False) -> None:
        """Stop the processes where they are, or let them go on."""
        assert self.child is not None
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if thaw else signal.SIGSTOP)

    def processes(self) -> list[int]:
        """The ids of its processes, if it runs."""
        return [] if self.child is None else [self.child.pid, *_children_of(self.child.pid)]

    @staticmethod
    def has_library(name: str) -> bool:
        """Whether there is a library with which it can be started."""
        lib = _binaries().parent / "lib"
        return any(
            (place / f"{name}.so").exists()
            for place in (lib, *lib.glob("postgresql"), *lib.glob("*/postgresql"))
        )

    def stop(self) -> None:
        """End it and remove its files."""
        self.kill()
        self._lease.release()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, database: str, *, user: str = ROLE, password: str = PASSWORD, port: int = 0) -> str:
        """How a database of this server is named in the settings."""
        return f"postgresql://{user}:{password}@127.0.0.1:{port or self.port}/{database}"

    def with_tables(self) -> str:
        """How a new database with squidbot's tables is named."""
        url = self.url(self.new_database())
        migrate(url)
        return url

    def admin(self, database: str = "postgres", **options: int) -> psycopg.Connection:
        """A connection that may do everything, each statement by itself."""
        return psycopg.connect(self.url(database, user=ADMIN), autocommit=True, **options)

    def new_database(self, *, template: str = "template1") -> str:
        """Make a database that belongs to `ROLE`; returns its name."""
        name = f"test_{secrets.token_hex(6)}"
        with self.admin() as db:
            db.execute(f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE {template} STRATEGY file_copy")
        return name


def _children_of(parent: int) -> list[int]:
    """A server's processes have sessions of their own, so no signal to a group reaches them."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found
